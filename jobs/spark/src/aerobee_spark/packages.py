"""Check that the Python that runs a read or write has the third-party packages that it needs.

On a cluster, the workers run reads and writes. There `--py-files` provides the packages of this
project, and the operator installs the third-party packages.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from aerobee_spark.errors import MissingPackageError

# module → package
NEEDED = {
    "google.protobuf": "protobuf",
    "pyarrow": "pyarrow",
    "numpy": "numpy",
}
# Parameters of glibc's mallopt, and what a worker keeps at most: a few chunks with their columns.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGEST_POOLED_BYTES = 32 * 1024 * 1024
KEPT_FREE_BYTES = 64 * 1024 * 1024


@functools.cache
def check_packages() -> None:
    """Raise MissingPackageError if packages are missing. The error names them and the host."""
    missing = [package for module, package in NEEDED.items() if not _is_there(module)]
    if missing:
        raise MissingPackageError(missing, f"{sys.executable} on {socket.gethostname()}")


@contextmanager
def without_collection() -> Iterator[None]:
    """Pause garbage collection in the block, which imports modules.

    Imports create many objects that stay. Without this, the collections take a third of the time of
    the imports in a process of Spark, because they also visit the objects of PySpark.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@functools.cache
def leave_out_imports() -> None:
    """Exclude the objects of imported modules from garbage collection.

    A worker calls this after its imports. Spark runs a full collection after each task. Without
    this call, the collection takes 30 ms, most of it for objects of modules, which are not freed.
    """
    gc.freeze()


def _is_there(module: str) -> bool:
    """Return whether a module is installed. A folder without an `__init__.py` does not count.

    The module is not imported, because a check must not cost the time of an import.
    """
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:  # the parent package is missing
        return False
    return spec is not None and spec.origin is not None


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next chunk of messages.

    A chunk and its columns have some MiB. With glibc's defaults, this memory returns to the kernel
    after each chunk, and the kernel clears 130,000 pages for a million messages: a tenth of the
    processor time of a worker. Other C libraries lack the function.
    """
    if os.name == "nt":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, LARGEST_POOLED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_FREE_BYTES)
