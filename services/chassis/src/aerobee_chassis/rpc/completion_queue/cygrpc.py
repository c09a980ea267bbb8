"""The private interface of grpcio to gRPC's completion queue, on which this transport is built.

It may change between versions of grpcio. Therefore, it is used only with versions that were tested,
and making a loop tries most of it (`loop`).
"""

from __future__ import annotations

import importlib
from typing import Any

import grpc

TESTED_VERSIONS = ("1.85.",)  # prefixes

cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")


class CompletionQueueUnavailable(Exception):
    """The installed grpcio, or the system, lacks a feature that the transport needs."""


def check_version() -> None:
    """Raise CompletionQueueUnavailable if this version of grpcio was not tested."""
    if not grpc.__version__.startswith(TESTED_VERSIONS):
        raise CompletionQueueUnavailable(f"grpcio {grpc.__version__} was not tested")
