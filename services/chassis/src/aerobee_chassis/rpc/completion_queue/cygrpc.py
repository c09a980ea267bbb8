"""Load the private interface of grpcio to gRPC's completion queue, for this transport.

The interface may change between versions of grpcio. So it is used only with tested versions.
Creating an event loop tests most of it (`loop`).
"""

from __future__ import annotations

import importlib
import os
import select
from typing import Any

import grpc

TESTED_VERSIONS = ("1.85.",)  # prefixes

cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")


class CompletionQueueUnavailable(Exception):
    """The installed grpcio or the operating system lacks a feature that the transport needs."""


def on_this_system() -> bool:
    """Return whether the operating system has what the transport needs. macOS does not."""
    return hasattr(select, "epoll") and hasattr(os, "eventfd")


def check_version() -> None:
    """Raise CompletionQueueUnavailable if this version of grpcio was not tested."""
    if not grpc.__version__.startswith(TESTED_VERSIONS):
        raise CompletionQueueUnavailable(f"grpcio {grpc.__version__} was not tested")
