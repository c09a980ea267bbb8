"""`aerobee doctor` against clusters that are well, and others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_cli.authority import Authority
from support.processes.command import aerobee, aerobee_json, found_by_doctor
from support.processes.service import named_broker, namesrv_process, proxy_process
from support.stubs import Stub

CLOSED = "127.0.0.1:1"
FOUND = 3  # exit code


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with namesrv_process(tmp_path) as process:
        yield process.address


def findings(namesrv: str, *options: str) -> dict[tuple[str, str], str]:
    """(check, subject) → problem."""
    done = aerobee("doctor", *options, "--json", namesrv=namesrv)
    assert done.returncode == (FOUND if json.loads(done.stdout) else 0), done.stderr
    return {
        (each["check"], each["subject"]): each["problem"] for each in found_by_doctor(done.stdout)
    }


def test_differences_between_brokers_are_found_until_they_are_gone(
    namesrv: str, tmp_path: Path
) -> None:
    with named_broker(tmp_path, "broker-a", namesrv=namesrv):
        aerobee_json("topic", "create", "orders", namesrv=namesrv)
        aerobee_json("group", "create", "billing", "--max-attempts", "3", namesrv=namesrv)
        assert findings(namesrv) == {}
        with named_broker(tmp_path, "broker-b", namesrv=namesrv):
            found = findings(namesrv)
            assert found.keys() == {("topic", "orders"), ("group", "billing")}
            assert all("broker-b" in problem for problem in found.values())
            text = aerobee("doctor", namesrv=namesrv)
            assert text.returncode == FOUND
            assert "aerobee topic rebalance orders" in text.stdout
            aerobee_json("topic", "rebalance", "orders", namesrv=namesrv)
            aerobee_json("group", "create", "billing", "--max-attempts", "3", namesrv=namesrv)
            assert findings(namesrv) == {}
            assert findings(CLOSED, "--from", namesrv) == {}


def test_an_idle_topic_and_group_are_hints(namesrv: str, tmp_path: Path) -> None:
    with named_broker(tmp_path, "broker-a", namesrv=namesrv):
        aerobee_json("topic", "create", "orders", namesrv=namesrv)
        aerobee_json("group", "create", "billing", namesrv=namesrv)
        assert findings(namesrv) == {}

        def hints() -> list[tuple[str, str]]:
            done = aerobee("doctor", "--idle", "1ms", "--json", namesrv=namesrv)
            found = found_by_doctor(done.stdout)
            assert all(each["hint"] for each in found)
            assert done.returncode == (0 if len(found) == len(json.loads(done.stdout)) else FOUND)
            return [(each["check"], each["subject"]) for each in found]

        assert hints() == [("topic", "orders"), ("group", "billing")]
        sent = aerobee("message", "send", "orders", "x", namesrv=namesrv)
        assert sent.returncode == 0
        line = aerobee("doctor", "--idle", "1h", namesrv=namesrv)
        assert "orders" not in line.stdout


def test_what_cannot_be_reached_is_found(namesrv: str, tmp_path: Path) -> None:
    assert aerobee("doctor", namesrv=CLOSED).returncode == 1
    assert aerobee("doctor", namesrv=namesrv).returncode == 1  # no broker yet
    with named_broker(tmp_path, "broker-a", namesrv=namesrv):
        with grpc.insecure_channel(namesrv) as channel:
            Stub(namesrv_pb2, channel).RegisterBroker(
                namesrv_pb2.RegisterBrokerRequest(
                    cluster="DefaultCluster", broker_name="broker-b", broker_address=CLOSED
                ),
                timeout=10,
            )
        found = findings(f"{namesrv};{CLOSED}")
        assert found.keys() == {("name server", CLOSED), ("broker", "broker-b")}


def test_a_proxy_is_asked_what_it_answers_clients(namesrv: str, tmp_path: Path) -> None:
    with named_broker(tmp_path, "broker-a", namesrv=namesrv):
        with proxy_process(namesrv) as proxy:
            early = aerobee("doctor", "--from", proxy.address, namesrv=namesrv)
            assert early.returncode == 1  # no topic yet
            aerobee_json("topic", "create", "orders", namesrv=namesrv)
            assert findings(namesrv, "--from", proxy.address) == {}
            assert findings(CLOSED, "--from", proxy.address, "--topic", "orders") == {}
            unnamed = aerobee("doctor", "--from", proxy.address, namesrv=CLOSED)
            assert (unnamed.returncode, "--topic" in unnamed.stderr) == (1, True)
        with proxy_process(namesrv, "--set", f"advertisedEndpoints={CLOSED}") as proxy:
            found = findings(namesrv, "--from", proxy.address)
            assert found.keys() == {("route", CLOSED)}
        assert aerobee("doctor", "--from", CLOSED, namesrv=namesrv).returncode == 1


def test_a_proxy_with_another_certificate_is_found(
    namesrv: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SDKs that verify compare it with the host that they dial."""
    for name in ("secure", "other"):
        authority = Authority(tmp_path / name, datetime.now(UTC))
        authority.init("DefaultCluster", "broker-a", ["proxy.example.org"], 1)
    pair = [
        f"--set=tls{kind}Path={tmp_path}/secure/proxy.{end}"
        for kind, end in (("Cert", "crt"), ("Key", "key"))
    ]
    with (
        named_broker(tmp_path, "broker-a", namesrv=namesrv),
        proxy_process(namesrv, *pair) as proxy,
    ):
        aerobee_json("topic", "create", "orders", namesrv=namesrv)
        asked = ("--from", proxy.address, "--topic", "orders")
        monkeypatch.setenv("AEROBEE_TLS_TRUST_CERT_PATH", f"{tmp_path}/secure/ca.crt")
        assert findings(CLOSED, *asked).keys() == {("certificate", proxy.address)}
        monkeypatch.setenv("AEROBEE_TLS_TRUST_CERT_PATH", f"{tmp_path}/other/ca.crt")
        refused = aerobee("doctor", *asked, namesrv=CLOSED)
        assert (refused.returncode, "is not accepted" in refused.stderr) == (1, True)
