"""grpcio's private interface to gRPC's completion queue: what the fast transport is made of.

Nobody promises that it stays as it is, so it is used only with versions that were tried (`PROVEN`),
and a loop tries it again when it is made (`queue_loop`).
"""

from __future__ import annotations

import importlib
from typing import Any

import grpc

PROVEN = ("1.85.",)

cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")


class QueueUnavailable(Exception):
    """This grpcio, or this system, does not do what the fast transport needs."""


def check_version() -> None:
    """Raises QueueUnavailable."""
    if not grpc.__version__.startswith(PROVEN):
        raise QueueUnavailable(f"grpcio {grpc.__version__} is not one of those that were tried")
