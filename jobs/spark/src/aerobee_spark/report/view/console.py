"""Format the main figures of a report for a terminal, in twenty lines.

This module does no I/O.
"""

from __future__ import annotations

from typing import Any

from aerobee_spark.report.data.summary import Summary
from aerobee_spark.report.formats import duration
from aerobee_spark.report.view.tables import as_text

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
            ("messages retried", summary["retries"]["messages"]),
            ("retries", summary["retries"]["records"]),
        ]
    return rows


def _forecast(summary: Summary) -> list[tuple[str, Any]]:
    """Return the rows about expiry, trend and settings, as far as they are known."""
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
