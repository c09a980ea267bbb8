"""Parse the header of the PROXY protocol, by which a load balancer names its client.

Version 1 is one line of text, and version 2 is binary:
https://www.haproxy.org/download/1.8/doc/proxy-protocol.txt. This module does no I/O.
"""

from __future__ import annotations

import re
import socket
import struct

MAX_BYTES = 4_096  # of a header; load balancers send less than 600, with a few type-length-values

_V1 = b"PROXY"
_V1_MAX_BYTES = 107  # as in the specification
_V1_LINE = re.compile(rb"PROXY TCP([46]) (\S+) (\S+) (\d{1,5}) (\d{1,5})")
_V1_UNKNOWN = re.compile(rb"PROXY UNKNOWN(?: .*)?")

_V2 = b"\r\n\r\n\0\r\nQUIT\n"
_V2_FIXED = struct.Struct(
    ">12s"  # _V2
    "B"  #     version (high 4 bits) and command (low 4 bits)
    "B"  #     address family (high 4 bits) and transport (low 4 bits)
    "H"  #     bytes that follow: addresses, then type-length-values
)
assert _V2_FIXED.size == 16
_LOCAL, _PROXY = 0x20, 0x21
# Family and transport → family, and bytes of one address.
_STREAMS = {0x11: (socket.AF_INET, 4), 0x21: (socket.AF_INET6, 16)}
_WITHOUT_ADDRESS = (0x00, 0x31)  # unspecified, and a Unix domain socket

Address = tuple[str, int]


class MalformedHeader(ValueError):
    """The bytes are not a header of the PROXY protocol that this module supports."""


def begins_header(data: bytes) -> bool:
    """Return whether a connection that begins with these bytes begins with a header.

    Neither TLS nor HTTP/2 begins so: HTTP/2 begins with "PRI".
    """
    return data.startswith((_V1, _V2[:1]))


def parse(data: bytes) -> tuple[int, Address | None] | None:
    """Return the size of the header at the begin of `data`, and the address of the client.

    The address is None if the load balancer speaks for itself. The result is None if the header
    is not whole yet. Raises MalformedHeader.
    """
    if data[:1] == _V2[:1]:
        return _parse_v2(data)
    if data[: len(_V1)] == _V1[: len(data)]:
        return _parse_v1(data)
    raise MalformedHeader("a header must begin with PROXY, or with the signature of version 2")


def _parse_v1(data: bytes) -> tuple[int, Address | None] | None:
    line, end, _ = data[:_V1_MAX_BYTES].partition(b"\r\n")
    if not end:
        if len(data) >= _V1_MAX_BYTES or b"\n" in line:
            raise MalformedHeader("the line does not end")
        return None
    size = len(line) + len(end)
    if _V1_UNKNOWN.fullmatch(line):
        return size, None
    if (found := _V1_LINE.fullmatch(line)) is None:
        raise MalformedHeader("the line is not PROXY TCP4 or TCP6 with two addresses and ports")
    family = socket.AF_INET if found[1] == b"4" else socket.AF_INET6
    source, _ = (_canonical(family, text) for text in (found[2], found[3]))
    ports = int(found[4]), int(found[5])
    if max(ports) > 65_535:
        raise MalformedHeader("a port is over 65535")
    return size, (source, ports[0])


def _canonical(family: socket.AddressFamily, text: bytes) -> str:
    try:
        return socket.inet_ntop(family, socket.inet_pton(family, text.decode("ascii")))
    except (OSError, ValueError):
        raise MalformedHeader("an address is not of its family") from None


def _parse_v2(data: bytes) -> tuple[int, Address | None] | None:
    if data[: len(_V2)] != _V2[: len(data)]:
        raise MalformedHeader("the signature of version 2 is wrong")
    if len(data) < _V2_FIXED.size:
        return None
    _, command, kind, length = _V2_FIXED.unpack_from(data)
    size = _V2_FIXED.size + length
    if command not in (_LOCAL, _PROXY):
        raise MalformedHeader("the version is not 2, or the command is unknown")
    if size > MAX_BYTES:
        raise MalformedHeader(f"it is longer than {MAX_BYTES} bytes")
    if command == _PROXY and kind not in (*_STREAMS, *_WITHOUT_ADDRESS):
        raise MalformedHeader("the addresses are not of streams")
    family, width = _STREAMS.get(kind, (socket.AF_UNSPEC, 0))
    if command == _PROXY and width and length < 2 * width + 4:
        raise MalformedHeader("the addresses are not whole")
    if len(data) < size:
        return None
    if command == _LOCAL or not width:
        return size, None
    at = _V2_FIXED.size
    source = socket.inet_ntop(family, data[at : at + width])
    (port,) = struct.unpack_from(">H", data, at + 2 * width)
    return size, (source, port)
