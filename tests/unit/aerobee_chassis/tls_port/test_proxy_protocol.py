"""Headers of the PROXY protocol, whole, in parts, and malformed."""

from __future__ import annotations

import pytest

from aerobee_chassis.tls_port.proxy_protocol import (
    MAX_BYTES,
    Address,
    MalformedHeader,
    begins_header,
    parse,
)

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
IPV4 = bytes((192, 0, 2, 7, 10, 0, 0, 1)) + b"\x14\x03\x1f\x91"
IPV6 = bytes.fromhex("20010db8000000000000000000000007" + "00" * 15 + "01") + b"\x14\x03\x1f\x91"
TLV = b"\x04\x00\x03abc"  # PP2_TYPE_NOOP


def v2(command: int, kind: int, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return SIGNATURE + bytes((command, kind)) + size.to_bytes(2, "big") + body


@pytest.mark.parametrize(
    ("header", "address"),
    [
        (b"PROXY TCP4 192.0.2.7 10.0.0.1 5123 8081\r\n", ("192.0.2.7", 5_123)),
        (b"PROXY TCP6 2001:DB8:0::7 ::1 5123 8081\r\n", ("2001:db8::7", 5_123)),
        (b"PROXY UNKNOWN\r\n", None),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", None),
        (v2(0x21, 0x11, IPV4), ("192.0.2.7", 5_123)),
        (v2(0x21, 0x21, IPV6), ("2001:db8::7", 5_123)),
        (v2(0x21, 0x11, IPV4 + TLV * 9), ("192.0.2.7", 5_123)),
        (v2(0x21, 0x21, IPV6 + TLV), ("2001:db8::7", 5_123)),
        (v2(0x20, 0x00, b""), None),
        (v2(0x20, 0x11, IPV4 + TLV), None),
        (v2(0x21, 0x00, TLV), None),
        (v2(0x21, 0x31, bytes(216)), None),
    ],
    ids=str,
)
def test_header_names_the_client_once_it_is_whole(header: bytes, address: Address | None) -> None:
    assert begins_header(header)
    assert [parse(header[:size]) for size in range(len(header))] == [None] * len(header)
    for rest in (b"", b"PRI * HTTP/2.0\r\n", b"\x16\x03\x01", header):
        assert parse(header + rest) == (len(header), address)


@pytest.mark.parametrize(
    "header",
    [
        b"PRI * HTTP/2.0\r\n\r\n",
        b"\x16\x03\x01",
        b"PROXX TCP4 192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2 3\r\n",
        b"PROXY TCP4  192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 65536\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 -1 2\r\n",
        b"PROXY TCP4 192.0.2 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 ../../x 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 \xff 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 2001:db8::7 ::1 1 2\r\n",
        b"PROXY TCP6 192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n",
        b"PROXY UDP4 192.0.2.7 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 10.0.0.1 1 2\n",
        b"PROXY UNKNOWN" + b" " * 100,
        b"PROXY UNKNOWN" + b" " * 100 + b"\r\n",
        b"\r\n\r\n\0\r\nQUIX\n",
        v2(0x11, 0x11, IPV4),
        v2(0x22, 0x11, IPV4),
        v2(0x21, 0x12, IPV4),
        v2(0x21, 0x41, IPV4),
        v2(0x21, 0x11, IPV4[:-1]),
        v2(0x21, 0x21, IPV4),
        v2(0x21, 0x11, IPV4, MAX_BYTES),
        v2(0x20, 0x00, b"", 0xFFFF),
    ],
    ids=str,
)
def test_malformed_header_is_refused_before_more_is_read(header: bytes) -> None:
    with pytest.raises(MalformedHeader):
        parse(header)
