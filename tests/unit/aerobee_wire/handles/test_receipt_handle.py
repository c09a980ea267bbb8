"""Receipt handles: round trip, a vector, and refusal of all that `encode` did not write."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aerobee_wire.handles.receipt_handle import (
    MAX_CHARACTERS,
    MAX_TIME_MS,
    ReceiptHandle,
    decode,
    decode_common,
    encode,
    split,
)
from aerobee_wire.status import Code
from support.codes import raises_code

HANDLE = ReceiptHandle(
    broker_name="broker-a",
    topic="orders",
    consumer_group="billing",
    queue_id=3,
    queue_offset=1_234_567,
    lease_id=42,
    pop_time_ms=1_700_000_000_000,
    invisible_duration_ms=60_000,
    delivery_attempt=2,
    of_retry_topic=True,
)
TEXT = "AgEAAgAAAAMAAAAAABLWhwAAAAAAAAAqAAABi8_laAAAAOpgCGJyb2tlci1hBm9yZGVycwdiaWxsaW5n0Pc5lw"

utf8_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
handles = st.builds(
    ReceiptHandle,
    broker_name=utf8_names,
    topic=utf8_names,
    consumer_group=utf8_names,
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**63 - 1),
    lease_id=st.integers(0, 2**63 - 1),
    pop_time_ms=st.integers(0, MAX_TIME_MS),
    invisible_duration_ms=st.integers(0, 43_200_000),
    delivery_attempt=st.integers(1, 0xFFFF),
    of_retry_topic=st.booleans(),
    fifo=st.booleans(),
)


def assert_refused(text: str) -> None:
    with raises_code(Code.INVALID_RECEIPT_HANDLE):
        decode(text)


@given(handles)
def test_decode_returns_what_was_encoded(handle: ReceiptHandle) -> None:
    text = encode(handle)
    assert decode(text) == handle
    assert len(text) <= MAX_CHARACTERS
    assert text.isascii() and text.isprintable() and "=" not in text and " " not in text


@pytest.mark.parametrize(
    "change",
    [
        {"queue_id": -1},
        {"queue_offset": -1},
        {"lease_id": -1},
        {"pop_time_ms": -1},
        {"pop_time_ms": MAX_TIME_MS + 1},
        {"invisible_duration_ms": -1},
    ],
)
def test_impossible_numbers_are_refused(change: dict[str, int]) -> None:
    handle = HANDLE._replace(**change)  # type: ignore[arg-type]
    assert_refused(encode(handle))


def test_encoding_is_stable() -> None:
    """A handle that an older proxy gave out stays valid."""
    assert encode(HANDLE) == TEXT
    assert decode(TEXT) == HANDLE


def test_expiry_is_pop_time_plus_duration() -> None:
    assert HANDLE.expires_ms == 1_700_000_060_000


def test_delivery_attempt_is_capped() -> None:
    many = ReceiptHandle("b", "t", "g", 0, 0, 1, 0, 1, delivery_attempt=100_000)
    assert decode(encode(many)).delivery_attempt == 0xFFFF


@given(handles, st.data())
def test_every_flipped_bit_is_refused(handle: ReceiptHandle, data: st.DataObject) -> None:
    text = encode(handle)
    raw = bytearray(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))
    raw[bit // 8] ^= 1 << bit % 8
    assert_refused(base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


@given(handles, st.data())
def test_every_changed_character_is_refused(handle: ReceiptHandle, data: st.DataObject) -> None:
    text = encode(handle)
    position = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters(exclude_categories=["Cs"]))
    assume(character != text[position])
    assert_refused(text[:position] + character + text[position + 1 :])


@given(handles, st.data())
def test_every_truncation_is_refused(handle: ReceiptHandle, data: st.DataObject) -> None:
    text = encode(handle)
    assert_refused(text[: data.draw(st.integers(0, len(text) - 1))])


@given(handles, st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8))
def test_trailing_characters_are_refused(handle: ReceiptHandle, tail: str) -> None:
    assert_refused(encode(handle) + tail)


@given(st.one_of(st.text(), st.binary().map(lambda data: base64.urlsafe_b64encode(data).decode())))
def test_any_other_text_is_refused(text: str) -> None:
    assert_refused(text)


def with_checksum(payload: bytes) -> str:
    data = payload + zlib.crc32(payload).to_bytes(4, "big")
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def payload_of(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[:-4]


def test_other_version_is_refused() -> None:
    assert_refused(with_checksum(b"\x03" + payload_of(TEXT)[1:]))


def test_unknown_flags_are_refused() -> None:
    assert_refused(with_checksum(b"\x02\x04" + payload_of(TEXT)[2:]))


@pytest.mark.parametrize(
    "payload",
    [
        payload_of(TEXT)[:-1],  # the last name is cut off
        payload_of(TEXT) + b"x",  # something behind the last name
        payload_of(TEXT)[:-1] + b"\xff",  # not UTF-8
        payload_of(TEXT)[:36] + b"\xff\xff\xff",  # lengths that lead outside
    ],
)
def test_broken_names_are_refused(payload: bytes) -> None:
    assert_refused(with_checksum(payload))


def test_rocketmqs_own_form_is_refused() -> None:
    assert_refused("0 1700000000000 60000 3 0 broker-a 3 1234567 998877")


@pytest.mark.parametrize("text", ["", "A" * 100_000, " " + TEXT, TEXT + "\n", TEXT + "=="])
def test_empty_endless_and_padded_texts_are_refused(text: str) -> None:
    assert_refused(text)


@given(handles, st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1))
def test_split_separates_the_queue_offset(
    handle: ReceiptHandle, offset: int, queue_id: int
) -> None:
    common, own = split(encode(handle))
    assert own == handle.queue_offset
    assert decode_common(common) == handle._replace(queue_offset=0)
    assert split(encode(handle._replace(queue_offset=offset))) == (common, offset)
    other, _ = split(encode(handle._replace(queue_id=queue_id)))
    assert (other == common) == (queue_id == handle.queue_id)
