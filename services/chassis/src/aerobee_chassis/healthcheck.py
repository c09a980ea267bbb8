"""Query a service's grpc.health.v1: `python -m aerobee_chassis.healthcheck HOST:PORT`.

A broker with shards has a port for each of them: name all ports.

The module implements HTTP/2 itself, because importing a client takes more processor time than the
idle services use. It first tries plaintext, then TLS without verifying the certificate, because the
request has no secrets. It presents the certificate of AEROBEE_TLS_CERT_PATH and
AEROBEE_TLS_KEY_PATH, if they are set, because a service may require one.

Exit codes: 0 all are serving, 1 one is not serving or did not answer, 2 bad command line.
"""

from __future__ import annotations

import os
import socket
import sys

USAGE = "usage: python -m aerobee_chassis.healthcheck HOST:PORT [HOST:PORT …]"
TIMEOUT_S = 3.0
CHUNK = 16_384
CERTIFICATE, KEY = "AEROBEE_TLS_CERT_PATH", "AEROBEE_TLS_KEY_PATH"

# Frames of HTTP/2 (RFC 9113): types and flags.
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, ACK, END_HEADERS = 1, 1, 4
FRAME_HEAD_BYTES = 9
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_MESSAGE = bytes(5)  # not compressed, no bytes: the request for the status of the process
SERVING = b"\x00\x00\x00\x00\x02\x08\x01"


def serving(address: str) -> bool:
    """Return whether the service at "host:port" answers SERVING. Raises OSError."""
    name, _, number = address.rpartition(":")
    host, port = name.strip("[]"), int(number)
    with socket.create_connection((host, port), TIMEOUT_S) as connection:
        try:
            return ask(connection)
        except OSError as error:
            plaintext_error = error
    try:
        return ask_over_tls(host, port)
    except OSError as error:
        raise OSError(f"{plaintext_error}; with TLS: {error}") from None


def ask_over_tls(host: str, port: int) -> bool:
    """Return whether the service answers SERVING over TLS. Raises OSError."""
    import ssl  # only here: it takes as long to import as the rest of a check

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if certificate := os.environ.get(CERTIFICATE):
        context.load_cert_chain(certificate, os.environ.get(KEY) or None)
    with socket.create_connection((host, port), TIMEOUT_S) as raw, context.wrap_socket(raw) as far:
        return ask(far)


def ask(connection: socket.socket) -> bool:
    """Return whether the service behind a connection answers SERVING. Raises OSError."""
    connection.settimeout(TIMEOUT_S)
    connection.sendall(request() + frame(DATA, END_STREAM, 1, EMPTY_MESSAGE))
    received, answer = b"", b""
    while chunk := connection.recv(CHUNK):
        received += chunk
        while len(received) >= FRAME_HEAD_BYTES:
            end = FRAME_HEAD_BYTES + int.from_bytes(received[:3], "big")
            if len(received) < end:
                break
            kind, flags, payload = received[3], received[4], received[FRAME_HEAD_BYTES:end]
            received = received[end:]
            if kind in (SETTINGS, PING) and not flags & ACK:
                connection.sendall(frame(kind, ACK, 0, payload if kind == PING else b""))
            elif kind == DATA:
                answer += payload
            if kind in (RST_STREAM, GOAWAY):
                raise ConnectionError("the call was rejected")
            if kind in (DATA, HEADERS) and flags & END_STREAM:
                return answer == SERVING
    raise ConnectionError("the connection was closed before the answer")


def request(path: str = "/grpc.health.v1.Health/Check", stream: int = 1) -> bytes:
    """Return the bytes that begin a connection and a gRPC call: preface and headers."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    # HPACK (RFC 7541): literal fields that are not indexed, without Huffman codes.
    block = b"".join(b"\0" + text(name) + text(value) for name, value in fields.items())
    return PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, stream, block)


def text(value: str) -> bytes:
    data = value.encode("ascii")
    return bytes([len(data)]) + data


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big")
    return head + payload


def main(arguments: list[str]) -> int:
    if not arguments or not all(map(is_address, arguments)):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        for address in arguments:
            if not serving(address):
                print(f"not serving: {address}" if len(arguments) > 1 else "not serving")
                return 1
    except OSError as error:
        print(f"error: no answer from {address}: {error}", file=sys.stderr)
        return 1
    print("serving")
    return 0


def is_address(text: str) -> bool:
    host, _, port = text.rpartition(":")
    return bool(host) and port.isdecimal()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
