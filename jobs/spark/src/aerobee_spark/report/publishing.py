"""Publish a report: write it to a scratch folder, and rename its parts at the end.

Until the parts are renamed, the folder has the complete earlier report. Publishing replaces only
files and folders that a report writes. `plain_path` provides a path without characters that
engines interpret.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aerobee_spark.errors import ReportError

SUMMARY = "summary.json"
PAGE = "report.html"
REDRIVE = "redrive.jsonl"
FACTS = "facts"
TABLES = "csv"
# The parts of a report in the order in which they are renamed. The summary is last, because a
# program may wait for it.
PARTS = (FACTS, TABLES, REDRIVE, PAGE, SUMMARY)
# The folder for the reports of all groups. Each group has a subfolder with its report.
GROUPS = "groups"
# Suffixes of the files in the folders of a report. Parquet's checksum files are hidden files.
_OURS = {FACTS: (".parquet", ".crc", "_SUCCESS"), TABLES: (".csv",)}


def check_target(out: Path) -> None:
    """Create the folder of a report, and check that a report can be published there.

    Raise ReportError if the folder cannot be created or written. Also raise it if the folder has
    the reports of all groups, or if a part to replace contains files that no report wrote.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"cannot create the folder {out} ({error.strerror}): use another --out", str(out)
        ) from None
    if not os.access(out, os.W_OK):
        raise ReportError(f"{out} is not writable: use another --out, or permit writing", str(out))
    if (out / GROUPS).exists():
        raise ReportError(
            f"{out} holds the reports of all groups: use another --out", str(out / GROUPS)
        )
    for name, endings in _OURS.items():
        folder = out / name
        foreign = [
            path.name
            for path in (folder.iterdir() if folder.is_dir() else ())
            if not path.name.endswith(endings)
        ]
        if foreign or folder.is_file():
            what = f"{folder} holds {foreign[0]}" if foreign else f"{folder} is a file"
            problem = f"{what}, which no report wrote: use another --out, or move it"
            raise ReportError(problem, str(folder / foreign[0] if foreign else folder))


def check_groups_target(out: Path) -> None:
    """Create the folder for the reports of all groups.

    Raise ReportError if the folder cannot be created, or has the report of a single group.
    """
    alone = next((out / name for name in (FACTS, TABLES, REDRIVE) if (out / name).exists()), None)
    if alone is not None:
        raise ReportError(
            f"{out} holds {alone.name}, the report of one group: use another --out", str(alone)
        )
    try:
        (out / GROUPS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"cannot create the folder {out} ({error.strerror}): use another --out", str(out)
        ) from None


@contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
    """Create a folder inside `out` for an unfinished report, and remove it after the block."""
    folder = Path(tempfile.mkdtemp(prefix=".report-", dir=out))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(finished: Path, out: Path) -> None:
    """Move the parts of a report from `finished` to `out`, and replace an earlier report there."""
    for name in PARTS:
        target = out / name
        if target.is_dir():
            target.rename(finished / f"{name}.earlier")  # removed with the scratch folder
        (finished / name).replace(target)


@contextmanager
def plain_path(folder: Path) -> Iterator[Path]:
    """Create a link to `folder` for the block. Its path has no characters that engines interpret.

    Spark interprets commas, brackets and colons as lists, patterns and URIs. DuckDB interprets
    brackets and stars as patterns.
    """
    with tempfile.TemporaryDirectory(prefix="aerobee-report-") as directory:
        link = Path(directory) / "work"
        link.symlink_to(folder.resolve(), target_is_directory=True)
        yield link
