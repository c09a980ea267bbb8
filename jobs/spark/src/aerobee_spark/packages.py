"""Check that the Python of a read or write has the third-party packages that it needs.

On a cluster this is the Python of the workers: `--py-files` brings the packages of this project,
and the operator installs the others.
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
    """Raise MissingPackageError if packages are missing; it names them and the host."""
    missing = [package for module, package in NEEDED.items() if not _is_there(module)]
    if missing:
        raise MissingPackageError(missing, f"{sys.executable} on {socket.gethostname()}")


@functools.cache
def leave_out_imports() -> None:
    """Exclude all imported objects from garbage collection; call it after a worker's imports.

    After each task Spark runs a full collection. It takes 30 ms, nearly all of it for objects of
    imported modules, which are never freed.
    """
    gc.freeze()


def _is_there(module: str) -> bool:
    """Return whether the module is installed, without importing it: only a read may load grpc."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
