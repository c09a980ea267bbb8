"""Query a service's grpc.health.v1: `python -m aerobee_chassis.healthcheck HOST:PORT`.

It first tries plaintext, then TLS without verifying the certificate: the request has no secrets.

Exit codes: 0 the service is serving, 1 it is not or did not answer, 2 bad command line.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import sys
import threading
from collections.abc import Iterator

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0
CHUNK = 16_384


def serving(target: str) -> bool:
    """Return whether the service at "host:port" answers SERVING. Raises grpc.RpcError, OSError."""
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
    """Open a local address that forwards plaintext over TLS. Raises OSError.

    gRPC itself would reject a certificate that it cannot verify.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    name = f"aerobee-healthcheck-{os.getpid()}-{threading.get_ident()}"
    stop, stopped = socket.socketpair()
    with (
        stop,
        stopped,
        socket.create_connection((host, port), TIMEOUT_S) as raw,
        context.wrap_socket(raw) as far,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        listener.bind(f"\0{name}")
        listener.listen()
        thread = threading.Thread(target=relay, args=(listener, far, stopped), daemon=True)
        thread.start()
        try:
            yield f"unix-abstract:{name}"
        finally:
            stop.close()
            thread.join()  # an OpenSSL connection must not be closed while it is in use


def relay(listener: socket.socket, far: ssl.SSLSocket, stopped: socket.socket) -> None:
    """Relay both directions on one thread, because OpenSSL's connections are not thread-safe."""
    with contextlib.suppress(OSError):
        if stopped in select.select([listener, stopped], [], [])[0]:
            return
        with listener.accept()[0] as near:
            near.settimeout(TIMEOUT_S)
            while True:
                readable = select.select([near, far, stopped], [], [])[0]
                if stopped in readable:
                    return
                if near in readable:
                    data = near.recv(CHUNK)
                    if not data:
                        return
                    far.settimeout(TIMEOUT_S)
                    far.sendall(data)
                if far in readable and not pass_on(far, near):
                    return


def pass_on(far: ssl.SSLSocket, near: socket.socket) -> bool:
    """Forward the records that have arrived; return False if the other side has closed."""
    far.settimeout(0)
    try:
        while data := far.recv(CHUNK):
            near.sendall(data)
    except ssl.SSLWantReadError:
        return True
    return False


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
