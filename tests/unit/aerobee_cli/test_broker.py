"""Test `aerobee broker`: its replicas, and the messages that were cut off from their logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from aerobee_broker.config import BrokerOptions
from aerobee_chassis.config import load
from aerobee_cli.main import main
from aerobee_cli.processes.suite import ONE_COPY, Replicas, SuiteOptions, any_listens
from aerobee_client.admin.descriptions import DivergedFile, DivergedMessage, DivergedPage
from aerobee_client.admin.diverged import SEND_MESSAGES
from aerobee_wire.record import decode
from aerobee_wire.status import Code, MqError
from support.records import encode

# ---- test diverged ----
#
# `aerobee broker diverged resend`: its counts, if a broker refuses a part of the messages.


FILE = DivergedFile(
    broker_name="b", replica_id=2, address="b:2", name="1-40.log", epoch=1, begin_offset=40, size=10
)
RECORD = decode(encode(topic="orders", body=b"x"), 0)


def message(number: int) -> DivergedMessage:
    return DivergedMessage(
        topic="orders", kind="message", message_id=f"A{number}", keys="", tag="", body_size=1,
        queue_id=0, reconsume_times=0, physical_offset=number, store_timestamp_ms=0, stored=False,
        record=RECORD,
    )  # fmt: skip


class FullBroker:
    """Accepts `room` requests."""

    def __init__(self, room: int) -> None:
        self._room = room

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def list_diverged(self, name: str, *, silent: list[MqError]) -> list[DivergedFile]:
        return [FILE]

    def read_diverged(self, file: DivergedFile, position: int) -> DivergedPage:
        messages = [message(number) for number in range(SEND_MESSAGES + 1)]
        return DivergedPage(
            next_position=10, internal_count=0, corrupted_count=0, messages=messages
        )

    def resend_diverged(
        self, file: DivergedFile, messages: Sequence[DivergedMessage], *, dry_run: bool
    ) -> int:
        if not self._room:
            raise MqError(Code.DISK_FULL, "the disk is full")
        self._room -= 1
        return len(messages)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
@pytest.mark.parametrize(("room", "sent"), [(2, SEND_MESSAGES + 1), (1, SEND_MESSAGES), (0, 0)])
def test_a_resend_counts_each_request_by_its_own_answer(
    room: int,
    sent: int,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = "aerobee_cli.commands.broker"
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: FullBroker(room))
    monkeypatch.setattr(f"{module}.look_at", lambda *_: SimpleNamespace(absent=[]))
    code = main(["broker", "diverged", "resend", "b", "--json", *options])
    out, err = capsys.readouterr()
    result: dict[str, Any] = json.loads(out)
    failed = SEND_MESSAGES + 1 - sent
    assert (result["sent"], result["failed"]) == (sent, failed)
    assert (code, "disk is full" in err) == ((1, True) if failed else (0, False))


# ---- test replicas ----
#
# What `aerobee up --replicas N` asks of each broker: options that a broker takes.


ETCD = "127.0.0.1:2379,127.0.0.1:2381"


def options(group: Replicas) -> list[BrokerOptions]:
    settings = [group.settings(number) for number in range(group.copies)]
    return [load(BrokerOptions, sets=each) for each in settings]


@pytest.mark.parametrize("copies", [2, 3, 5])
@pytest.mark.parametrize("etcd", ["", ETCD])
def test_each_copy_counts_and_two_hold_what_is_acknowledged(copies: int, etcd: str) -> None:
    brokers = options(Replicas(copies, etcd))
    assert {each.total_replicas for each in brokers} == {copies}
    assert {each.required_replicas for each in brokers} == {2}
    assert all(each.is_synchronous and each.is_replicated for each in brokers)
    assert {each.is_learner for each in brokers} == {False}
    assert {each.enable_auto_in_sync_replicas for each in brokers} == {copies == 2}
    assert {each.is_elected for each in brokers} == {bool(etcd)}
    numbers = [each.broker_id for each in brokers]
    assert numbers == list(range(1, copies + 1) if etcd else range(copies))
    assert len({each.metrics_prom_exporter_port for each in brokers}) == copies


def test_a_broker_alone_is_asked_for_nothing() -> None:
    assert ONE_COPY.settings(0) == []
    assert ONE_COPY.remark == ""
    assert ONE_COPY.check(["brokerRole=SLAVE"]) == ""


@pytest.mark.parametrize("key", ["brokerRole", "brokerId", "broker.totalReplicas"])
def test_what_differs_from_broker_to_broker_cannot_be_set_for_all(key: str) -> None:
    assert Replicas(3).check([f"{key}=1"])
    assert not Replicas(3).check(["inSyncReplicas=3", "namesrv.logLevel=debug"])


def test_brokers_of_a_group_have_ports_and_directories_of_their_own() -> None:
    suite = SuiteOptions(Path("d"), broker_port=10_911, replicas=Replicas(3))
    assert [suite.broker_arguments(number)[:4] for number in range(3)] == [
        ["--port", "10911", "--data", "d"],
        ["--port", "10912", "--data", "d/replica-1"],
        ["--port", "10913", "--data", "d/replica-2"],
    ]
    free = SuiteOptions(Path("d"), replicas=Replicas(2))
    assert free.broker_arguments(1)[:2] == ["--port", "0"]
    assert free.broker_arguments(1, 4_711)[:2] == ["--port", "4711"]


def test_a_demo_without_a_failover_has_nothing_to_elect() -> None:
    assert main(["demo", "--etcd", ETCD]) == 2


async def test_an_etcd_that_is_away_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []

    async def refuse(host: str, port: int) -> None:
        asked.append((host, port))
        raise ConnectionRefusedError

    monkeypatch.setattr("asyncio.open_connection", refuse)
    assert not await any_listens(ETCD.split(","))
    assert asked == [("127.0.0.1", 2379), ("127.0.0.1", 2381)]
