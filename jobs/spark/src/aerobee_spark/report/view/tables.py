"""Build the tables of a report: the same rows as CSV, as HTML, and as text.

A table is a title, column names and rows of plain values. Only `write_csv` does I/O.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_spark.report.data.summary import Summary

BYTE_ORDER_MARK = "utf-8-sig"  # Excel reads UTF-8 only with this mark
# A spreadsheet runs a cell with this start as a formula, and its text may come from a user.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def tables_of(summary: Summary) -> list[Table]:
    """Return the tables that have rows, and always the table of queues."""
    made = [
        Table("queues", "Queues", _QUEUE_COLUMNS, _rows(summary["queues"], _QUEUE_COLUMNS)),
        *(_counts(name, title, summary[name]) for name, title in _COUNTS.items()),
        _records(
            "dead_letters_by_reason_and_tag",
            "Dead letters by reason and tag",
            summary["dead_letters_by_reason_and_tag"],
        ),
        _records("poison_keys", "Poison keys", summary["poison_keys"]),
        _records("expires", "Expiry by broker", (summary["expires"] or {}).get("brokers", ())),
        _records("timeline", "Timeline", summary["timeline"]["buckets"]),
        _records("samples", "Samples", summary["samples"]),
    ]
    return [table for table in made if table.rows or table.name == "queues"]


_COUNTS = {
    "dead_letters_by_tag": "Dead letters by tag",
    "dead_letters_by_reason": "Dead letters by reason",
    "dead_letters_by_origin_topic": "Dead letters by origin topic",
    "dead_letters_by_producer": "Dead letters by producer",
    "reconsume_times": "Dead letters by reconsume times",
}
_QUEUE_COLUMNS = (
    "kind",
    "topic",
    "broker_name",
    "queue_id",
    "min_offset",
    "max_offset",
    "start_offset",
    "end_offset",
    "expected",
    "rows",
    "complete",
    "problem",
)
# Keys of records that are not columns: they repeat another key, or are nested.
_LEFT_OUT = ("start_ms", "properties", "body_kind")


def _records(name: str, title: str, records: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table whose columns are the keys of the records, in their order."""
    columns = tuple(key for key in (records[0] if records else ()) if key not in _LEFT_OUT)
    return Table(name, title, columns, _rows(records, columns))


def _rows(records: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> list[tuple[Any, ...]]:
    return [tuple(record[name] for name in columns) for record in records]


def _counts(name: str, title: str, counts: Mapping[str, int] | None) -> Table:
    return Table(name, title, ("value", "dead_letters"), list((counts or {}).items()))


# ---- CSV ----


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with path.open("w", encoding=BYTE_ORDER_MARK, newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(map(guarded, row) for row in rows)


def guarded(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would run as a formula."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


# ---- text ----


def as_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Align columns: numbers to the right, text to the left.

    Without column names there is no heading.
    """
    cells = [list(columns), *([_shown(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [all(_is_number(row[i]) for row in cells[1:]) for i in range(len(columns))]
    lines = []
    for row in cells if any(columns) else cells[1:]:
        parts = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        )
        lines.append("  ".join(parts).rstrip())
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").replace(".", "").lstrip("-").isdigit()
