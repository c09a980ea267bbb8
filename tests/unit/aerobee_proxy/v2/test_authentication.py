"""Authentication: the file of users, the signature, and every RPC."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog
from apache.rocketmq.v2 import service_pb2 as s
from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError
from aerobee_proxy.access.users import Users
from aerobee_proxy.cluster.log_throttle import EVERY_MS
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.authentication import Authentication, parse, signature
from aerobee_proxy.v2.status import Refused
from support.clock.manual_clock import ManualClock
from support.proxy.harness import CLIENT_ID, Cluster, FakeCall, Requests

DATE = "20261121T141500Z"
SECRET = "s3cret, with = and /"
PEER = "192.0.2.1:5123"
METHODS = s.DESCRIPTOR.services_by_name["MessagingService"].methods


def write(path: Path, *users: dict[str, str]) -> Path:
    path.write_text(json.dumps({"users": users}))
    path.chmod(0o600)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(
        tmp_path / "users.json",
        {"username": "billing", "password": SECRET},
        {"username": "gone", "password": SECRET, "userStatus": "disable"},
    )


def signed(
    name: str = "billing", secret: str = SECRET, date: str = DATE, **change: str
) -> dict[str, str]:
    """The metadata of the Python SDK."""
    header = (
        f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, "
        f"Signature={signature(secret.encode(), date)}"
    )
    given = {"x-mq-client-id": CLIENT_ID, "x-mq-date-time": date, "authorization": header}
    return {**given, **change}


def authentication(file: Path) -> Authentication:
    return Authentication(Users(file), ProxyCounts(), ManualClock())


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
    assert authentication(file).check(signed(authorization=header), PEER).name == "billing"


@pytest.mark.parametrize(
    "date", ["2026-11-21T14:15:00.123456789+08:00", "20261121T141500Z", "no date at all"]
)
def test_date_is_signed_but_not_checked(file: Path, date: str) -> None:
    assert authentication(file).check(signed(date=date), PEER).name == "billing"


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
        authentication(file).check(metadata, PEER)
    assert caught.value.code == Code.UNAUTHORIZED
    assert SECRET not in caught.value.message


def test_unknown_name_and_wrong_secret_have_the_same_answer(file: Path) -> None:
    answers = []
    for metadata in (signed(name="a"), signed(name="gone"), signed(secret="wrong")):
        with pytest.raises(Refused) as caught:
            authentication(file).check(metadata, PEER)
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
                guard.check(signed(secret="wrong"), PEER)
        clock.advance(EVERY_MS)
        with pytest.raises(Refused):
            guard.check(signed(secret="wrong"), PEER)
    assert counts.unauthorized == 101
    assert [(line["event"], line["refused"], line["peer"]) for line in logs] == [
        ("call_refused", 1, PEER),
        ("call_refused", 101, PEER),
    ]


# ---- the file ----


def test_changed_users_are_reloaded(file: Path) -> None:
    guard = authentication(file)
    write(file, {"username": "billing", "password": "another"})
    guard.users.refresh()
    with pytest.raises(Refused):
        guard.check(signed(), PEER)
    assert guard.check(signed(secret="another"), PEER).name == "billing"


def test_broken_file_keeps_the_last_users(file: Path) -> None:
    guard = authentication(file)
    file.write_text('{"users": [')
    with structlog.testing.capture_logs() as logs:
        guard.users.refresh()
        guard.users.refresh()
        file.unlink()
        guard.users.refresh()
    assert [line["event"] for line in logs] == ["users_not_reloaded"]
    assert guard.check(signed(), PEER).name == "billing"
    write(file, {"username": "new", "password": SECRET})
    guard.users.refresh()
    assert guard.check(signed(name="new"), PEER).name == "new"


def test_file_without_users(file: Path) -> None:
    guard = authentication(write(file))
    with pytest.raises(Refused):
        guard.check(signed(), PEER)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_file_open_to_others_is_logged(file: Path, mode: int) -> None:
    with structlog.testing.capture_logs() as logs:
        Users(file)
    assert not logs
    file.chmod(mode)
    with structlog.testing.capture_logs() as logs:
        Users(file)
    assert [line["log_level"] for line in logs] == ["warning"] and "chmod 600" in logs[0]["advice"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not valid JSON, line 1"),
        ("[]", "must be like"),
        ('{"users": {}}', "must be like"),
        ('{"users": [1]}', "entry 1 of .* is no object"),
        ('{"users": [{"username": "a", "password": "p@ss", "x": 1}]}', "unknown key 'x'"),
        ('{"users": [{"password": "p@ss"}]}', "needs a username"),
        ('{"users": [{"username": "a/b", "password": "p@ss"}]}', "needs a username"),
        ('{"users": [{"username": "a", "password": ""}]}', "needs a password for 'a'"),
        ('{"users": [{"username": "a"}]}', "needs a password for 'a'"),
        (
            '{"users": [{"username": "a", "password": "p@ss", "userStatus": "off"}]}',
            "neither enable nor disable",
        ),
        (
            '{"users": [{"username": "a", "password": "p@ss", "userType": "ROOT"}]}',
            "neither NORMAL nor SUPER",
        ),
        (
            '{"users": [{"username": "a", "password": "p@ss"}, '
            '{"username": "a", "password": "p@ss"}]}',
            "entry 2 of .* is taken",
        ),
    ],
)
def test_mistake_in_the_file_is_named_without_a_secret(
    tmp_path: Path, text: str, problem: str
) -> None:
    file = tmp_path / "users.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        Users(file)
    assert "p@ss" not in str(caught.value) and str(file) in str(caught.value)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the file of users"):
        Users(tmp_path / "users.json")


def test_authentication_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="authenticationUsersFile"):
        load(ProxyOptions, sets=["authenticationEnabled=true"])


def test_repr_of_a_user_has_no_secret(file: Path) -> None:
    assert "s3cret" not in repr(Users(file).get("billing"))


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
        await handler(aiter(requests), call)
    elif method.server_streaming:
        await handler(s.ReceiveMessageRequest(), call)
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
    write(file, {"username": "other", "password": SECRET})
    assert proxy.authentication is not None
    proxy.authentication.users.refresh()
    requests.put(s.TelemetryCommand())
    await proxy.rpcs.telemetry(aiter(requests), call)
    assert call.written[-1].status.code == Code.UNAUTHORIZED


def test_file_is_not_read_without_authentication(tmp_path: Path) -> None:
    assert Cluster().proxy(authentication_users_file=str(tmp_path / "no")).authentication is None


def test_reload_ignores_a_changed_working_directory(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guard = authentication(Path(file.name))
    monkeypatch.chdir(os.sep)
    write(file, {"username": "new", "password": SECRET})
    guard.users.refresh()
    assert guard.check(signed(name="new"), PEER).name == "new"
