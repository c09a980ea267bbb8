"""Authentication: signatures, and that every RPC checks them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import structlog
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_chassis.rpc.guesses import DELAY_S, FAILURES
from aerobee_proxy.access.users import Users
from aerobee_proxy.cluster.log_throttle import DEFAULT_EVERY_MS
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2 import authentication as module
from aerobee_proxy.v2.authentication import LONGEST_HEADER, Authentication, parse, signature
from aerobee_proxy.v2.rpc.pipeline import NotAdmitted
from aerobee_proxy.v2.status import Refused
from aerobee_wire.access.users import User
from support.clock.manual_clock import ManualClock
from support.proxy.access import BILLING, DATE, DISABLED, SECRET, signed, write_users
from support.proxy.harness import CLIENT_ID, Cluster, FakeCall, Requests, streamed

PEER = "192.0.2.1:5123"
METHODS = s.DESCRIPTOR.services_by_name["MessagingService"].methods


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_users(tmp_path / "users.json", BILLING, DISABLED)


def authentication(file: Path) -> Authentication:
    return Authentication(Users(file), ProxyCounts(), ManualClock())


def check(guard: Authentication, metadata: Mapping[str, str]) -> User:
    return guard.check(FakeCall(metadata), metadata)


# ---- signatures ----


def test_signature() -> None:
    # HMAC-SHA1 of RFC 2202, case 2.
    assert signature(b"Jefe", "what do ya want for nothing?") == (
        "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"
    )


@pytest.mark.parametrize(
    "credential", ["billing", "billing//Rocketmq", "billing/cn-hangzhou/RocketMQ"]
)
@pytest.mark.parametrize("upper", [False, True])
def test_header_of_every_sdk(file: Path, credential: str, upper: bool) -> None:
    given = signature(SECRET.encode(), DATE)
    header = (
        f"MQv2-HMAC-SHA1 Credential={credential}, SignedHeaders=x-mq-date-time, "
        f"Signature={given.upper() if upper else given}"
    )
    assert check(authentication(file), signed(authorization=header)).name == "billing"


@pytest.mark.parametrize(
    "date", ["2026-11-21T14:15:00.123456789+08:00", "20261121T141500Z", "no date at all"]
)
def test_date_is_signed_but_not_checked(file: Path, date: str) -> None:
    assert check(authentication(file), signed(date=date)).name == "billing"


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"authorization": ""},
        signed(authorization=""),
        signed(authorization="Basic YmlsbGluZzp4"),
        # The Python SDK without credentials.
        signed(authorization="MQv2-HMAC-SHA1 Credential=, SignedHeaders=x, Signature="),
        signed(authorization="MQv2-HMAC-SHA1"),
        signed(authorization="MQv2-HMAC-SHA1 Credential=billing"),
        signed(authorization="MQv2-HMAC-SHA1 Credential=billing, Signature=ß\udce9"),
        signed(name="nobody"),
        signed(name="gone"),
        signed(secret="wrong"),
        signed(secret=""),
        signed(**{"x-mq-date-time": "another time"}),
        signed(**{"x-mq-date-time": ""}),
    ],
)
def test_bad_signatures_are_refused(file: Path, metadata: dict[str, str]) -> None:
    with pytest.raises(Refused) as caught:
        check(authentication(file), metadata)
    assert caught.value.code == Code.UNAUTHORIZED
    assert SECRET not in caught.value.message


def test_unknown_name_and_wrong_secret_have_the_same_answer(file: Path) -> None:
    answers = []
    for metadata in (signed(name="a"), signed(name="gone"), signed(secret="wrong")):
        with pytest.raises(Refused) as caught:
            check(authentication(file), metadata)
        answers.append(caught.value.message.split("'", 2)[2])
    assert len(set(answers)) == 1


def test_fields_of_the_header() -> None:
    assert parse("MQv2-HMAC-SHA1 Credential=a , SignedHeaders=x=y,Signature=1") == {
        "credential": "a",
        "signedheaders": "x=y",
        "signature": "1",
    }
    assert parse("MQv2-HMAC-SHA1 " + "x" * 100_000).keys() == {"x" * 1_009}


def test_refusals_are_counted_and_their_log_is_throttled(file: Path) -> None:
    clock, counts = ManualClock(), ProxyCounts()
    guard = Authentication(Users(file), counts, clock)
    with structlog.testing.capture_logs() as logs:
        for _ in range(100):
            with pytest.raises(Refused):
                check(guard, signed(secret="wrong"))
        clock.advance(DEFAULT_EVERY_MS)
        with pytest.raises(Refused):
            check(guard, signed(secret="wrong"))
    assert counts.unauthorized == 101
    refused = [line for line in logs if line["event"] == "call_refused"]
    logged = [(line["refused"], line["peer"]) for line in refused]
    assert logged == [(1, PEER), (101, PEER)]


def test_guesses_of_an_address_are_answered_late(file: Path) -> None:
    """Calls without a signature guess nothing, and a right one is never late."""
    guard = authentication(file)
    calls = [FakeCall(signed(secret="wrong")) for _ in range(FAILURES - 1)]
    calls += [FakeCall(signed(name="nobody")), FakeCall(signed(name="gone")), FakeCall({})]
    for call in calls:
        with pytest.raises(Refused):
            guard.check(call, call.metadata)
    assert [call.delays for call in calls] == [[]] * FAILURES + [[DELAY_S], []]
    right = FakeCall(signed())
    assert guard.check(right, right.metadata).name == "billing" and not right.delays


@pytest.mark.parametrize(
    ("peer", "tls", "counts"),
    [
        ("192.0.2.1:5123", True, True),
        ("192.0.2.1:5123", False, False),
        ("[2001:db8::1]:5123", False, False),
        ("127.0.0.1:5123", False, True),
        ("[::1]:5123", False, True),
        ("unix", False, True),
    ],
)
def test_signature_off_loopback_counts_over_tls_only(
    file: Path, peer: str, tls: bool, counts: bool
) -> None:
    call = FakeCall(signed())
    call.peer, call.is_encrypted = peer, tls
    if counts:
        assert authentication(file).check(call, call.metadata).name == "billing"
        return
    with pytest.raises(Refused, match="authenticationRequireTls") as caught:
        authentication(file).check(call, call.metadata)
    assert caught.value.code == Code.UNAUTHORIZED
    anyway = Authentication(Users(file), ProxyCounts(), ManualClock(), requires_tls=False)
    assert anyway.check(call, call.metadata).name == "billing"


def test_verified_signature_counts_only_for_the_present_user(tmp_path: Path) -> None:
    path = write_users(tmp_path / "users.json", BILLING, DISABLED)
    users = Users(path)
    guard = Authentication(users, ProxyCounts(), ManualClock())
    call = FakeCall(signed())
    assert guard.check(call, call.metadata) is guard.check(call, call.metadata)
    for changed in ({**BILLING, "userStatus": "disable"}, {**BILLING, "password": "another"}):
        write_users(path, changed)
        assert users.refresh()
        with pytest.raises(Refused):
            guard.check(call, call.metadata)
    write_users(path, BILLING)
    assert users.refresh() and guard.check(call, call.metadata).name == "billing"


def test_memory_of_verified_signatures_is_bounded(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_VERIFIED", 3)
    guard = authentication(file)
    for number in range(10):
        check(guard, signed(date=f"{number}"))
        check(guard, signed(date="x" * LONGEST_HEADER))
        assert len(guard._verified) <= 3
    assert all(len(date) == 1 for _, date in guard._verified)


# ---- every RPC ----


def guarded(file: Path) -> Proxy:
    return Cluster().proxy(authentication_enabled=True, authentication_users_file=str(file))


async def first_status(proxy: Proxy, method: Any, metadata: dict[str, str]) -> Any:
    """The status of an empty request."""
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in method.name).lstrip("_")
    handler = getattr(proxy.rpcs, name)
    call = FakeCall(metadata=metadata)
    if method.client_streaming:
        requests = Requests()
        requests.end()
        with suppress(NotAdmitted):
            await handler(aiter(requests), call)
    elif method.server_streaming:
        await streamed(handler, s.ReceiveMessageRequest(), call)
    else:
        return (await handler(getattr(s, method.input_type.name)(), call)).status
    return call.written[0].status if call.written else None


@pytest.mark.parametrize("method", list(METHODS), ids=lambda method: method.name)
async def test_every_rpc_authenticates(file: Path, method: Any) -> None:
    proxy = guarded(file)
    for metadata in (signed(secret="wrong"), {"x-mq-client-id": CLIENT_ID}, {}):
        found = await first_status(proxy, method, metadata)
        assert found.code == Code.UNAUTHORIZED
    assert not len(proxy.sessions), "strangers leave nothing behind"
    found = await first_status(proxy, method, signed())
    assert found is None or found.code != Code.UNAUTHORIZED


async def test_stream_of_a_removed_user_ends(file: Path) -> None:
    proxy = guarded(file)
    requests, call = Requests(), FakeCall(metadata=signed())
    write_users(file, {"username": "other", "password": SECRET})
    assert isinstance(proxy.users, Users)
    proxy.users.refresh()
    requests.put(s.TelemetryCommand())
    with pytest.raises(NotAdmitted):
        await proxy.rpcs.telemetry(aiter(requests), call)
    assert call.written[-1].status.code == Code.UNAUTHORIZED


def test_file_is_not_read_without_authentication(tmp_path: Path) -> None:
    assert Cluster().proxy(authentication_users_file=str(tmp_path / "no")).authentication is None
