"""Manage the files of a facts table at a URI, through the Hadoop FileSystem of the driver's Java.

A file must appear in one step and must never replace another. There are two ways:
- Conditional creation: the store creates a file only if it does not exist, and shows it when it is
  closed. Hadoop's path capability is fs.option.create.conditional.overwrite (S3A).
- Rename: the file is written under a hidden name and renamed. This works if a rename is one step
  and replaces nothing, as in HDFS. The scheme file: checks the target before the rename, so there
  only the lock keeps two writers apart.
A file system with neither is rejected.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aerobee_spark.errors import ReportError
from aerobee_spark.table import holders

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONDITIONAL = "fs.option.create.conditional.overwrite"
RENAMING = ("file", "hdfs")
LOCKS = "_locks"
CREATED_ONCE = "created-once"


class HadoopFiles:
    """TableFiles at a URI.

    Args:
        spark: the session whose Java accesses the file system.
        uri: the folder of the table.

    Raises:
        ReportError: Java does not have the file system, or cannot create a file in one step.
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

    def _create_if_none(self, name: str, content: bytes) -> None:
        with self._failures():
            builder = self._system.createFile(self._path(name)).recursive().overwrite(True)
            stream = builder.must(CONDITIONAL, "true").build()
            stream.write(content)
            stream.close()

    def _rename_into_place(self, name: str, content: bytes) -> None:
        """Write under a hidden name and rename. A killed job leaves the hidden file behind."""
        folder, _, last = name.rpartition("/")
        beside, target = self._path(f"{folder}/.{last}.{uuid.uuid4().hex}"), self._path(name)
        fs = self._jvm.org.apache.hadoop.fs
        with self._failures():
            stream = self._system.create(beside, False)
            stream.write(content)
            stream.hsync()
            stream.close()
            options = self._gateway.new_array(fs.Options.Rename, 1)
            options[0] = fs.Options.Rename.NONE
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
        """Do nothing: the file system has made a closed file durable, if it does so at all."""

    @contextmanager
    def lock(self, name: str) -> Iterator[Sequence[int]]:
        java = int(self._jvm.java.lang.ProcessHandle.current().pid())
        with holders.held(self, f"{LOCKS}/{name.strip('_')}", java):
            if self._conditional:
                self._require_refusal(f"{LOCKS}/{CREATED_ONCE}")
            yield ()

    def _require_refusal(self, name: str) -> None:
        """Create an existing file again, and raise ReportError if the store does not refuse.

        Some S3 stores ignore If-None-Match. There, one commit would replace another.
        """
        self.create(name, b"")
        try:
            self._create_if_none(name, b"")
        except ReportError:
            return  # refused; if the error had another cause, the first commit fails with it
        raise ReportError(
            f"{self.where} cannot hold a facts table: its store replaces an existing file "
            "despite the condition If-None-Match of S3; use a table in another store",
            self.where,
        )

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.where}/{name}".rstrip("/"))

    def _here(self, path: Path) -> Any:
        """Return Hadoop's Path, which does not understand the escapes of Path.as_uri."""
        return self._jvm.org.apache.hadoop.fs.Path(f"file://{path}")

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Convert errors of Java to FileNotFoundError or ReportError."""
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
