"""A path that driver and workers have in common, and that has no meaning to Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import submitted
from aerobee_spark.report.engines.plain_path import plain_path

# Lists, patterns, URIs and escapes.
MEANINGFUL = frozenset(",:;[]{}()*?!^\\%#\"' ")


@contextmanager
def spark_path(folder: Path) -> Iterator[Path]:
    """A link to `folder` for the block. Under spark-submit the folder itself: the workers write
    there, and know no link of this machine. Raises ReportError when its name means something to
    Spark then."""
    if not submitted.is_submitted():
        with plain_path(folder) as link:
            yield link
        return
    whole = folder.resolve()
    if found := MEANINGFUL & set(str(whole)):
        raise ReportError(
            f"{whole} has {min(found)!r}, which means something to Spark: give another folder",
            str(whole),
        )
    yield whole
