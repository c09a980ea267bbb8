"""grpcio's private interface to gRPC's completion queue: what this transport is made of.

grpcio does not promise that it stays as it is. So it is used only with versions that were tested,
and a loop tries most of it when it is made (`loop`).
"""

from __future__ import annotations

import importlib
from typing import Any

import grpc

TESTED_VERSIONS = ("1.85.",)  # prefixes

cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")


class CompletionQueueUnavailable(Exception):
    """This grpcio, or this system, does not do what the transport needs."""


def check_version() -> None:
    """Raises CompletionQueueUnavailable."""
    if not grpc.__version__.startswith(TESTED_VERSIONS):
        raise CompletionQueueUnavailable(f"grpcio {grpc.__version__} was not tested")
