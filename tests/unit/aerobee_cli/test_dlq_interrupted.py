"""`aerobee dlq` interrupted: by a broker that dies, by Ctrl-C, by a full disk."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2, client_pb2

import aerobee_client
from aerobee_cli import main, output
from aerobee_cli.errors import INTERRUPTED
from aerobee_cli.progress import Progress
from aerobee_client.admin import dead_letters
from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT
from aerobee_client.errors import BrokerUnreachable
from aerobee_wire import files
from aerobee_wire import properties as names
from aerobee_wire.status import Code, MqError
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster

ADDRESS = "10.0.0.11:10911"
GROUP = "billing"
DEAD = "%DLQ%billing"
COUNT = 1_100  # more than one page


@pytest.fixture
def broker() -> MemoryBroker:
    broker = MemoryBroker("a", ADDRESS)
    broker.create(DEAD, 1)
    broker.create("orders", 4)
    bury(broker, range(COUNT))
    return broker


@pytest.fixture
def total(broker: MemoryBroker) -> int:
    """The number of dead letters: more than are in flight at once, which an interruption sends."""
    total = MAX_IN_FLIGHT + COUNT
    bury(broker, range(COUNT, total))
    return total


def bury(broker: MemoryBroker, numbers: range) -> None:
    for n in numbers:
        encoded = names.encode({names.UNIQUE_KEY: f"ID{n}", names.DLQ_ORIGIN_TOPIC: "orders"})
        broker.append(DEAD, 0, b"%d" % n, encoded)


@pytest.fixture
def cluster(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    cluster = MemoryCluster(broker)
    cluster.answers["GetGroup"] = lambda *_: admin_pb2.GetGroupResponse()
    cluster.answers["ListClients"] = lambda *_: client_pb2.ListClientsResponse()
    for name in ("AsyncAdminClient", "AsyncProducer"):
        made = partial(getattr(aerobee_client, name), transport=cluster)
        monkeypatch.setattr(aerobee_client, name, made)
    monkeypatch.setattr(dead_letters, "PATIENCE_S", 0.0)  # brokers here do not come back
    return cluster


def run(*arguments: str) -> int:
    return main.main(["dlq", arguments[0], GROUP, *arguments[1:], "--namesrv", NAMESRV])


def fail_second_page(cluster: MemoryCluster) -> None:
    def answer(address: str, request: Any) -> None:
        if request.queue_offset:
            raise BrokerUnreachable(ADDRESS, "it starts again")

    cluster.answers["Pull"] = answer


def signal_once(number: signal.Signals) -> Callable[[str, Any], None]:
    """An answer that passes, and at the first call sends this process a signal."""
    numbers = [number]

    def answer(address: str, request: Any) -> None:
        if numbers:
            signal.pthread_kill(threading.main_thread().ident or 0, numbers.pop())

    return answer


def stored(broker: MemoryBroker) -> list[str]:
    return [record.unique_message_id for record in broker.messages("orders")]


def test_redrive_that_fails_to_read_shows_what_it_sent(
    broker: MemoryBroker, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_second_page(cluster)
    assert run("redrive", "--all", "--to", "origin", "--json") == 1
    shown = capsys.readouterr()
    result = json.loads(shown.out)
    outcomes = result["outcomes"]
    assert (result["sent"], result["interrupted"]) == (1_024, True)
    assert len(outcomes) == 1_024 and {outcome["status"] for outcome in outcomes} == {"sent"}
    assert sorted(outcome["message_id"] for outcome in outcomes) == sorted(stored(broker))
    assert ADDRESS in shown.err and "1,024" in shown.err


def test_interrupted_redrive_shows_what_it_sent(
    broker: MemoryBroker, total: int, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers["Send"] = signal_once(signal.SIGINT)
    assert run("redrive", "--all", "--to", "origin", "--json") == INTERRUPTED
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert {outcome["status"] for outcome in outcomes} == {"sent"}
    assert sorted(outcome["message_id"] for outcome in outcomes) == sorted(stored(broker))
    assert 0 < len(outcomes) < total


def test_failed_redrive_says_how_far_it_came(
    broker: MemoryBroker, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    fail_second_page(cluster)
    assert run("redrive", "--all", "--to", "origin") == 1
    shown = capsys.readouterr()
    assert "queue offset 1023 of queue 0 of broker a" in shown.err
    assert len(stored(broker)) == 1_024


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_redrive_goes_on_by_its_journal(
    broker: MemoryBroker,
    total: int,
    cluster: MemoryCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    number: signal.Signals,
) -> None:
    journal = str(tmp_path / "journal")
    again = ("redrive", "--all", "--to", "origin", "--journal", journal, "--json")
    cluster.answers["Send"] = signal_once(number)
    assert run(*again) == INTERRUPTED
    first = json.loads(capsys.readouterr().out)
    assert 0 < first["sent"] == len(stored(broker)) < total
    del cluster.answers["Send"]
    assert run(*again) == 0
    second = json.loads(capsys.readouterr().out)
    counts = (second["sent"], second["sent_before"], second["perhaps_twice"])
    assert counts == (total - first["sent"], first["sent"], 0)
    assert sorted(stored(broker)) == sorted(f"ID{n}" for n in range(total))


def test_a_redrive_in_the_background_of_a_script_ends_at_sigterm(
    broker: MemoryBroker, total: int, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell without job control has such a command ignore SIGINT."""
    cluster.answers["Send"] = signal_once(signal.SIGTERM)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run("redrive", "--all", "--to", "origin", "--json") == INTERRUPTED
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert 0 < json.loads(capsys.readouterr().out)["sent"] == len(stored(broker)) < total


def test_progress_has_not_looked_at_fewer_than_it_sent(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[dict[str, int]] = []
    monkeypatch.setattr(Progress, "update", lambda _, **numbers: reported.append(numbers))
    assert run("redrive", "--all", "--to", "origin", "--rate", "3000") == 0
    assert reported and all(each["looked_at"] >= each["sent"] for each in reported)


def test_a_list_is_redriven_and_what_is_gone_is_reported(
    broker: MemoryBroker,
    cluster: MemoryCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "dead.jsonl"
    assert run("export", "--out", str(out)) == 0
    lines = out.read_text().splitlines()[10:1_000:30]
    out.write_text(
        "\n".join([*lines, lines[0].replace('"queue_offset": 10', '"queue_offset": 5000')])
    )
    capsys.readouterr()
    assert run("redrive", "--list", str(out), "--to", "topic:orders", "--json") == 1
    result = json.loads(capsys.readouterr().out)
    assert (result["sent"], result["missing"]) == (len(lines), 1)
    assert sorted(stored(broker)) == sorted(json.loads(line)["message_id"] for line in lines)


def test_dead_letters_of_a_time_are_redriven(broker: MemoryBroker, cluster: MemoryCluster) -> None:
    """The memory cluster stores each message later than the one before by its size in ms."""
    times = [record.store_timestamp_ms for record in broker.messages(DEAD)]

    def iso(n: int) -> str:
        return output.iso_time(times[n])

    assert run("redrive", "--all", "--to", "origin", "--since", iso(7), "--until", iso(9)) == 0
    assert stored(broker) == ["ID7", "ID8"]
    assert run("redrive", "--all", "--to", "origin", "--since", "yesterday") == 2


def test_what_is_wrong_with_a_redrive_is_refused(cluster: MemoryCluster, tmp_path: Path) -> None:
    assert run("redrive") == 2
    assert run("redrive", "--all", "--id", "ID1") == 2
    assert run("redrive", "--all", "--list", "x") == 2
    assert run("redrive", "--all", "--to", "orders") == 2
    assert run("redrive", "--all", "--to", "topic:%DLQ%billing") == 2
    assert run("redrive", "--list", str(tmp_path / "absent"), "--to", "origin") == 1
    assert run("redrive", "--all", "--rate", "inf") == 2
    assert run("redrive", "--all", "--since", "1h", "--until", "2h") == 2
    assert not cluster.requests("Send")


def test_a_peek_shows_every_id_that_it_is_given_and_fails_for_one_that_is_not_there(
    broker: MemoryBroker, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """ID5 died twice, and both dead letters are before that of ID1200."""
    for message_id in ("ID5", "ID1200"):
        encoded = names.encode({names.UNIQUE_KEY: message_id, names.DLQ_ORIGIN_TOPIC: "orders"})
        broker.append(DEAD, 0, b"again", encoded)

    def shown() -> list[str]:
        return [each["message_id"] for each in json.loads(capsys.readouterr().out)]

    assert run("peek", "--id", "ID5", "--id", "ID1200", "--json") == 0
    assert shown() == ["ID5", "ID5", "ID1200"]
    assert run("peek", "--id", "ID5", "--id", "absent", "--json") == 1
    assert shown() == ["ID5", "ID5"]
    assert run("peek", "-n", "2", "--json") == 0
    assert shown() == ["ID0", "ID1"]


def test_failed_export_keeps_the_earlier_file(cluster: MemoryCluster, tmp_path: Path) -> None:
    """After a purge it may be the only copy."""
    out = tmp_path / "dead.jsonl"
    assert run("export", "--out", str(out)) == 0
    before = out.read_bytes()
    assert before.count(b"\n") == COUNT
    fail_second_page(cluster)
    assert run("export", "--out", str(out)) == 1
    assert out.read_bytes() == before
    assert list(tmp_path.iterdir()) == [out]


def test_export_to_a_full_disk_leaves_nothing(
    cluster: MemoryCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync", full)
    assert run("export", "--out", str(tmp_path / "dead.jsonl")) == 1
    assert os.strerror(errno.ENOSPC) in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_export_writes_to_links_and_devices(
    cluster: MemoryCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    assert run("export", "--out", str(link)) == 0
    assert link.is_symlink() and (tmp_path / "target").read_text().count("\n") == COUNT
    assert run("export", "--out", "/dev/stdout") == 0
    assert capfd.readouterr().out.count("\n") == COUNT


@pytest.mark.parametrize("command", [("list",), ("purge", "--yes"), ("export",)])
def test_a_missing_route_is_not_taken_for_no_dead_letters(
    cluster: MemoryCluster,
    command: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interrupted purge has deleted the route; the broker registers it again within a minute."""
    monkeypatch.setattr(dead_letters, "ROUTE_S", 0)
    cluster.answers["GetTopicRoute"] = MqError(Code.TOPIC_NOT_EXIST, f"no route of {DEAD}")
    assert run(*command) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and DEAD in shown.err


def test_a_purge_without_a_terminal_is_refused(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert run("purge") == 2
    assert not cluster.requests("DeleteTopic")


def test_a_purge_of_purged_dead_letters_finds_none(
    broker: MemoryBroker, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.answers["DeleteTopic"] = lambda *_: broker.topics.pop(DEAD, None) and None
    assert run("purge", "--yes") == 0
    assert capsys.readouterr().err == f"no dead letters of {GROUP}\n"


def test_redrive_counts_what_it_sent(
    broker: MemoryBroker, cluster: MemoryCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded = names.encode({names.UNIQUE_KEY: "ID7", names.DLQ_ORIGIN_TOPIC: "orders"})
    broker.append(DEAD, 0, b"7", encoded)
    assert run("redrive", "--all", "--to", "origin") == 0
    shown = capsys.readouterr()
    assert shown.err == "sent 1,100 of 1,101 dead letters of billing to orders\n"
    assert shown.out.count("ID7") == 1 and "skipped" in shown.out
    assert len(stored(broker)) == COUNT
