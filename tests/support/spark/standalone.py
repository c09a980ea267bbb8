"""A standalone Spark of processes on this machine: a master and workers, started from the pip
package as its scripts would, on ports that are free. What they know comes from the master's JSON.

An executor is a child of its worker, in the worker's process group: a kill of the group is the end
of a machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyspark.find_spark_home import _find_spark_home

from aerobee_broker.cluster.identity import free_port
from aerobee_spark.jvm import standalone
from support.clock.polling import until_sync
from support.spark import class_archive

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
HOST = "127.0.0.1"


def spark_home() -> Path:
    return Path(_find_spark_home())


class Daemon:
    """One of Spark's processes. Its output is in `log`."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{name}.log"
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "SPARK_HOME": str(spark_home()),
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": class_archive.java_options(),
            "SPARK_WORKER_DIR": str(folder / name),
            "SPARK_LOCAL_IP": HOST,
        }
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(spark_home() / "bin" / "spark-class"), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def check(self) -> None:
        """Fails the test when it has ended."""
        code = self._process.poll()
        if code is not None:
            pytest.fail(f"ended with {code}:\n{self.log.read_text()}")

    def kill(self) -> None:
        """SIGKILL for it and its executors, at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()


class StandaloneCluster:
    """`workers`: by their ports, which the master's record and the executors' tell."""

    def __init__(self, folder: Path, count: int) -> None:
        port, self._web = free_port(HOST), free_port(HOST)
        self.url = f"spark://{HOST}:{port}"
        self.workers: dict[int, Daemon] = {}
        at = ("--host", HOST, "--port", str(port), "--webui-port", str(self._web))
        self.master = Daemon(folder, "master", MASTER, *at)
        try:
            until_sync(self._serves, timeout_s=START_TIMEOUT_S)
            for number in range(count):
                port = free_port(HOST)
                at = ("--host", HOST, "--port", str(port), "--webui-port", "0")
                size = ("--cores", "1", "--memory", "1g")
                name = f"worker-{number}"
                self.workers[port] = Daemon(folder, name, WORKER, *at, *size, self.url)
            until_sync(lambda: len(self.alive()) == count, timeout_s=START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def record(self) -> dict[str, Any]:
        """The master's own."""
        self.master.check()
        return standalone.record(f"{HOST}:{self._web}")

    def alive(self) -> list[dict[str, Any]]:
        """The workers that the master counts as such."""
        found = self.record()["workers"]
        return [worker for worker in found if worker["state"] == standalone.ALIVE]

    def busy(self) -> set[int]:
        """Ports of the workers that have an executor, as the master knows."""
        return {worker["port"] for worker in self.alive() if worker["coresused"]}

    def stop(self) -> None:
        for daemon in (*self.workers.values(), self.master):
            daemon.stop()

    def _serves(self) -> bool:
        try:
            return standalone.problem(self.record(), None) is None
        except (OSError, ValueError):
            return False
