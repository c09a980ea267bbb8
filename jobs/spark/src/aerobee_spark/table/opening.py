"""Open a facts table by its path or URI.

A table at a path is opened without Java. A table at a URI is opened through Spark's Hadoop
FileSystem, with a Spark session that lasts until the table is closed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java, session
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.hadoop_files import HadoopFiles
from aerobee_spark.table.storage import Table

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
# Characters that Spark interprets (lists, patterns, queries, escapes), or that a URI must escape.
_MEANINGFUL = frozenset(",;[]{}()*?!^\\%#\"' ")


def parse(text: str) -> Table:
    """Parse a path or URI. Raise ReportError if a URI has a character that Spark interprets."""
    if not _URI.match(text):
        return Path(text)
    if found := _MEANINGFUL & set(text):
        raise ReportError(
            f"{text} has {min(found)!r}, which has a meaning for Spark: use another folder", text
        )
    return text


@contextmanager
def opened(table: Table) -> Iterator[FactsFiles]:
    """Open a facts table for the block.

    Raise ReportError if the table is at a URI but Spark or Java is missing.
    """
    if isinstance(table, Path):
        yield FactsFiles(table)
        return
    _require_spark(table)
    from aerobee_spark.jvm import session

    with tempfile.TemporaryDirectory(prefix="aerobee-facts-") as folder:
        scratch = Path(folder) / "spark"
        scratch.mkdir()
        with session.session(scratch, Path(folder) / "spark.log") as spark:
            yield FactsFiles(HadoopFiles(spark, table))


def _require_spark(uri: str) -> None:
    instead = f"or copy the table to a local disk and use its path in place of {uri}"
    if find_spec("pyspark") is None:
        raise ReportError(
            f"a table at a URI needs Spark: pip install 'aerobee-spark[spark]'; {instead}",
            uri,
        )
    if not session.is_submitted():
        try:
            java.require_java()
        except ReportError as error:
            raise ReportError(f"{error.message}; {instead}", uri) from None
