"""The JVM of a local Spark as a child process; its output goes to a file.

PySpark can start a JVM itself, but by a fork that runs Python in the child, which deadlocks or
fails when this process uses gRPC; and the JVM then prints to our stderr. Here it is started without
Python in between, and PySpark connects to it by the two variables that it reads.
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
    """A JVM that serves PySpark. `variables`: of the environment, by which PySpark connects."""

    variables: Mapping[str, str]
    _process: subprocess.Popen[bytes]

    def terminate(self) -> None:
        """Its end begins; a call into it fails then."""
        self._process.terminate()


@contextmanager
def gateway(
    configuration: Mapping[str, str],
    log: Path,
    inherited: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Jvm]:
    """Starts a JVM that ends with the block.

    It also ends when its stdin is closed, so with this process. It keeps the open files `inherited`
    open. `variables`: of its environment, besides those of this process. Raises ReportError when it
    does not start.
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
    """Raises ReportError when there is no such program."""
    with log.open("ab") as output:
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=inherited,
                process_group=0,  # Ctrl-C reaches only this process
            )
        except OSError as error:
            raise ReportError(
                f"Spark cannot be started: {error.strerror}: {command[0]}; unset SPARK_HOME, or "
                "install the package again"
            ) from error


def _command(configuration: Mapping[str, str]) -> list[str]:
    from pyspark.find_spark_home import _find_spark_home

    settings = [part for pair in configuration.items() for part in ("--conf", "=".join(pair))]
    return [str(Path(_find_spark_home()) / "bin" / "spark-submit"), *settings, "pyspark-shell"]


def _wait_for(connection: Path, process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Port and secret, from the file that the JVM writes once it serves: the port and the length of
    the secret, four bytes each, then the secret."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not connection.is_file():
        if process.poll() is not None:
            raise ReportError(f"the JVM ended at its start with exit code {process.returncode}")
        if time.monotonic() > deadline:
            raise ReportError(f"the JVM does not serve {START_TIMEOUT_S:.0f} s after its start")
        time.sleep(INTERVAL_S)
    content = connection.read_bytes()  # complete: it was renamed into place
    return int.from_bytes(content[:4], "big"), content[8:].decode("utf-8")


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
