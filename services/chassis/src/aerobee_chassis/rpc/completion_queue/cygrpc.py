"""Load the private interface of grpcio to gRPC's completion queue, for this transport.

The interface may change between versions of grpcio. So it is used only with tested versions.
Creating an event loop tests most of it (`loop`).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import select
from typing import Any

import grpc

TESTED_VERSIONS = ("1.85.",)  # prefixes

# grpcio divides each wait at a completion queue into slices of this many milliseconds (its default:
# 200), so that an idle thread wakes up five times a second. It does so to run Python's signal
# handlers. asyncio does not need it: a signal ends the wait of its loop.
SLICE_MS = 3_600_000

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


def wait_without_slices() -> None:
    """Let each wait at a completion queue of this process last up to SLICE_MS.

    grpcio exports the variable for other Cython modules. Raises CompletionQueueUnavailable if the
    variable is missing.
    """
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    try:
        address = pointer_of(cygrpc.__pyx_capi__["g_interrupt_check_period_ms"], b"int")
    except (AttributeError, KeyError, ValueError) as error:
        raise CompletionQueueUnavailable(f"waits of grpcio have slices: {error}") from error
    ctypes.c_int.from_address(address).value = SLICE_MS
