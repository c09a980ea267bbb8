"""Signatures of calls: what they cover, how long they count, and that each counts once."""

from __future__ import annotations

import hmac
import random
import tracemalloc
from dataclasses import replace

import pytest

from aerobee_wire.access import signature
from aerobee_wire.access.signature import (
    ALWAYS_COVERED,
    REPEATED_MS,
    SCHEME,
    UNCOVERED,
    VALID_MS,
    WINDOW,
    NotAuthenticated,
    Signatures,
    Signed,
    Signer,
)
from aerobee_wire.access.users import User
from aerobee_wire.status import Code
from support.codes import raises_code

PATH, REQUEST = "/aerobee.broker.v1.MessageService/Send", b"a request"
LARGE = bytes(ALWAYS_COVERED + 1)
BILLING = User("billing", (b"new", b"former"))


class Service:
    """A server and the wall clock that it shares with its clients."""

    def __init__(self, *users: User) -> None:
        self.users = {user.name: user for user in users or (BILLING,)}
        self.now_ms = 10_000_000
        self.monotonic_ms = 5_000
        self.signatures = Signatures(self.users.get, lambda: self.now_ms, lambda: self.monotonic_ms)

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        self.monotonic_ms += ms

    def signer(
        self,
        name: str = "billing",
        secret: bytes = b"new",
        late_ms: int = 0,
        *,
        over_tls: bool = False,
    ) -> Signer:
        return Signer(name, lambda: secret, lambda: self.now_ms - late_ms, over_tls=over_tls)

    def check(self, header: str, path: str = PATH) -> Signed | None:
        return self.signatures.check(header, path)


@pytest.mark.parametrize("secret", [b"new", b"s" * 64, b"s" * 65, b"s" * 1_000])
def test_a_signature_is_the_hmac_of_path_and_fields(secret: bytes) -> None:
    header = Service().signer(secret=secret).sign(PATH, REQUEST)
    fields, _, given = header.removeprefix(f"{SCHEME} ").rpartition(" ")
    text = f"{SCHEME} {PATH} {fields}".encode()
    assert given == hmac.digest(secret, text, "sha256").hex()


def test_a_signature_names_its_user_and_covers_the_request() -> None:
    service = Service()
    signed = service.check(service.signer().sign(PATH, REQUEST))
    assert signed is not None and signed.user is BILLING
    assert signed.covers(REQUEST) and not signed.covers(b"another request")
    assert "new" not in repr(signed)


@pytest.mark.parametrize(
    ("size", "over_tls", "covered"),
    [
        (ALWAYS_COVERED, True, True),
        (ALWAYS_COVERED + 1, True, False),
        (ALWAYS_COVERED + 1, False, True),
    ],
)
def test_a_large_request_over_tls_is_left_to_tls(size: int, over_tls: bool, covered: bool) -> None:
    service = Service()
    signed = service.check(service.signer(over_tls=over_tls).sign(PATH, bytes(size)))
    assert signed is not None and signed.covers(bytes(size))
    assert signed.needs_tls is not covered
    assert signed.covers(bytes(size - 1) + b"x") is not covered
    assert signed.covers(bytes(ALWAYS_COVERED)) is (size == ALWAYS_COVERED)


def test_a_digest_cannot_be_dropped() -> None:
    """A relay cannot turn a covered request into one that is not covered."""
    service = Service()
    header = service.signer(over_tls=True).sign(PATH, REQUEST)
    fields = header.split(" ")
    fields[-2] = UNCOVERED
    with pytest.raises(NotAuthenticated):
        service.check(" ".join(fields))


@pytest.mark.parametrize("secret", [b"new", b"former"])
def test_each_secret_of_a_user_counts(secret: bytes) -> None:
    service = Service()
    signed = service.check(service.signer(secret=secret).sign(PATH))
    assert signed is not None and signed.secret == secret


def test_a_name_may_have_characters_outside_of_ascii() -> None:
    service = Service(User("Müller" * 20, (b"s",)))
    header = service.signer("Müller" * 20, b"s").sign(PATH)
    assert header.isascii() and service.check(header) is not None


@pytest.mark.parametrize("header", ["", "MQv2-HMAC-SHA1 Credential=billing", "Bearer x"])
def test_other_schemes_name_no_user(header: str) -> None:
    assert Service().check(header) is None


def test_wrong_secret_unknown_and_disabled_users_are_answered_alike() -> None:
    service = Service(BILLING, replace(BILLING, name="gone", enabled=False))
    texts = set()
    for name, secret in (("billing", b"wrong"), ("stranger", b"new"), ("gone", b"new")):
        with pytest.raises(NotAuthenticated) as caught:
            service.check(service.signer(name, secret).sign(PATH))
        assert caught.value.code is Code.NO_PERMISSION and caught.value.about == "authorization"
        texts.add(caught.value.message.replace(name, "NAME"))
    assert len(texts) == 1


def test_a_signature_counts_once() -> None:
    service = Service()
    header = service.signer().sign(PATH, REQUEST)
    service.check(header)
    with pytest.raises(NotAuthenticated, match="used before"):
        service.check(header)


def test_a_signature_of_large_requests_over_tls_counts_again() -> None:
    service = Service()
    signer = service.signer(over_tls=True)
    header = signer.sign(PATH, LARGE)
    assert signer.sign(PATH, LARGE + b"x") == header
    assert service.check(header) is service.check(header) is not None
    others = {signer.sign(f"{PATH}Other", LARGE), signer.sign(PATH), signer.sign(PATH)}
    assert len(others | {header}) == 4
    service.now_ms += REPEATED_MS
    later = signer.sign(PATH, LARGE)
    assert later != header
    assert service.check(later) is not None
    assert service.check(header) is not None, "a call may be overtaken"
    service.now_ms += VALID_MS - REPEATED_MS + 1
    with pytest.raises(NotAuthenticated, match="s ago"):
        service.check(header)


def test_a_signature_that_counts_again_does_not_outlive_its_user_or_secret() -> None:
    service = Service()
    header = service.signer(over_tls=True).sign(PATH, LARGE)
    service.check(header)
    service.users["billing"] = replace(BILLING, super=True)
    signed = service.check(header)
    assert signed is not None and signed.user.super
    service.users["billing"] = replace(BILLING, secrets=(b"another",))
    with pytest.raises(NotAuthenticated, match="secret key is wrong"):
        service.check(header)
    service.users["billing"] = replace(BILLING, enabled=False)
    with pytest.raises(NotAuthenticated, match="disabled"):
        service.check(header)


def test_a_new_secret_or_a_clock_that_goes_back_ends_a_repeated_signature() -> None:
    now_ms, secret = 1_000_000, b"new"
    signer = Signer("billing", lambda: secret, lambda: now_ms, over_tls=True)
    first = signer.sign(PATH, LARGE)
    secret = b"newer"
    second = signer.sign(PATH, LARGE)
    now_ms -= 1
    assert len({first, second, signer.sign(PATH, LARGE)}) == 3


def test_a_signature_counts_on_one_path() -> None:
    service = Service()
    with pytest.raises(NotAuthenticated):
        service.check(service.signer().sign(PATH), "/aerobee.broker.v1.AdminService/DeleteTopic")


@pytest.mark.parametrize("late_ms", [VALID_MS + 1, -VALID_MS - 1])
def test_a_signature_counts_for_30_seconds(late_ms: int) -> None:
    service = Service()
    assert service.check(service.signer(late_ms=late_ms // 2).sign(PATH)) is not None
    with pytest.raises(NotAuthenticated, match="clock"):
        service.check(service.signer(late_ms=late_ms).sign(PATH))


def test_each_changed_field_is_noticed() -> None:
    service = Service()
    parts = service.signer().sign(PATH, REQUEST).split(" ")
    for index in range(1, len(parts)):
        changed = [*parts]
        last = "1" if changed[index][-1] != "1" else "2"
        changed[index] = changed[index][:-1] + last
        with pytest.raises(NotAuthenticated):
            service.check(" ".join(changed))
    assert service.check(" ".join(parts)) is not None


@pytest.mark.parametrize(
    "fields",
    ["", "a", "a/b 1 2 3", "a/b x 2 d s", "a/b 1 -2 d s", "a/b 1 ² d s", "a/b 1 2 d s more"],
)
def test_a_malformed_header_is_rejected(fields: str) -> None:
    with raises_code(Code.NO_PERMISSION, "authorization"):
        Service().check(f"{SCHEME} {fields}")


def test_a_long_header_is_rejected_before_its_fields_are_separated() -> None:
    """A frame of a stream has a longer one than gRPC's headers."""
    header = f"{SCHEME} " + " " * 1_000_000
    tracemalloc.start()
    try:
        with pytest.raises(NotAuthenticated, match="malformed"):
            Service().check(header)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4_000_000


def test_calls_may_overtake_each_other() -> None:
    """Each counter of a window is taken once, in any order."""
    service, signer = Service(), Service().signer()
    headers = [signer.sign(PATH) for _ in range(WINDOW // 8)]
    rng = random.Random(7)
    rng.shuffle(headers)
    for header in headers:
        assert service.check(header) is not None
    for header in headers:
        with pytest.raises(NotAuthenticated):
            service.check(header)


def test_a_call_that_is_a_window_late_is_rejected() -> None:
    service = Service()
    signer = service.signer()
    late = signer.sign(PATH)
    for _ in range(WINDOW):
        last = signer.sign(PATH)
    service.check(last)
    with pytest.raises(NotAuthenticated):
        service.check(late)


def test_sessions_are_forgotten_when_their_signatures_are_too_old() -> None:
    service = Service()
    old = service.signer().sign(PATH)
    service.check(old)
    service.advance(2 * VALID_MS + 1)
    service.check(service.signer().sign(PATH))
    assert len(service.signatures._sessions) == 1
    with pytest.raises(NotAuthenticated):
        service.check(old)


def test_the_sessions_of_a_user_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signature, "MAX_SESSIONS", 3)
    service = Service(BILLING, User("other", (b"new",)))
    for _ in range(3):
        service.check(service.signer().sign(PATH))
    with raises_code(Code.SYSTEM_BUSY):
        service.check(service.signer().sign(PATH))
    assert service.check(service.signer("other").sign(PATH)) is not None
    service.advance(2 * VALID_MS + 1)
    assert service.check(service.signer().sign(PATH)) is not None


@pytest.mark.parametrize("step_ms", [10 * VALID_MS, 10_000 * VALID_MS])
def test_a_step_of_the_clock_and_back_does_not_let_a_signature_count_twice(step_ms: int) -> None:
    service = Service()
    signer = service.signer()
    used = [signer.sign(PATH) for _ in range(3)]
    for header in used:
        service.check(header)
    service.now_ms += step_ms
    service.advance(VALID_MS + 1)
    service.check(service.signer().sign(PATH))  # ends sessions whose signatures are too old
    service.now_ms -= step_ms + VALID_MS
    for _ in range(2):
        for header in used:
            with pytest.raises(NotAuthenticated, match="used before"):
                service.check(header)
        assert service.check(signer.sign(PATH)) is not None, "the session goes on"


def test_a_clock_that_is_set_back_does_not_keep_sessions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signature, "MAX_SESSIONS", 3)
    service = Service()
    for _ in range(9):
        service.now_ms -= VALID_MS * 3
        for _ in range(3):
            assert service.check(service.signer().sign(PATH)) is not None
        service.advance(2 * VALID_MS + 1)


def test_ended_sessions_are_bounded_and_do_not_count_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that does not know which sessions ended refuses their time."""
    monkeypatch.setattr(signature, "MAX_ENDED", 3)
    service = Service()
    used = [service.signer().sign(PATH) for _ in range(5)]
    for header in used:
        service.check(header)
    service.advance(2 * VALID_MS + 1)
    assert service.check(service.signer().sign(PATH)) is not None
    assert len(service.signatures._ended) == 3
    service.now_ms -= 2 * VALID_MS + 1
    for header in used:
        with pytest.raises(NotAuthenticated):
            service.check(header)
    with pytest.raises(NotAuthenticated, match="restart the server"):
        service.check(service.signer().sign(PATH))
    service.advance(1_000)
    assert service.check(service.signer().sign(PATH)) is not None


def test_a_running_call_ends_with_its_user_or_its_secret() -> None:
    service = Service()
    signed = service.check(service.signer(secret=b"former").sign(PATH))
    assert signed is not None
    changed = replace(BILLING, super=True)
    service.users["billing"] = changed
    assert service.signatures.renewed(signed).user is changed
    for user in (replace(BILLING, enabled=False), replace(BILLING, secrets=(b"new",))):
        service.users["billing"] = user
        with pytest.raises(NotAuthenticated):
            service.signatures.renewed(signed)
    del service.users["billing"]
    with pytest.raises(NotAuthenticated):
        service.signatures.renewed(signed)
