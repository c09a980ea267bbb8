"""Compress and decompress message bodies: zlib, LZ4 and Zstandard, as in RocketMQ's clients.

Bit 0 of a record's sys flag says whether its body is compressed; bits 8 to 10 are the method. The
packages `lz4` and `zstandard` are optional. They are imported when a body first needs them.
"""

from __future__ import annotations

import io
import zlib
from importlib import import_module
from typing import Any

from aerobee_wire.record import COMPRESSED
from aerobee_wire.status import Code, MqError, invalid_parameter

COMPRESSION_MASK = 0x700  # bits of the sys flag for the method
MAX_BODY_BYTES = 64 * 1024 * 1024  # small bodies could decompress to gigabytes

ZLIB, LZ4, ZSTD = "zlib", "lz4", "zstd"
# The method for bits 8 to 10 of the sys flag. Clients that knew only zlib wrote 0. The SDKs of
# RocketMQ 5 also write 0; their protocol knows only gzip.
_METHODS = {0: ZLIB, 1: LZ4, 2: ZSTD, 3: ZLIB}
SYS_FLAGS = {
    ZLIB: COMPRESSED | 3 << 8,
    LZ4: COMPRESSED | 1 << 8,
    ZSTD: COMPRESSED | 2 << 8,
}
# The module of each method, and the package that provides it.
_MODULES = {LZ4: ("lz4.frame", "lz4"), ZSTD: ("zstandard", "zstandard")}

_ZLIB_OR_GZIP = 47  # wbits of zlib: either format, detected by its header


def compression_bits(sys_flag: int) -> int:
    """Return the compression bits of a sys flag, or 0 if the body is not compressed."""
    return sys_flag & (COMPRESSED | COMPRESSION_MASK) if sys_flag & COMPRESSED else 0


def check_method(method: str) -> None:
    """Check that a compression method can be used.

    Raises MqError with the code INVALID_PARAMETER if SYS_FLAGS does not contain `method`, or if the
    method's package is missing.
    """
    if method not in SYS_FLAGS:
        known = ", ".join(SYS_FLAGS)
        reason = f"compression is {method!r}: give one of {known}, or None"
        raise invalid_parameter(reason, about="compression")
    if method != ZLIB:
        try:
            import_module(_MODULES[method][0])
        except ImportError:
            raise invalid_parameter(_missing(method), about="compression") from None


def compress(body: bytes, method: str, level: int) -> bytes:
    """Return `body` compressed by `method`, which must pass `check_method`.

    LZ4 ignores the level, as in RocketMQ.
    """
    if method == ZLIB:
        return zlib.compress(body, level)
    module = import_module(_MODULES[method][0])
    packed: bytes
    if method == LZ4:
        packed = module.compress(body, content_checksum=True)
    else:
        packed = module.ZstdCompressor(level=level).compress(body)
    return packed


def decompress(body: bytes, sys_flag: int, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return the decompressed body, or `body` itself if it is not compressed.

    Raises MqError with the code MESSAGE_ILLEGAL if the method is unknown, its package is not
    installed, the body is damaged, or the result exceeds `max_bytes`.
    """
    if not sys_flag & COMPRESSED:
        return body
    method = _method(sys_flag)
    if method == ZSTD:
        return _zstd_whole(body, max_bytes)
    reader, failure = _reader(method)
    try:
        # Ask for one byte more. Otherwise, the end of a body of exactly `max_bytes` is not reached.
        whole: bytes = reader.decompress(body, max_bytes + 1)
    except failure as error:
        raise _damaged(method, error) from None
    if len(whole) > max_bytes:
        raise _too_large(max_bytes)
    if not reader.eof:
        raise _damaged(method, "it ends too early")
    return whole


def decompress_start(body: bytes, sys_flag: int, max_bytes: int) -> tuple[bytes, bool]:
    """Decompress the first `max_bytes` of a body. `body` may be only the beginning of it.

    Return the available bytes, and whether they are the whole body. Raises the same MqError as
    `decompress`.
    """
    method = _method(sys_flag)
    if method == ZSTD:
        zstd = _module(method)
        try:
            with zstd.ZstdDecompressor().stream_reader(io.BytesIO(body)) as stream:
                start: bytes = stream.read(max_bytes + 1)
        except zstd.ZstdError as error:
            raise _damaged(method, error) from None
        # Truncated input is not an error here: the output has everything that the input contains.
        size = zstd.get_frame_parameters(body).content_size
        return start[:max_bytes], len(start) <= max_bytes and len(start) == size
    reader, failure = _reader(method)
    try:
        start = reader.decompress(body, max_bytes)
    except failure as error:
        raise _damaged(method, error) from None
    return start, bool(reader.eof)


def _method(sys_flag: int) -> str:
    kind = (sys_flag & COMPRESSION_MASK) >> 8
    method = _METHODS.get(kind)
    if method is None:
        raise MqError(
            Code.MESSAGE_ILLEGAL,
            f"the body is compressed by method {kind}, which is none of RocketMQ's: take the body "
            "as it is stored",
        )
    return method


def _reader(method: str) -> tuple[Any, type[Exception]]:
    """Return a decompressor with zlib's interface, and the exception that it raises."""
    if method == ZLIB:
        return zlib.decompressobj(_ZLIB_OR_GZIP), zlib.error
    return _module(method).LZ4FrameDecompressor(), RuntimeError


def _zstd_whole(body: bytes, max_bytes: int) -> bytes:
    zstd = _module(ZSTD)
    try:
        size = zstd.get_frame_parameters(body).content_size
        if max_bytes < size < zstd.CONTENTSIZE_UNKNOWN:
            raise _too_large(max_bytes)
        unpacker = zstd.ZstdDecompressor()
        whole: bytes = unpacker.decompress(body, max_output_size=max_bytes, allow_extra_data=False)
    except zstd.ZstdError as error:
        raise _damaged(ZSTD, f"{error} (or it holds over {max_bytes} bytes)") from None
    return whole


def _module(method: str) -> Any:
    try:
        return import_module(_MODULES[method][0])
    except ImportError:
        raise MqError(
            Code.MESSAGE_ILLEGAL, f"{_missing(method)}, or take the body as it is stored"
        ) from None


def _missing(method: str) -> str:
    return (
        f"compression by {method} needs the package {_MODULES[method][1]}, which is not installed: "
        "pip install 'aerobee-client[compression]'"
    )


def _damaged(method: str, reason: object) -> MqError:
    return MqError(
        Code.MESSAGE_ILLEGAL,
        f"the body is marked as compressed by {method} and cannot be decompressed: {reason}; take "
        "it as it is stored",
    )


def _too_large(max_bytes: int) -> MqError:
    return MqError(
        Code.MESSAGE_ILLEGAL,
        f"the compressed body holds over {max_bytes} bytes: take it as it is stored",
    )
