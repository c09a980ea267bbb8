"""Bodies that another client compressed."""

from __future__ import annotations

import gzip
import zlib

import pytest

from aerobee_client import compression
from aerobee_client.compression import decompressed
from aerobee_wire.record import COMPRESSED
from aerobee_wire.status import Code
from support.codes import raises_code

LZ4, ZSTD, ZLIB = (kind << 8 | COMPRESSED for kind in (1, 2, 3))
BODY = b"flight " * 1_000


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (BODY, 0),
        (zlib.compress(BODY), COMPRESSED),
        (zlib.compress(BODY), ZLIB),
        (gzip.compress(BODY), COMPRESSED),
    ],
    ids=["plain", "zlib by flag", "zlib by type", "gzip"],
)
def test_body_is_what_the_producer_gave(body: bytes, sys_flag: int) -> None:
    assert decompressed(body, sys_flag) == BODY


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [(b"x", LZ4), (b"x", ZSTD), (b"plain", ZLIB), (zlib.compress(BODY)[:-10], ZLIB)],
    ids=["LZ4", "Zstandard", "not compressed", "cut"],
)
def test_a_body_that_cannot_be_decompressed_is_refused(body: bytes, sys_flag: int) -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        decompressed(body, sys_flag)


def test_a_decompression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_BODY_BYTES", 1_000)
    with raises_code(Code.MESSAGE_ILLEGAL):
        decompressed(zlib.compress(BODY), ZLIB)
