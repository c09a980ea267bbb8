"""Bodies of messages, compressed and decompressed."""

from __future__ import annotations

import gzip
import io
import sys
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from aerobee_wire.compression import (
    LZ4,
    SYS_FLAGS,
    ZLIB,
    ZSTD,
    check_method,
    compress,
    compression_bits,
    decompress,
    decompress_start,
)
from aerobee_wire.record import COMPRESSED
from aerobee_wire.status import Code
from support.codes import raises_code

BODY = b"flight " * 1_000
METHODS = tuple(SYS_FLAGS)


def by_stream(body: bytes) -> bytes:
    """As Java's ZstdOutputStream: without the size of the content in the frame's header."""
    out = io.BytesIO()
    with zstandard.ZstdCompressor().stream_writer(out, closefd=False) as stream:
        stream.write(body)
    return out.getvalue()


def test_the_bits_are_those_of_rocketmq() -> None:
    assert SYS_FLAGS == {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
    assert [compression_bits(flag) for flag in (0, 0x300, 1 | 8, 0x301 | 0x30)] == [0, 0, 1, 0x301]


@given(body=st.binary(min_size=1, max_size=9_000), method=st.sampled_from(METHODS))
def test_what_is_compressed_is_read_again(body: bytes, method: str) -> None:
    packed = compress(body, method, 5)
    assert decompress(packed, SYS_FLAGS[method], len(body)) == body
    assert decompress_start(packed, SYS_FLAGS[method], len(body) + 1) == (body, True)


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (BODY, 0),
        (zlib.compress(BODY), COMPRESSED),
        (gzip.compress(BODY, mtime=0), COMPRESSED),
        (lz4.frame.compress(BODY, store_size=False, block_linked=False), SYS_FLAGS[LZ4]),
        (by_stream(BODY), SYS_FLAGS[ZSTD]),
    ],
    ids=["plain", "zlib by flag", "gzip", "lz4 without size", "zstd without size"],
)
def test_bodies_of_other_clients_are_read(body: bytes, sys_flag: int) -> None:
    assert decompress(body, sys_flag) == BODY


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("damage", ["no compressed body", "cut", "changed"])
def test_a_damaged_body_is_refused(method: str, damage: str) -> None:
    packed = compress(BODY, method, 5)
    damaged = {
        "no compressed body": b"plain",
        "cut": packed[:-3],
        "changed": packed[:3] + bytes([packed[3] ^ 0x55]) + packed[4:],
    }[damage]
    with raises_code(Code.MESSAGE_ILLEGAL):
        decompress(damaged, SYS_FLAGS[method])


def test_an_unknown_method_is_refused() -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        decompress(BODY, 0x501)


@pytest.mark.parametrize("method", METHODS)
def test_a_bomb_is_refused(method: str) -> None:
    packed = compress(BODY, method, 5)
    assert decompress(packed, SYS_FLAGS[method], len(BODY)) == BODY
    with raises_code(Code.MESSAGE_ILLEGAL):
        decompress(packed, SYS_FLAGS[method], len(BODY) - 1)
    with raises_code(Code.MESSAGE_ILLEGAL):
        decompress(by_stream(BODY), SYS_FLAGS[ZSTD], len(BODY) - 1)


@pytest.mark.parametrize("method", METHODS)
def test_the_start_of_a_cut_body_is_read(method: str) -> None:
    body = b"".join(b"%d " % number for number in range(100_000))
    packed = compress(body, method, 5)
    start, is_whole = decompress_start(packed[: 100 * 1024], SYS_FLAGS[method], 500)
    assert (start, is_whole) == (body[:500], False)
    start, is_whole = decompress_start(packed, SYS_FLAGS[method], 500)
    assert (start, is_whole) == (body[:500], False)


@pytest.mark.parametrize(("method", "package"), [(LZ4, "lz4.frame"), (ZSTD, "zstandard")])
def test_without_the_extra_the_error_names_it(
    method: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = compress(BODY, method, 5)
    monkeypatch.setitem(sys.modules, package, None)
    with raises_code(Code.MESSAGE_ILLEGAL) as reading:
        decompress(packed, SYS_FLAGS[method])
    with raises_code(Code.INVALID_PARAMETER) as sending:
        check_method(method)
    for error in (reading.value, sending.value):
        assert "aerobee-client[compression]" in error.message
    check_method(ZLIB)
    assert decompress(zlib.compress(BODY), COMPRESSED) == BODY
