"""A process of PySpark's daemon whose connection Spark closes at a moment that the test chooses.

The daemon runs `WORKER` in place of PySpark's worker module.
"""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import pytest
from pyspark.sql.types import StructType

from aerobee_spark.reading.schema import SCHEMA
from aerobee_spark.source import RocketMqSource
from support.clock.polling import until_sync

pytestmark = pytest.mark.spark

# Unpickles what Spark sends. Then it waits until Spark has closed the connection, and writes:
# EPIPE. Or it fills the connection, which Spark closes during the last write: ECONNRESET.
WORKER = """
import os, select
import pickle
from contextlib import suppress
from pyspark.serializers import read_bool, read_int

def main(infile, outfile):
    waits = read_bool(infile)
    pickle.loads(infile.read(read_int(infile)))
    outfile.write(b"1")
    outfile.flush()
    if waits:
        poller = select.poll()
        poller.register(outfile, 0)  # reports a hangup only
        assert poller.poll(60_000)
    else:
        os.set_blocking(outfile.fileno(), False)
        with suppress(BlockingIOError):
            while True:
                os.write(outfile.fileno(), bytes(1000))
        os.set_blocking(outfile.fileno(), True)
    outfile.write(bytes(1000))  # the daemon flushes it
"""
FRAME = StructType().add("body", "binary")


def made(kind: str) -> object:
    """Return what Spark pickles for a process: a reader or writer for a worker, others to plan."""
    source = RocketMqSource({"nameServer": "127.0.0.1:1", "topic": "t"})
    create: dict[str, Callable[[], object]] = {
        "found": lambda: importlib.import_module("pyspark_aerobee").DefaultSource,
        "source": lambda: source,
        "reader": lambda: source.reader(SCHEMA),
        "stream reader": lambda: source.streamReader(SCHEMA),
        "writer": lambda: source.writer(FRAME, overwrite=False),
        "stream writer": lambda: source.streamWriter(FRAME, overwrite=False),
    }
    return create[kind]()


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    # Not `tmp_path`, because the path of a socket has at most 107 bytes.
    with TemporaryDirectory() as folder:
        (Path(folder) / "pyspark_closed.py").write_text(WORKER)
        yield from started(folder)


def started(folder: str) -> Iterator[subprocess.Popen[bytes]]:
    variables = {
        "PYTHONPATH": folder,
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": folder,
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # as Spark sets it
    }
    command = [sys.executable, "-m", "pyspark.daemon", "pyspark_closed"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, env=os.environ | variables
    ) as process:
        yield process


def text(stream: IO[bytes] | None) -> str:
    assert stream is not None
    return stream.read().decode()


def state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("waits", [True, False], ids=["EPIPE", "ECONNRESET"])
@pytest.mark.parametrize(
    "kind", ["found", "source", "reader", "stream reader", "writer", "stream writer"]
)
def test_a_process_prints_nothing_if_its_connection_is_closed_before_the_first_row(
    daemon: subprocess.Popen[bytes], kind: str, *, waits: bool
) -> None:
    assert daemon.stdout is not None
    assert daemon.stdin is not None
    path = daemon.stdout.read(struct.unpack(">i", daemon.stdout.read(4))[0]).decode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        (worker,) = struct.unpack(">i", connection.recv(4))  # its process id
        pickled = pickle.dumps(made(kind))
        connection.sendall(struct.pack(">?i", waits, len(pickled)) + pickled)
        assert connection.recv(1) == b"1"
        if not waits:
            assert connection.recv(1, socket.MSG_PEEK) == b"\0"
            until_sync(lambda: state(worker) == "S")  # it sleeps in its write
    until_sync(lambda: not Path(f"/proc/{worker}").exists())
    daemon.stdin.close()
    assert text(daemon.stderr) == ""
