"""`python -m aerobee_spark` in this process and in a Spark session that is there: without the start
of a process, of a JVM and of its warm-up."""

from __future__ import annotations

import io
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

import pytest

from aerobee_spark.__main__ import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[..., subprocess.CompletedProcess[str]]


@contextmanager
def commands_in(spark: SparkSession) -> Iterator[Run]:
    """`run("facts", "--table", …)` gives exit code and output, as `subprocess.run` would."""
    handler = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aerobee_spark.jvm.session.session", lambda *_, **__: nullcontext(spark))
        # The process goes on, and what comes after may need pandas.
        patch.setattr("aerobee_spark.jvm.session.keep_out_pandas", lambda: None)
        try:
            yield _run
        finally:
            signal.signal(signal.SIGTERM, handler)


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())
