"""Run the JVM of a local Spark as a child process, with its output in a file.

PySpark can start a JVM itself. But it forks and runs Python in the child, which deadlocks or fails
if this process uses gRPC, and the JVM then prints to our stderr. This module starts the JVM without
Python in between. PySpark finds it by two environment variables.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aerobee_spark.errors import ReportError

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 20.0
INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class Jvm:
    """A JVM that serves PySpark. `variables`: environment variables by which PySpark connects."""

    variables: Mapping[str, str]
    _process: subprocess.Popen[bytes]

    def terminate(self) -> None:
        """Start its termination. Pending and later calls into the JVM fail."""
        self._process.terminate()


@contextmanager
def gateway(
    configuration: Mapping[str, str],
    log: Path,
    inherited: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Jvm]:
    """Start a JVM that ends with the block, or with this process.

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
    """Start the program. Raise ReportError if it does not exist."""
    with log.open("ab") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=inherited,
                process_group=0,  # keeps Ctrl-C from the JVM: this process stops it
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
    """Return port and secret from the file that the JVM writes when it is ready.

    The file has the port and the length of the secret, four bytes each, then the secret.
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
