"""Recall handles: RocketMQ's form, round trip; anything else is refused."""

from __future__ import annotations

import base64

import pytest

from aerobee_wire.handles.recall_handle import RecallHandle, decode, encode
from aerobee_wire.status import Code
from support.codes import raises_code

HANDLE = RecallHandle("orders", "broker-a", 1_700_000_060_000, "01ABCD")


def text(plain: bytes) -> str:
    return base64.urlsafe_b64encode(plain).decode()


def test_encoding_is_rocketmqs() -> None:
    assert encode(HANDLE) == text(b"v1 orders broker-a 1700000060001 01ABCD")


@pytest.mark.parametrize(
    "handle",
    [
        HANDLE,
        RecallHandle("%RETRY%g", "a broker with spaces", 1, "é 2 x"),
        RecallHandle("t", "b", 0, "???>>>"),
    ],
)
def test_decode_returns_what_was_encoded(handle: RecallHandle) -> None:
    assert decode(encode(handle)) == handle
    assert decode(encode(handle).rstrip("=")) == handle, "clients may strip the padding"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "no base64!",
        text(b"v2 orders broker-a 1700000060001 01ABCD"),
        text(b"v1 orders broker-a 01ABCD"),
        text(b"v1 orders broker-a soon 01ABCD"),
        text(b"v1 orders broker-a 1700000060001 "),
        text(b"v1 orders broker-a " + b"9" * 19 + b" 01ABCD"),
        text(b"\xff\xfe"),
        text(b"v1 orders broker-a 1700000060001 " + b"x" * 4_096),
    ],
)
def test_any_other_text_is_refused(wrong: str) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        decode(wrong)
