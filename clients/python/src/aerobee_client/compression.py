"""Decompressing bodies that another client compressed. Pure. The producers of this client never
compress.
"""

from __future__ import annotations

import zlib

from aerobee_wire.record import COMPRESSED
from aerobee_wire.status import Code, MqError

# By bits 8 to 10 of the sys flag. 0: of clients that knew only zlib.
_KINDS = {0: "zlib", 1: "LZ4", 2: "Zstandard", 3: "zlib"}
_ZLIB_OR_GZIP = 47  # wbits of zlib: either, by its header; the SDKs of RocketMQ 5 write gzip
MAX_BODY_BYTES = 64 * 1024 * 1024  # against small bodies that would decompress to gigabytes


def decompressed(body: bytes, sys_flag: int) -> bytes:
    """The body as it was given to the producer.

    Raises MESSAGE_ILLEGAL: compressed by another method, damaged, or over 64 MiB.
    """
    if not sys_flag & COMPRESSED:
        return body
    kind = _KINDS.get(sys_flag >> 8 & 7, "an unknown kind")
    if kind != "zlib":
        raise MqError(
            Code.MESSAGE_ILLEGAL,
            f"the body is compressed by {kind}, which this client cannot read: use stored_body",
        )
    reader = zlib.decompressobj(_ZLIB_OR_GZIP)
    try:
        whole = reader.decompress(body, MAX_BODY_BYTES)
    except zlib.error as error:
        raise MqError(
            Code.MESSAGE_ILLEGAL, f"the body is marked as compressed and is not: {error}"
        ) from None
    if not reader.eof:
        raise MqError(
            Code.MESSAGE_ILLEGAL,
            f"the compressed body ends too early or holds over {MAX_BODY_BYTES} bytes: use "
            "stored_body",
        )
    return whole
