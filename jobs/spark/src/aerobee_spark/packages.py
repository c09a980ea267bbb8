"""Check that the Python that runs a read or write has the third-party packages that it needs.

On a cluster, the workers run reads and writes. There `--py-files` provides the packages of this
project, and the operator installs the third-party packages.
"""

from __future__ import annotations

import functools
import gc
import socket
import sys
from importlib.util import find_spec

from aerobee_spark.errors import MissingPackageError

# module → package
NEEDED = {
    "grpc": "grpcio",
    "google.protobuf": "protobuf",
    "pyarrow": "pyarrow",
    "numpy": "numpy",
}


@functools.cache
def check_packages() -> None:
    """Raise MissingPackageError if packages are missing. The error names them and the host."""
    missing = [package for module, package in NEEDED.items() if not _is_there(module)]
    if missing:
        raise MissingPackageError(missing, f"{sys.executable} on {socket.gethostname()}")


@functools.cache
def leave_out_imports() -> None:
    """Exclude the objects of imported modules from garbage collection.

    A worker calls this after its imports. Spark runs a full collection after each task. Without
    this call, the collection takes 30 ms, most of it for objects of modules, which are not freed.
    """
    gc.freeze()


def _is_there(module: str) -> bool:
    """Return whether a module is installed.

    The module is not imported, because grpc must not be imported before a read or write needs it.
    """
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
