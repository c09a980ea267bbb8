"""Publishing a report: it is written in a scratch folder, and its parts are renamed at the end.

Until then the folder holds the earlier report, complete. Only files and folders that a report
writes are replaced, by name.
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
# In the order of their renaming: the summary, which a program may wait for, is the last.
PARTS = (FACTS, TABLES, REDRIVE, PAGE, SUMMARY)
# Of the reports of all groups: a folder for each of them, with the parts of its report.
GROUPS = "groups"
# Endings of the files in the folders of a report; Parquet's checksum files are hidden files.
_OURS = {FACTS: (".parquet", ".crc", "_SUCCESS"), TABLES: (".csv",)}


def check_target(out: Path) -> None:
    """Creates the folder. Raises ReportError when that fails, or when a folder of a report in it
    holds other files."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"{out} cannot be made into a folder ({error.strerror}): give another --out", str(out)
        ) from None
    if not os.access(out, os.W_OK):
        raise ReportError(f"{out} is not writable: give another --out, or permission", str(out))
    if (out / GROUPS).exists():
        raise ReportError(
            f"{out} holds the reports of all groups: give another --out", str(out / GROUPS)
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
            problem = f"{what}, which no report wrote: give another --out, or move it"
            raise ReportError(problem, str(folder / foreign[0] if foreign else folder))


def check_groups_target(out: Path) -> None:
    """Creates the folder for the reports of all groups. Raises ReportError when that fails, or when
    it holds the report of one group."""
    alone = next((out / name for name in (FACTS, TABLES, REDRIVE) if (out / name).exists()), None)
    if alone is not None:
        raise ReportError(
            f"{out} holds {alone.name}, the report of one group: give another --out", str(alone)
        )
    try:
        (out / GROUPS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"{out} cannot be made into a folder ({error.strerror}): give another --out", str(out)
        ) from None


@contextmanager
def scratch_folder(out: Path) -> Iterator[Path]:
    """A folder inside `out`, so on the same disk, that is removed after the block."""
    folder = Path(tempfile.mkdtemp(prefix=".report-", dir=out))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(finished: Path, out: Path) -> None:
    """Moves the parts of a report from `finished` to `out` and replaces the earlier ones."""
    for name in PARTS:
        target = out / name
        if target.is_dir():
            target.rename(finished / f"{name}.earlier")  # removed with the scratch folder
        (finished / name).replace(target)
