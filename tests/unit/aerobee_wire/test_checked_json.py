"""JSON with a checksum: decoding returns what was written, or raises."""

from __future__ import annotations

import json

import pytest

from aerobee_wire.checked_json import decode, encode

CONTENT = {"offsetTable": {"t@g": {"0": 10, "1": 4_711}}, "größe": "1"}


def test_decode_returns_what_was_encoded() -> None:
    assert decode(encode(CONTENT)) == CONTENT
    assert decode(encode({})) == {}


def test_encoding_is_stable() -> None:
    assert encode({"number": 2}) == b'{"number":2}\n{"crc32":"e908fc39"}'


@pytest.mark.parametrize("indent", [None, 1])
def test_file_without_a_checksum_is_accepted(indent: int | None) -> None:
    assert decode(json.dumps(CONTENT, indent=indent).encode() + b"\n") == CONTENT


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" \n\n"])
def test_trailing_newline_is_ignored(end: bytes) -> None:
    assert decode(encode(CONTENT) + end) == CONTENT
    with pytest.raises(ValueError):
        decode(encode(CONTENT).replace(b"4711", b"4712") + end)


def test_every_flipped_bit_is_found() -> None:
    whole = encode(CONTENT)
    for bit in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            decode(bytes(damaged))


def test_every_truncation_within_the_object_is_found() -> None:
    whole = encode(CONTENT)
    object_end = whole.index(b"\n")
    for size in range(len(whole)):
        if size in (object_end, object_end + 1):
            assert decode(whole[:size]) == CONTENT
        else:
            with pytest.raises(ValueError):
                decode(whole[:size])


def test_a_file_changed_by_hand_is_read_without_its_checksum() -> None:
    line, _, checksum = encode({"number": 2}).partition(b"\n")
    with pytest.raises(ValueError):
        decode(line.replace(b"2", b"3") + b"\n" + checksum)
    assert decode(line.replace(b"2", b"3")) == {"number": 3}


def test_anything_but_an_object_is_refused() -> None:
    for data in (b"", b"[1]", b"\xff\xfe{}", b'{"a":1}\n{"b":2}', b'{"crc32":"00000000"}\n{}'):
        with pytest.raises(ValueError):
            decode(data)
