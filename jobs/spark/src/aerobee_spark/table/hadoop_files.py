"""Manage the files of a facts table at a URI, through the Hadoop FileSystem of the driver's Java.

A file must appear in one step and must not replace an existing file. There are two ways:
- Conditional creation: the store creates a file only if it does not exist, and makes it visible
  when it is closed. S3A has this capability (fs.option.create.conditional.overwrite).
- Rename: the file is written under a hidden name and then renamed. This needs a rename in one step
  that does not replace a file, as in HDFS. The scheme file: checks the target only before the
  rename, so there only the lock prevents that two writers interfere.
A file system that supports neither way is rejected.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_spark.errors import ReportError
from aerobee_spark.table.storage import INTERVAL_S, LEFTOVER_S, TableFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


CONDITIONAL = "fs.option.create.conditional.overwrite"
RENAMING = ("file", "hdfs")
LOCKS = "_locks"
CREATED_ONCE = "created-once"


class HadoopFiles:
    """Accesses the files of a facts table at a URI; implements TableFiles.

    Args:
        spark: the session whose Java accesses the file system.
        uri: the folder of the table.

    Raises:
        ReportError: Java does not support the file system, or cannot create a file in one step.
    """

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.where = uri.rstrip("/")
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._configuration: Any = spark._jsc.hadoopConfiguration()
        with self._failures():
            root = self._path("")
            self._system: Any = root.getFileSystem(self._configuration)
            self._conditional = bool(self._system.hasPathCapability(root, CONDITIONAL))
            scheme = self._system.getUri().getScheme()
        if not self._conditional and scheme not in RENAMING:
            raise ReportError(
                f"{self.where} cannot hold a facts table: {scheme} does not create a file in one "
                "step; use a folder in hdfs, file, or s3a with conditional creation (Hadoop 3.4.2 "
                "or newer, fs.s3a.create.conditional.enabled)",
                self.where,
            )

    def make(self, folder: str) -> None:
        with self._failures():
            self._system.mkdirs(self._path(folder))

    def exists(self, name: str) -> bool:
        with self._failures():
            return bool(self._system.exists(self._path(name)))

    def read(self, name: str) -> bytes:
        with self._failures():
            stream = self._system.open(self._path(name))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()

    def create(self, name: str, content: bytes) -> bool:
        if self.exists(name):
            return False
        try:
            if self._conditional:
                self._create_if_none(name, content)
            else:
                self._rename_into_place(name, content)
        except ReportError:
            if self.exists(name):  # another writer created it first
                return False
            raise
        return True

    def replace(self, name: str, content: bytes) -> None:
        if not self._conditional:
            self._rename_into_place(name, content, replaces=True)
            return
        with self._failures():  # the object exists when it is closed
            stream = self._system.create(self._path(name), True)
            stream.write(content)
            stream.close()

    def _create_if_none(self, name: str, content: bytes) -> None:
        with self._failures():
            builder = self._system.createFile(self._path(name)).recursive().overwrite(True)
            stream = builder.must(CONDITIONAL, "true").build()
            stream.write(content)
            stream.close()

    def _rename_into_place(self, name: str, content: bytes, *, replaces: bool = False) -> None:
        """Write a file under a hidden name and rename it. With `replaces`, the target may exist.

        If the job is killed in between, the hidden file stays.
        """
        folder, _, last = name.rpartition("/")
        beside, target = self._path(f"{folder}/.{last}.{uuid.uuid4().hex}"), self._path(name)
        fs = self._jvm.org.apache.hadoop.fs
        with self._failures():
            stream = self._system.create(beside, False)
            stream.write(content)
            stream.hsync()
            stream.close()
            options = self._gateway.new_array(fs.Options.Rename, 1)
            rename = fs.Options.Rename
            options[0] = rename.OVERWRITE if replaces else rename.NONE
            context = fs.FileContext.getFileContext(target.toUri(), self._configuration)
            try:
                context.rename(beside, target, options)
            finally:
                self._system.delete(beside, False)

    def names(self, folder: str = "") -> list[str]:
        try:
            with self._failures():
                found = self._system.listStatus(self._path(folder))
                names = [status.getPath().getName() for status in found]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if not name.startswith("."))

    def below(self, folder: str) -> list[str]:
        found: list[str] = []
        try:
            with self._failures():
                root = self._system.makeQualified(self._path("")).toUri().getPath()
                statuses = self._system.listFiles(self._path(folder), True)
                while statuses.hasNext():
                    found.append(statuses.next().getPath().toUri().getPath())
        except FileNotFoundError:
            return []
        return sorted(path.removeprefix(root).lstrip("/") for path in found)

    def delete(self, name: str) -> None:
        with self._failures():
            self._system.delete(self._path(name), True)

    @contextmanager
    def local(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="aerobee-facts-") as directory:
            copy = Path(directory) / "copy"
            with self._failures():
                target = self._here(copy)
                self._system.copyToLocalFile(False, self._path(name), target, True)
            yield copy

    @contextmanager
    def writing(self, folder: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="aerobee-facts-") as directory:
            yield Path(directory)
            for path in sorted(Path(directory).rglob("*")):
                if path.is_file():
                    target = self._path(f"{folder}/{path.relative_to(directory)}")
                    with self._failures():
                        self._system.copyFromLocalFile(False, True, self._here(path), target)

    def sync(self, names: Iterable[str]) -> None:
        """Do nothing, because the file system itself decides when a closed file is durable."""

    @contextmanager
    def lock(self, name: str) -> Iterator[Sequence[int]]:
        java = int(self._jvm.java.lang.ProcessHandle.current().pid())
        with held_by_files(self, f"{LOCKS}/{name.strip('_')}", java):
            if self._conditional:
                self._require_refusal(f"{LOCKS}/{CREATED_ONCE}")
            yield ()

    def _require_refusal(self, name: str) -> None:
        """Raise ReportError if the store allows a file to be created again.

        Some S3 stores ignore the condition If-None-Match, so that a commit could replace another
        commit. The check creates the file `name` twice.
        """
        self.create(name, b"")
        try:
            self._create_if_none(name, b"")
        except ReportError:
            return  # refused as wanted; any other error will also occur at the first commit
        raise ReportError(
            f"{self.where} cannot hold a facts table: its store replaces an existing file "
            "despite the condition If-None-Match of S3; use a table in another store",
            self.where,
        )

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.where}/{name}".rstrip("/"))

    def _here(self, path: Path) -> Any:
        """Return Hadoop's Path for a local path, without the escapes of Python's Path.as_uri."""
        return self._jvm.org.apache.hadoop.fs.Path(f"file://{path}")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert errors that Java raises in the block to FileNotFoundError or ReportError."""
        from py4j.protocol import Py4JJavaError

        try:
            yield
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getSimpleName()
            if kind == "FileNotFoundException":
                raise FileNotFoundError(self.where) from None
            text = (error.java_exception.getMessage() or "").splitlines()
            raise ReportError(
                f"cannot use {self.where}: {kind}: {next(iter(text), '')}; check the URI, "
                "and the packages and credentials that Spark has for this file system",
                self.where,
            ) from None


# ---- the lock ----
#
# Lock a table on a file system that has no locks.
#
# Each job writes its own lock file, and then reads the lock files of other jobs. If two jobs start
# at the same time, at least one of them finds the other's file and stops; both may stop.
#
# A lock file contains the processes that hold the lock. If a job was killed, the next job on the
# same machine deletes its lock file. A job on another machine cannot check whether the killed job
# still runs, so it stops, and the operator must delete the file.


@contextmanager
def held_by_files(files: TableFiles, folder: str, java: int) -> Iterator[None]:
    """Lock a facts table during the block, so that no other job writes it.

    The lock is held by this process and its Java process `java`. `folder` contains the lock files.
    If a job was killed on this machine, wait until its Java process has ended. Raise ReportError if
    another job holds the lock.
    """
    mine = f"{uuid.uuid4().hex}.json"
    files.make(folder)
    about = {"machine": _machine(), "processes": [_process(os.getpid()), _process(java)]}
    files.create(f"{folder}/{mine}", json.dumps(about).encode())
    try:
        for name in files.names(folder):
            if name != mine:
                _pass(files, f"{folder}/{name}")
        yield
    finally:
        files.delete(f"{folder}/{mine}")


def _pass(files: TableFiles, name: str) -> None:
    """Wait until the job that wrote a lock file no longer holds the lock.

    Raise ReportError if the job is still running.
    """
    deadline = time.monotonic() + LEFTOVER_S
    while True:
        try:
            holder: dict[str, Any] = json.loads(files.read(name))
        except FileNotFoundError:
            return
        here = holder["machine"] == _machine()
        job, *children = (here and _lives(each) for each in holder["processes"])
        if here and not job and not any(children):
            files.delete(name)
            return
        if not here or job or time.monotonic() > deadline:
            process = holder["processes"][0].partition(" ")[0]
            host = holder["machine"].partition(" ")[0]
            raise ReportError(
                f"another job writes to {files.where} (process {process} on {host}): wait until it "
                f"ends, or stop it; if it was killed, delete {files.where}/{name}",
                files.where,
            )
        time.sleep(INTERVAL_S)


def _machine() -> str:
    """Return the host name and boot id of this machine. The boot id changes with each boot."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
    return f"{socket.gethostname()} {boot}"


def _process(number: int) -> str:
    """Return the id and the start time of a process, which identify it even if ids are reused."""
    return f"{number} {_stat(number)[19]}"


def _lives(process: str) -> bool:
    number, _, start = process.partition(" ")
    try:
        fields = _stat(int(number))
    except OSError:
        return False
    return fields[0] != "Z" and fields[19] == start


def _stat(number: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the program name; the first one is the state."""
    return Path(f"/proc/{number}/stat").read_text("utf-8").rpartition(")")[2].split()
