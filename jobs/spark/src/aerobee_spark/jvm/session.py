"""The session of one report: a small Spark of its own, with two local threads, no web pages and no
console noise; or, under spark-submit, the one of that.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aerobee_spark.jvm import java, process, submitted
from aerobee_spark.jvm.process import Jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")


# For short runs: less just-in-time compilation. A report of 10,000 messages takes 14 s of processor
# time with these options and 34 s without; from a million messages on they cost more.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def configuration(scratch: Path, threads: int, *, brief: bool) -> dict[str, str]:
    """`scratch`: for Spark's own files. `brief`: there is little work, so start fast."""
    java_options = f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}"
    return {
        "spark.master": f"local[{threads}]",
        "spark.app.name": "aerobee report",
        "spark.ui.enabled": "false",  # 3 s of the start
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{java_options} {BRIEF}" if brief else java_options,
        "spark.local.dir": str(scratch),
        # Between Java and the Python workers. By TCP each task waits twice for an acknowledgement
        # that the other side delays by 40 ms.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        # The default, 200, makes 200 tasks of a hundred rows.
        "spark.sql.shuffle.partitions": str(threads),
        **submitted.SETTINGS,
    }


def worker_python(scratch: Path) -> str:
    """The interpreter for Spark's workers: this one, with our packages.

    Spark puts a zip of PySpark first on their path, which Python compiles in every process: 0.5 s
    each, and a report starts four. So this script restores the path; the installed PySpark is the
    same, unless SPARK_HOME names another Spark.
    """
    if "SPARK_HOME" in os.environ:
        return sys.executable
    path = shlex.quote(os.environ.get("PYTHONPATH", ""))
    script = scratch / "python"
    start = f'exec {shlex.quote(sys.executable)} "$@"'
    script.write_text(f"#!/bin/sh\nPYTHONPATH={path}\nexport PYTHONPATH\n{start}\n")
    script.chmod(0o755)
    return str(script)


@contextmanager
def session(
    scratch: Path,
    log: Path,
    *,
    threads: int = 2,
    brief: bool = True,
    inherited: Sequence[int] = (),
) -> Iterator[SparkSession]:
    """A session that ends with the block. What the JVM and the workers print goes to `log`.
    `inherited`: open files that the JVM keeps open too, so that a lock lasts as long as both.

    SIGINT and SIGTERM end Spark and leave the block; then they do what they would without Spark.
    Under spark-submit its session, whose JVM is the parent of this process and gets the signals;
    no argument has a meaning then. Raises ReportError.
    """
    if submitted.is_submitted():
        with _own_interrupt(), submitted.submitted_session() as spark:
            yield spark
        return
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    scratch = scratch.absolute()  # Spark takes URIs, and its workers run in another directory
    settings = configuration(scratch, threads, brief=brief)
    os.environ["PYSPARK_PYTHON"] = worker_python(scratch)
    java_home = java.environment(scratch)
    with (
        process.gateway(settings, log, inherited, java_home) as jvm,
        _ended_by_signals(jvm) as stopping,
    ):
        with _environment(jvm.variables), _own_interrupt():
            conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            spark = SparkSession.builder.config(conf=conf).getOrCreate()
        try:
            yield spark
        finally:
            if stopping:
                stopping[0].join()
            else:
                spark.stop()
            _forget_gateway()


@contextmanager
def _ended_by_signals(jvm: Jvm) -> Iterator[Sequence[threading.Thread]]:
    """An exception of a handler out of a call into Java would leave the connection to it unusable;
    so Spark is stopped from another thread, which is yielded when a signal comes, and the call
    fails. A second signal ends the JVM without further steps."""
    noted: list[int] = []
    stopping: list[threading.Thread] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopping  # only the main thread may set a handler, and signals come there
        return

    def note(number: int, frame: object) -> None:
        noted.append(number)
        if stopping:
            jvm.terminate()
            return
        stopping.append(threading.Thread(target=_stop, args=(jvm,)))
        stopping[0].start()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    except Exception:
        if not noted:
            raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if noted:
        signal.raise_signal(noted[0])
        raise SystemExit(128 + noted[0])


def _stop(jvm: Jvm) -> None:
    from pyspark import SparkContext

    context = SparkContext._active_spark_context
    try:
        if context is not None:
            context.stop()
            return
    except Exception as error:
        # The main thread may have ended the connection, or the JVM, by now.
        logging.getLogger(__name__).debug("Spark was not stopped by the signal: %s", error)
    jvm.terminate()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Sets variables for the block; PySpark reads them when it connects."""
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Restores the handler of SIGINT: PySpark puts its own in place, which calls Java."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # Only the main thread may set a handler. None: the handler was not set from Python.
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGINT, handler)


def _forget_gateway() -> None:
    """PySpark keeps one connection per process; the next session needs a new one."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
