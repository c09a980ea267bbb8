"""Let processes of Spark end without a traceback if Spark has closed their connection."""

from __future__ import annotations

import sys
from types import SimpleNamespace


def accept_closed_pipes() -> None:
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
