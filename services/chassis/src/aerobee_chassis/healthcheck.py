"""Asks a service's grpc.health.v1: `python -m aerobee_chassis.healthcheck HOST:PORT`.

In plaintext, and where the port takes TLS only in that, whatever the certificate: the question is
whether the service serves, and nothing is told to it.

Exit code 0: it serves. 1: it does not, or did not answer. 2: bad command line.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
from collections.abc import Iterator

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0


def serving(target: str) -> bool:
    """Whether the service at "host:port" says that it serves. Raises grpc.RpcError, OSError."""
    try:
        return ask(target)
    except grpc.RpcError:
        host, _, port = target.rpartition(":")
        with tls_bridge(host.strip("[]"), int(port)) as bridge:
            return ask(bridge)


def ask(target: str) -> bool:
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


@contextlib.contextmanager
def tls_bridge(host: str, port: int) -> Iterator[str]:
    """A local address that leads to a port that speaks TLS: gRPC would insist on a certificate that
    it can verify. Raises OSError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    name = f"aerobee-healthcheck-{os.getpid()}"
    with (
        socket.create_connection((host, port), TIMEOUT_S) as raw,
        context.wrap_socket(raw) as far,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(f"\0{name}")
        listener.listen()
        far.settimeout(None)
        threading.Thread(target=relay, args=(listener, far), daemon=True).start()
        yield f"unix-abstract:{name}"


def relay(listener: socket.socket, far: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError), listener.accept()[0] as near:
        threading.Thread(target=pump, args=(near, far), daemon=True).start()
        pump(far, near)


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            sink.sendall(data)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m aerobee_chassis.healthcheck HOST:PORT", file=sys.stderr)
        return 2
    try:
        healthy = serving(arguments[0])
    except (grpc.RpcError, OSError) as error:
        print(f"error: no answer from {arguments[0]}: {error}", file=sys.stderr)
        return 1
    print("serving" if healthy else "not serving")
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
