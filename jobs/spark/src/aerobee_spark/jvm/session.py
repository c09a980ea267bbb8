"""Open a Spark session for a command, in a JVM that runs as a child process.

Spark runs with two local threads by default, without web pages and console output. Under
spark-submit, the session of spark-submit is used. Then the user configures master, memory and logs,
and this module sets only the options that affect rows.

PySpark could start the JVM itself, but it would fork this process, which has threads, and run
Python code in the child. That can deadlock, and the JVM would print to our stderr. So this module
starts the JVM directly, and redirects its output to a file. PySpark finds the JVM by two
environment variables.
"""

from __future__ import annotations

import logging
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
INTERVAL_S = 0.05
LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
# JVM options for short runs: less just-in-time compilation. A report of 10,000 messages needs 14 s
# of processor time with these options, and 34 s without them. For a million messages or more, they
# cost more time than they save.
BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# spark-submit sets this variable. PySpark uses it to connect to the JVM.
GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
# Session settings: UTC times in SQL, and no INT96 times in files, which are deprecated and have no
# statistics.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def is_submitted() -> bool:
    return GATEWAY_PORT in os.environ


@contextmanager
def submitted_session() -> Iterator[SparkSession]:
    """Open the session of spark-submit. At the end of the block, stop the Spark application."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    try:
        for name, value in SETTINGS.items():
            spark.conf.set(name, value)
        yield spark
    finally:
        spark.stop()


def configuration(scratch: Path, threads: int, *, brief: bool) -> dict[str, str]:
    """Return the Spark settings of a session that this module starts.

    Args:
        scratch: folder for Spark's own files.
        threads: number of local threads.
        brief: optimize for a fast start, because there is little work.
    """
    java_options = f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}"
    return {
        "spark.master": f"local[{threads}]",
        "spark.app.name": "aerobee report",
        "spark.ui.enabled": "false",  # saves 3 s of the start
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"{java_options} {BRIEF}" if brief else java_options,
        "spark.local.dir": str(scratch),
        # Connect Java and the Python workers by Unix sockets. With TCP, each task waits twice for
        # an acknowledgement that the other side delays by 40 ms.
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        # With the default of 200, a small report would have 200 tasks of a hundred rows each.
        "spark.sql.shuffle.partitions": str(threads),
        **SETTINGS,
    }


def worker_python(scratch: Path) -> str:
    """Return the path of the Python interpreter for Spark's processes.

    Spark puts a zip of PySpark first on the Python path of its workers. Compiling the zip takes
    0.5 s in each worker, and a report starts four workers. So the interpreter is a script that
    removes the zip from the path, and workers import the installed PySpark. If SPARK_HOME names
    another Spark, the installed PySpark may have another version, and the script is not used.

    The script also limits numpy to one thread, unless a number is set. Spark sets it for the tasks
    of workers only. Otherwise the import of numpy starts a thread for each further core, which
    then waits for work in a loop.
    """
    if "SPARK_HOME" in os.environ:
        return sys.executable
    path = shlex.quote(os.environ.get("PYTHONPATH", ""))
    script = scratch / "python"
    start = f'exec {shlex.quote(sys.executable)} "$@"'
    threads = "OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}"
    script.write_text(f"#!/bin/sh\nexport PYTHONPATH={path} {threads}\n{start}\n")
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
    """Open a Spark session that ends with the block.

    SIGINT and SIGTERM stop Spark and leave the block. After that, a signal has its usual effect.
    Under spark-submit, the session of spark-submit is used and all arguments are ignored. Its JVM
    is the parent of this process and handles the signals.

    Args:
        scratch: folder for Spark's own files.
        log: file for the output of the JVM and the workers.
        threads: number of local threads.
        brief: optimize for a fast start, because there is little work.
        inherited: open files that the JVM also keeps open. A lock on such a file lasts until both
            processes have ended.

    Raises:
        ReportError: Java is missing, or Spark does not start.
        RuntimeError: this process has a session already. PySpark would return that session, and
            the end of the block would stop it.
    """
    if is_submitted():
        with _own_interrupt(), submitted_session() as spark:
            yield spark
        return
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise RuntimeError("this process has a Spark session already")
    scratch = scratch.absolute()  # Spark needs URIs, and its workers run in another folder
    settings = configuration(scratch, threads, brief=brief)
    java_home = java.environment(scratch)
    with (
        _environment({"PYSPARK_PYTHON": worker_python(scratch)}),
        gateway(settings, log, inherited, java_home) as jvm,
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
    """Stop Spark when SIGINT or SIGTERM arrives during the block.

    The signal handler does not raise, because an exception during a call into Java would make the
    connection unusable. Instead, another thread stops Spark, and the call into Java fails. The
    yielded list contains this thread after a signal. A second signal terminates the JVM at once.
    """
    noted: list[int] = []
    stopping: list[threading.Thread] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopping  # only the main thread can set signal handlers
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
        # The main thread may have closed the connection or the JVM already.
        logging.getLogger(__name__).debug("cannot stop Spark after the signal: %s", error)
    jvm.terminate()


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block, and restore their former values at its end."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Restore the handler of SIGINT after the block, because PySpark replaces it.

    PySpark's handler calls Java, which fails after the session has ended.
    """
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        # Only the main thread can set a handler. It is None if Python did not set the handler.
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGINT, handler)


def _forget_gateway() -> None:
    """Close PySpark's connection to the JVM, so that the next session opens a new connection."""
    from pyspark import SparkContext

    if SparkContext._gateway is not None:
        SparkContext._gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None


@dataclass(frozen=True, slots=True)
class Jvm:
    """A JVM that serves PySpark. PySpark connects by the environment variables `variables`."""

    variables: Mapping[str, str]
    _process: subprocess.Popen[bytes]

    def terminate(self) -> None:
        """Start to terminate the JVM. Pending and later calls into the JVM fail."""
        self._process.terminate()


@contextmanager
def gateway(
    configuration: Mapping[str, str],
    log: Path,
    inherited: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Jvm]:
    """Start a JVM for PySpark. The JVM stops at the end of the block, or when this process ends.

    Args:
        configuration: Spark settings.
        log: file for the output of the JVM.
        inherited: open files that the JVM keeps open too.
        variables: environment variables to add to those of this process.

    Raises:
        ReportError: the JVM does not start.
    """
    with tempfile.TemporaryDirectory(prefix="aerobee-spark-") as folder:
        connection = Path(folder) / "gateway"
        environment = {
            **os.environ,
            **(variables or {}),
            "SPARK_CONNECT_MODE": "0",
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection),
        }
        process = _launch(_command(configuration), environment, log, inherited)
        try:
            port, secret = _wait_for(connection, process)
            found = {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
            yield Jvm(found, process)
        finally:
            _end(process)


def _launch(
    command: list[str], environment: Mapping[str, str], log: Path, inherited: Sequence[int]
) -> subprocess.Popen[bytes]:
    """Start Spark's launcher. Raise ReportError if the program does not exist."""
    with log.open("ab") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=inherited,
                process_group=0,  # Ctrl-C does not reach the JVM; this process stops it
            )
        except OSError as error:
            raise ReportError(
                f"cannot start Spark: {error.strerror}: {command[0]}; unset SPARK_HOME, or "
                "install the package again"
            ) from error


def _command(configuration: Mapping[str, str]) -> list[str]:
    from pyspark.find_spark_home import _find_spark_home

    settings = [part for pair in configuration.items() for part in ("--conf", "=".join(pair))]
    return [str(Path(_find_spark_home()) / "bin" / "spark-submit"), *settings, "pyspark-shell"]


def _wait_for(connection: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Wait until the JVM is ready. Return its port and its secret.

    The JVM writes them to the file `connection`: the port and the length of the secret in four
    bytes each, then the secret.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while not connection.is_file():
        if process.poll() is not None:
            raise ReportError(f"the JVM exited at its start with code {process.returncode}")
        if time.monotonic() > deadline:
            raise ReportError(f"the JVM is not ready {START_TIMEOUT_S:.0f} s after its start")
        time.sleep(INTERVAL_S)
    content = connection.read_bytes()  # complete: the JVM renamed it into place
    return int.from_bytes(content[:4], "big"), content[8:].decode("utf-8")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ---- without pandas ----
#
# Stop PySpark and pyarrow from importing pandas, which they do if it is installed.
#
# The import takes a second, and PySpark prints warnings about the version of pandas. Only commands
# may call this, because it affects the whole process.


class _PandasIsAbsent(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is kept out of this process", name=fullname)
        return None


def keep_out_pandas() -> None:
    """Make `import pandas` fail from now on, as if pandas were not installed."""
    if not any(isinstance(finder, _PandasIsAbsent) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PandasIsAbsent())
