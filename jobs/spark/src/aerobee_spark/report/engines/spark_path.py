"""Provide a path that driver and workers share, and that Spark reads literally."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import submitted
from aerobee_spark.report.engines.plain_path import plain_path

# Characters that Spark reads as lists, patterns, URIs or escapes.
MEANINGFUL = frozenset(",:;[]{}()*?!^\\%#\"' ")


@contextmanager
def spark_path(folder: Path) -> Iterator[Path]:
    """Create a link to `folder` for the block.

    Under spark-submit, yield the folder itself: workers write there, and a link of this machine
    does
    not exist for them. Raise ReportError if its name has a character with a meaning for Spark.
    """
    if not submitted.is_submitted():
        with plain_path(folder) as link:
            yield link
        return
    whole = folder.resolve()
    if found := MEANINGFUL & set(str(whole)):
        raise ReportError(
            f"{whole} has {min(found)!r}, which has a meaning for Spark: use another folder",
            str(whole),
        )
    yield whole
