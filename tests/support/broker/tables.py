"""The rows of a table as a start finds them in its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aerobee_broker.disk import Disk
from aerobee_broker.metadata.changes.incremental_table import load_table
from aerobee_broker.metadata.table import JournalledTable


def rows_in(table: JournalledTable, disk: Disk, path: Path) -> dict[str, Any]:
    """By name, as JSON. `table`: an empty one, which is filled. `path`: of its JSON file."""
    load_table(table, disk, path)
    return {table.name_of(key): table.row_to_json(row) for key, row in table.rows().items()}
