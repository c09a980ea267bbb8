"""Asks a service's grpc.health.v1: `python -m aerobee_chassis.healthcheck HOST:PORT`.

Exit code 0: it serves. 1: it does not, or did not answer. 2: bad command line.
"""

from __future__ import annotations

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 3.0


def serving(target: str) -> bool:
    """Whether the service at "host:port" says that it serves. Raises grpc.RpcError."""
    with grpc.insecure_channel(target) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m aerobee_chassis.healthcheck HOST:PORT", file=sys.stderr)
        return 2
    try:
        healthy = serving(arguments[0])
    except grpc.RpcError as error:
        print(f"error: no answer from {arguments[0]}: {error}", file=sys.stderr)
        return 1
    print("serving" if healthy else "not serving")
    return 0 if healthy else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
