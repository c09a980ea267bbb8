"""Two processes with one brokerId and a disk each: the second stops, unless the first is gone."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire.checked_json import decode
from support.clock.polling import until_sync
from support.processes.command import aerobee
from support.processes.service import ServiceProcess, broker_process, namesrv_process
from support.stubs import Stub

REPLICA = ("--set", "brokerRole=SLAVE", "--set", "brokerId=1")
MASTER = ("--set", "brokerRole=SYNC_MASTER", "--set", "inSyncReplicas=1")


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[ServiceProcess]:
    with namesrv_process(tmp_path) as process:
        yield process


def broker(namesrv: ServiceProcess, data: Path, *options: str) -> ServiceProcess:
    return broker_process(data, *options, namesrv=namesrv.address)


def registered(namesrv: ServiceProcess) -> dict[int, str]:
    """Broker id → address."""
    with grpc.insecure_channel(namesrv.address) as channel:
        stub = Stub(namesrv_pb2, channel)
        info = stub.GetClusterInfo(namesrv_pb2.GetClusterInfoRequest(), timeout=10)
    return dict(info.brokers[0].addresses) if info.brokers else {}


def conflicts(namesrv: ServiceProcess) -> list[str]:
    """What the doctor says of it."""
    done = aerobee("doctor", "--json", namesrv=namesrv.address)
    return [
        each["problem"]
        for each in json.loads(done.stdout or "[]")
        if each["check"] == "broker" and "two processes" in each["problem"]
    ]


def store_id(data: Path) -> str:
    path = data / "broker" / "store" / "config" / "brokerIdentity.json"
    return str(decode(path.read_bytes())["storeId"])


def test_second_broker_of_a_number_stops_and_the_first_stays(
    namesrv: ServiceProcess, tmp_path: Path
) -> None:
    with (
        broker(namesrv, tmp_path / "first") as first,
        broker(namesrv, tmp_path / "second") as second,
    ):
        assert registered(namesrv) == {0: first.address}
        (problem,) = conflicts(namesrv)
        assert first.address in problem and second.address in problem
        address = second.address
        assert second.wait() == 1
        assert second.stderr.count("\n") == 1 and first.address in second.stderr
        (event,) = second.events("broker_id_in_use")
        assert event["other_address"] == first.address != address
        assert registered(namesrv) == {0: first.address}
        assert not first.events("namesrv_lost")


def test_second_replica_of_a_number_stops_and_the_first_stays(
    namesrv: ServiceProcess, tmp_path: Path
) -> None:
    with (
        broker(namesrv, tmp_path / "master", *MASTER) as master,
        broker(namesrv, tmp_path / "first", *REPLICA) as first,
    ):
        until_sync(lambda: first.events("agreed_with_master"), "it follows")
        with broker(namesrv, tmp_path / "second", *REPLICA) as second:
            (problem,) = conflicts(namesrv)
            for reported in (first, second):
                assert reported.address in problem
            for data in ("first", "second"):
                assert store_id(tmp_path / data) in problem
            assert second.wait() == 1
            assert second.stderr.count("\n") == 1 and first.address in second.stderr
        assert registered(namesrv) == {0: master.address, 1: first.address}
        assert len(first.events("agreed_with_master")) == 1, "its stream has not ended"


def test_broker_replaces_one_that_was_killed_and_starts_again_elsewhere(
    namesrv: ServiceProcess, tmp_path: Path
) -> None:
    with broker(namesrv, tmp_path / "data") as first:
        first.kill()
        with broker(namesrv, tmp_path / "data") as again:
            assert again.address != first.address
            until_sync(lambda: registered(namesrv) == {0: again.address}, "it is registered")
            assert not again.events("other_broker_silent")


def test_broker_waits_for_one_whose_machine_is_lost(
    namesrv: ServiceProcess, tmp_path: Path
) -> None:
    """Its stream looks alive to the name server for a while, and it answers nothing."""
    with broker(namesrv, tmp_path / "first") as first:
        first.send_signal(signal.SIGSTOP)
        try:
            with broker(namesrv, tmp_path / "second") as second:
                until_sync(lambda: second.events("other_broker_silent"), "it waits", timeout_s=40)
                assert registered(namesrv) == {0: first.address}
                first.kill()  # now the name server notices
                until_sync(lambda: registered(namesrv) == {0: second.address}, "it is registered")
        finally:
            if first.is_running:
                first.send_signal(signal.SIGCONT)
