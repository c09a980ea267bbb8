"""Read and write RocketMQ topics with Spark, and report dead letters.

The data source is `format("rocketmq")`. This module imports almost nothing at once, because Spark
loads the package in short-lived planner processes.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace


def _accept_closed_pipes() -> None:
    """Keep PySpark's daemon from printing a traceback when Spark closes a connection.

    Spark closes the connection of a worker that has sent enough rows, as after LIMIT, and of a
    worker or planner that has been idle for a minute. Then it kills the process. If the process
    writes first, its write fails, with ECONNRESET in place of EPIPE if Spark had not read
    everything. PySpark's daemon prints the error with `traceback.print_exc`. In any other process,
    this function has no effect.
    """
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is None or spec.name != "pyspark.daemon":
        return
    import traceback

    def print_exc() -> None:
        if not isinstance(sys.exception(), BrokenPipeError | ConnectionResetError):
            traceback.print_exc()

    vars(main)["traceback"] = SimpleNamespace(**{**vars(traceback), "print_exc": print_exc})


# Here, because a process of Spark that uses this package imports this module first.
_accept_closed_pipes()

TYPE_CHECKING = False  # `typing` is slow to import, and type checkers know this name
if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        from aerobee_wire.version import VERSION

        return VERSION
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
