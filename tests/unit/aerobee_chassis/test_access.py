"""Rejected calls are logged once for each caller and RPC; rights are those of the present."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from aerobee.broker.v1 import admin_pb2

from aerobee_chassis.rpc import access
from aerobee_chassis.rpc.access import Access
from aerobee_chassis.rpc.audit import Who
from aerobee_wire.access.caller import ANYBODY, Caller
from aerobee_wire.access.signature import (
    ALWAYS_COVERED,
    UNCOVERED,
    NotAuthenticated,
    Signatures,
    Signed,
    Signer,
)
from aerobee_wire.access.users import User
from aerobee_wire.permissions import Permissions
from aerobee_wire.rpcs import DELETE_TOPIC, SEND
from aerobee_wire.status import Code
from support.codes import raises_code

CLIENT = "aerobee://prod/client/billing"


@dataclass
class PeerCall:
    peer: str
    certificate_uris: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    is_encrypted: bool = True
    caller: Caller = ANYBODY


def logged(*calls: tuple[str, PeerCall]) -> list[tuple[str, str]]:
    """Return the RPC and the peer of each log line."""
    checks = Access(Permissions("prod", "broker-a"), enforced=True, observe_only=True)
    with structlog.testing.capture_logs() as logs:
        for path, call in calls:
            admitted: Any = call
            checks.admit(path, admitted)
    assert checks.rejected == len(calls)
    return [(line["rpc"], line["peer"]) for line in logs]


def test_each_host_without_an_identity_is_logged_once() -> None:
    first, again = PeerCall("10.0.0.1:40000"), PeerCall("10.0.0.1:40001")
    others = PeerCall("10.0.0.2:40000"), PeerCall("[2001:db8::1]:40000"), PeerCall("unix")
    found = logged(*((SEND.path, call) for call in (first, again, *others, *others)))
    assert found == [(SEND.path, call.peer) for call in (first, *others)]


def test_identity_is_logged_once_from_all_hosts() -> None:
    first, again = (PeerCall(f"10.0.0.{host}:40000", (CLIENT,)) for host in (1, 2))
    assert logged((DELETE_TOPIC.path, first), (DELETE_TOPIC.path, again)) == [
        (DELETE_TOPIC.path, first.peer)
    ]


def test_call_in_plaintext_is_logged_although_it_is_allowed() -> None:
    """A port that enforces TLS would not get it."""
    permissions = Permissions("prod", "broker-a")
    checks = Access(permissions, enforced=True, observe_only=True, reports_plaintext=True)
    calls: list[Any] = [
        PeerCall("10.0.0.1:40000", (CLIENT,), is_encrypted=encrypted) for encrypted in (True, False)
    ]
    with structlog.testing.capture_logs() as logs:
        for call in calls:
            checks.admit(SEND.path, call)
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("call_would_be_rejected", "it does not use TLS")
    ]
    assert not checks.rejected


def test_memory_of_logged_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_MOST_LOGGED", 2)
    calls = [(SEND.path, PeerCall(f"10.0.0.{host}:1")) for host in (1, 2, 3, 3, 1)]
    assert [peer for _, peer in logged(*calls)] == [f"10.0.0.{host}:1" for host in (1, 2, 3, 1)]


@pytest.mark.parametrize(
    "now",
    [None, User("billing", (b"s3cret",), enabled=False), User("billing", (b"other",))],
    ids=["deleted", "disabled", "other-secret"],
)
def test_user_that_changed_after_the_headers_may_not_call(now: User | None) -> None:
    """The request of an admitted call may arrive half a minute after its headers."""
    user = User("billing", (b"s3cret",), super=True)
    users: dict[str, User | None] = {"billing": user}
    checks = Access(
        Permissions("prod", "broker-a"),
        enforced=True,
        signatures=Signatures(lambda name: users[name], lambda: 0, lambda: 0),
    )
    source = "10.0.0.1:4711"
    call: Any = PeerCall(source, caller=Caller(None, Signed(user, b"s3cret", ""), source))
    assert checks.renewed(SEND.path, call).user is user
    users["billing"] = now
    with pytest.raises(NotAuthenticated):
        checks.renewed(SEND.path, call)


@pytest.mark.parametrize(
    ("size", "encrypted", "allowed"),
    [
        (ALWAYS_COVERED + 1, True, True),
        (ALWAYS_COVERED + 1, False, False),
        (ALWAYS_COVERED, True, False),
    ],
)
def test_uncovered_request_must_be_large_and_come_over_tls(
    size: int, encrypted: bool, allowed: bool
) -> None:
    checks = Access(Permissions("prod", "broker-a"), enforced=True)
    signed = Signed(User("billing", (b"s3cret",), super=True), b"s3cret", UNCOVERED)
    call: Any = PeerCall("10.0.0.1:4711", is_encrypted=encrypted)
    caller = Caller(None, signed, call.peer)
    if allowed:
        checks.check_request(SEND.path, caller, bytes(size), call)
        return
    with pytest.raises(NotAuthenticated):
        checks.check_request(SEND.path, caller, bytes(size), call)


def test_rejected_user_is_audited_with_its_certificate() -> None:
    """The role of the certificate does not count beside a signature, but the line names it."""
    user = User("billing", (b"s3cret",))
    rejected: list[Who] = []

    class Log:
        def rejected(self, who: Who, path: str, result: str, reason: str) -> None:
            rejected.append(who)

    audit: Any = Log()
    signatures = Signatures({"billing": user}.get, lambda: 9_000, lambda: 0)
    permissions = Permissions("prod", "broker-a")
    checks = Access(permissions, enforced=True, signatures=signatures, audit=audit)
    header = Signer("billing", lambda: b"s3cret", lambda: 9_000).sign(DELETE_TOPIC.path)
    call: Any = PeerCall("10.0.0.1:4711", (CLIENT,), {"authorization": header})
    caller = checks.admit(DELETE_TOPIC.path, call)
    assert caller.user is user and caller.identity is None
    request = admin_pb2.DeleteTopicRequest(topic="orders")
    with raises_code(Code.NO_PERMISSION):
        checks.authorize(DELETE_TOPIC.path, caller, request, call)
    with raises_code(Code.NO_PERMISSION):
        checks.admit(DELETE_TOPIC.path, call)
    assert rejected == [
        Who("billing", "", CLIENT, call.peer),
        Who("", "billing", CLIENT, call.peer),
    ]
