"""Check that the Python that runs a read or write has the third-party packages that it needs.

On a cluster, the workers run reads and writes. There `--py-files` provides the packages of this
project, and the operator installs the third-party packages.
"""

from __future__ import annotations

import functools
import gc
import socket
import sys
import traceback
from importlib.util import find_spec
from types import SimpleNamespace

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


@functools.cache
def accept_closed_pipes() -> None:
    """Let a worker of Spark end without a traceback if Spark has closed its pipe.

    Spark closes the pipe when it has enough rows, as after LIMIT. The next write of the worker
    fails, and PySpark's daemon prints the BrokenPipeError with `traceback.print_exc`. A worker
    calls this function; it has no effect in any other process.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name != "pyspark.daemon":
        return

    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError):
            traceback.print_exc()

    vars(main)["traceback"] = SimpleNamespace(**{**vars(traceback), "print_exc": print_exc})
