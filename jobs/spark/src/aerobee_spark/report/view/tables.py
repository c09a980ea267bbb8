"""Build the tables of a report, which are shown as CSV and HTML, and format text for a terminal.

A table has a title, column names, and rows of plain values. `show` formats the main figures for a
terminal in about twenty lines. Only `write_csv` does I/O.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerobee_spark.report.data.summary import Summary
from aerobee_spark.report.formats import duration

BYTE_ORDER_MARK = "utf-8-sig"  # Excel reads UTF-8 only with this mark
# A spreadsheet runs a cell that begins with one of these characters as a formula. The text may come
# from a user.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


@dataclass(frozen=True, slots=True)
class Table:
    name: str
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]


def tables_of(summary: Summary) -> list[Table]:
    """Return the tables of a report. Leave out empty tables, except for the table of queues."""
    made = [
        Table("queues", "Queues", _QUEUE_COLUMNS, _rows(summary["queues"], _QUEUE_COLUMNS)),
        *(_counts(name, title, summary[name]) for name, title in _COUNTS.items()),
        _records(
            "dead_letters_by_reason_and_tag",
            "Dead letters by reason and tag",
            summary["dead_letters_by_reason_and_tag"],
        ),
        _records("clusters", "Dead letters by cause", summary["clusters"]),
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
# Keys of records that are not columns, because they repeat another key or are nested.
_LEFT_OUT = ("start_ms", "properties", "body_kind", "example")


def _records(name: str, title: str, records: Sequence[Mapping[str, Any]]) -> Table:
    """Build a table from records. Its columns are the keys of the first record, in order."""
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
    """Convert a value for a CSV cell.

    A text that a spreadsheet would run as a formula gets an apostrophe as its first character.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value


# ---- text ----


def as_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Format rows as text with aligned columns: numbers to the right, text to the left.

    The first line has the column names. If all names are empty, this line is left out.
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


MOST_ROWS = 10


def show(summary: Summary) -> str:
    parts = [_headline(summary)]
    parts += [f"  ! {problem}" for problem in summary["problems"]]
    parts += ["", as_text(("", ""), list(_totals(summary)))]
    for title, key in (("tag", "dead_letters_by_tag"), ("reason", "dead_letters_by_reason")):
        if summary[key]:
            parts += ["", _ranking(title, summary[key])]
    return "\n".join(parts)


def _headline(summary: Summary) -> str:
    state = "complete" if summary["complete"] else "NOT COMPLETE"
    expected = "?" if summary["rows_expected"] is None else f"{summary['rows_expected']:,}"
    return (
        f"{summary['group']}: {state}, {summary['rows']:,} of {expected} messages read "
        f"from {len(summary['queues'])} queues"
    )


def _totals(summary: Summary) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    if summary["dead_letters"] is not None:
        since = f" (since {summary['new_since']})" if summary["new_since"] else ""
        rows += [
            ("dead letters", summary["dead_letters"]),
            (f"new{since}", summary["new_dead_letters"]),
            *(
                (f"  {name}", count)
                for name, count in (summary["dead_letters_by_state"] or {}).items()
            ),
            ("dead-lettered again", summary["dead_lettered_again"]),
            ("dead-lettered after redrive", summary["dead_lettered_after_redrive"]),
        ]
    if summary["oldest_dead_letter"]:
        waited = summary["time_to_dead_letter_ms"]
        rows += [
            ("oldest", summary["oldest_dead_letter"]["stored_at"]),
            ("newest", summary["newest_dead_letter"]["stored_at"]),
            ("time to dead letter", f"{duration(waited['p50'])} (median)"),
        ]
    rows += _forecast(summary)
    if summary["retries"] is not None:
        rows += [
            ("messages retried", _known(summary["retries"]["messages"])),
            ("retries", summary["retries"]["records"]),
        ]
    return rows


def _known(value: int | None) -> int | str:
    return "unknown" if value is None else value


def _forecast(summary: Summary) -> list[tuple[str, Any]]:
    """Return (label, value) rows about expiry, trend and retry settings that are known."""
    expires, trend, group = summary["expires"], summary["trend"], summary["group_settings"]
    rows: list[tuple[str, Any]] = []
    if expires and summary["dead_letters"]:
        within = expires["within_24h"]
        rows.append(("expire within 24 h", "unknown" if within is None else within))
    if trend:
        more = "" if trend["before_complete"] else "at least "
        before = f"{more}{trend['before_dead_letters']:,}"
        window = "this window" if summary["window"]["since"] else "the last 24 h"
        rows.append((f"dead letters in {window}", f"{trend['dead_letters']:,} (before: {before})"))
    if group:
        rows.append(("maximum attempts", group["max_attempts"]))
    return rows


def _ranking(title: str, counts: dict[str, int]) -> str:
    rows = [(value or "(none)", number) for value, number in counts.items()]
    text = as_text((title, "dead letters"), rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        text += f"\n… and {len(rows) - MOST_ROWS} more"
    return text
