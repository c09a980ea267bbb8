"""The packages of others that a read or a write needs, for the Python that runs it.

On a cluster that is the workers' own: `--py-files` brings ours, and these have to be installed.
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
    """Raises MissingPackageError that names what is not installed, and where."""
    missing = [package for module, package in NEEDED.items() if not _is_there(module)]
    if missing:
        raise MissingPackageError(missing, f"{sys.executable} on {socket.gethostname()}")


@functools.cache
def leave_out_imports() -> None:
    """Of a worker, after its imports. Spark has Python look for cycles among all objects after each
    task: 30 ms, of which those that the imports made, and which stay anyway, are nearly all."""
    gc.freeze()


def _is_there(module: str) -> bool:
    """Without an import: grpc is loaded by the first read, and not before."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of a package above it
        return False
