"""A facts table by its path or URI. A path needs no Java; a URI is what Spark's Hadoop FileSystem
reaches, with a Spark session of its own for as long as the table is open."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java, submitted
from aerobee_spark.table.files import FactsFiles
from aerobee_spark.table.hadoop_files import HadoopFiles
from aerobee_spark.table.storage import Table

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
# Lists, patterns, queries and escapes, to Spark or in a URI.
_MEANINGFUL = frozenset(",;[]{}()*?!^\\%#\"' ")


def parse(text: str) -> Table:
    """Raises ReportError: a URI with a character that means something to Spark."""
    if not _URI.match(text):
        return Path(text)
    if found := _MEANINGFUL & set(text):
        raise ReportError(
            f"{text} has {min(found)!r}, which means something to Spark: give another folder", text
        )
    return text


@contextmanager
def opened(table: Table) -> Iterator[FactsFiles]:
    """Raises ReportError: a URI, and no Spark or Java here to reach it."""
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
    instead = f"or copy the table to a disk of this machine and give its path in place of {uri}"
    if find_spec("pyspark") is None:
        raise ReportError(
            f"a table at a URI is read through Spark: pip install aerobee-spark[spark]; {instead}",
            uri,
        )
    if not submitted.is_submitted():
        try:
            java.require_java()
        except ReportError as error:
            raise ReportError(f"{error.message}; {instead}", uri) from None
