"""The rows of a table as a start finds them in its files, and a disk that accepts no more rows."""

from __future__ import annotations

import errno
import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

from aerobee_broker.disk import Disk, RealDisk, RealFile
from aerobee_broker.metadata.incremental_table import IncrementalTable, load_table
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.metadata.table import JournalledTable
from support.clock.manual_clock import ManualClock


def rows_in(table: JournalledTable, disk: Disk, path: Path) -> dict[str, Any]:
    """By name, as JSON. `table`: an empty one, which is filled. `path`: of its JSON file."""
    load_table(table, disk, path)
    return {table.name_of(key): table.row_to_json(row) for key, row in table.rows().items()}


def saved_rows(saved: PersistentTable) -> dict[str, Any]:
    """The rows that the files of a running broker's table have, on the real disk."""
    assert isinstance(saved, IncrementalTable)
    return rows_in(type(saved._rows)(ManualClock()), RealDisk(), saved._file.path)


def failing_disk(number: int = errno.ENOSPC) -> AbstractContextManager[Any]:
    """Writes fail with this error; the default: there is no room."""
    error = OSError(number, os.strerror(number))
    return mock.patch.object(RealFile, "pwrite", side_effect=error)
