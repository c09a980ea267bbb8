"""The life of the name server's process: what it keeps, how it stops, why it does not start."""

from __future__ import annotations

import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from support.clock.polling import until_sync
from support.namesrv.calls import Caller
from support.observing.scrape import scrape
from support.processes.service import METRICS, ServiceProcess, StartFailure, namesrv_process, run


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[ServiceProcess]:
    with namesrv_process(tmp_path) as process:
        yield process


def put(address: str, key: str, value: str) -> None:
    with Caller(address) as caller:
        caller.call(pb.PutKvConfigRequest(namespace="ns", key=key, value=value))


def entries(address: str) -> dict[str, str]:
    with Caller(address) as caller:
        return dict(caller.call(pb.ListKvConfigRequest(namespace="ns")).entries)


# ---- what it keeps ----


def test_key_values_survive_a_restart_and_routes_do_not(namesrv: ServiceProcess) -> None:
    put(namesrv.address, "k", "v")
    with Caller(namesrv.address) as caller:
        caller.register()
    namesrv.restart()
    assert entries(namesrv.address) == {"k": "v"}
    with Caller(namesrv.address) as caller:
        assert caller.brokers() == []


def test_key_values_survive_kill_9(namesrv: ServiceProcess) -> None:
    for number in range(20):
        put(namesrv.address, f"k{number}", "v")
    assert namesrv.kill() == -signal.SIGKILL
    namesrv.start()
    assert len(entries(namesrv.address)) == 20


def test_backup_is_used_when_the_file_is_broken(namesrv: ServiceProcess, tmp_path: Path) -> None:
    put(namesrv.address, "k", "old")
    put(namesrv.address, "k", "new")
    namesrv.stop()
    (tmp_path / "namesrv" / "kvConfig.json").write_bytes(b"\0" * 40)
    namesrv.start()
    assert entries(namesrv.address) == {"k": "old"}
    assert namesrv.events("kv_config_loaded_from_backup")


# ---- how it stops ----


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_it_cleanly_with_streams_open(
    namesrv: ServiceProcess, number: signal.Signals
) -> None:
    with Caller(namesrv.address) as caller:
        caller.register()
        stream = caller.watch()
        until_sync(lambda: namesrv.events("watch_opened"), "the watch is taken")
        namesrv.send_signal(number)
        assert list(stream) == [], "ended, not broken"
        assert namesrv.wait() == 0
    assert namesrv.stderr == ""
    assert [line["event"] for line in namesrv.log][-1] == "stopped"
    assert not [line for line in namesrv.log if line["level"] in ("warning", "error")]
    assert not namesrv.events("broker_unregistered")


# ---- why it does not start ----


def test_data_directory_of_another_name_server_is_refused(
    namesrv: ServiceProcess, tmp_path: Path
) -> None:
    done = run("aerobee_namesrv", "--port", "0", "--data", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert str(tmp_path) in done.stderr
    put(namesrv.address, "k", "v")


def test_unreadable_key_values_are_reported_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    path.parent.mkdir()
    path.write_text("{")
    done = run("aerobee_namesrv", "--port", "0", "--data", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert str(path) in done.stderr


def test_start_that_fails_shows_its_output(tmp_path: Path) -> None:
    """Of the helper that starts processes: a test that fails must say why."""
    with pytest.raises(StartFailure, match="enableTopicLst"):
        namesrv_process(tmp_path, "--set", "enableTopicLst=true").start()


# ---- how it is set up ----


def test_metrics_count_brokers_topics_and_queries(tmp_path: Path) -> None:
    with namesrv_process(tmp_path, *METRICS) as namesrv:
        with Caller(namesrv.address) as caller:
            caller.register()
            assert caller.brokers("orders") and not caller.brokers("nowhere")
        address = namesrv.ready["metrics"]
        found = scrape(namesrv)
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=10) as answer:
            assert answer.read() == b"ready\n"
    assert found["aerobee_namesrv_brokers"] == 1
    assert found["aerobee_namesrv_topics"] == 2
    assert found['aerobee_namesrv_route_queries_total{outcome="found"}'] == 1
    assert found['aerobee_namesrv_route_queries_total{outcome="missed"}'] == 1
