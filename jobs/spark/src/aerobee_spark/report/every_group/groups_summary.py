"""Build summary.json of all groups, with an entry for each.

docs/spark.md describes the keys. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aerobee_spark.report.data.summary import SCHEMA_VERSION, Summary
from aerobee_spark.report.data.times import iso
from aerobee_spark.report.request import ReportRequest

GroupsSummary = dict[str, Any]
# Figures in the order of the table. All are null for a group whose report failed.
FIGURES = ("dead_letters", "new_dead_letters", "oldest_dead_letter")


def line(summary: Summary, page: str) -> dict[str, Any]:
    """Summarize one group. `page` is the path of its report, relative to the overview."""
    expires = summary["expires"] or {}
    return {
        "group": summary["group"],
        "complete": summary["complete"],
        "problems": summary["problems"],
        **{name: summary[name] for name in FIGURES},
        "expire_within_24h": expires.get("within_24h"),
        "oldest_goes_at": expires.get("oldest_goes_at"),
        "retries": None if summary["retries"] is None else summary["retries"]["records"],
        "page": page,
    }


def failed_line(group: str, problem: str) -> dict[str, Any]:
    """Return the entry of a group whose report failed."""
    nothing = dict.fromkeys(FIGURES) | dict.fromkeys(
        ("expire_within_24h", "oldest_goes_at", "retries", "page")
    )
    return {"group": group, "complete": False, "problems": [problem], **nothing}


def summarize(
    request: ReportRequest,
    lines: Sequence[Mapping[str, Any]],
    without: Sequence[str],
    *,
    now_ms: int,
) -> GroupsSummary:
    """Build the summary. `without` names groups that have no topic of the requested kinds."""
    return {
        "schema_version": SCHEMA_VERSION,
        "kinds": list(request.kinds),
        "generated_at": iso(now_ms),
        "generated_timestamp_ms": now_ms,
        "complete": all(each["complete"] for each in lines),
        "window": {"since": iso(request.since_ms), "until": iso(request.until_ms)},
        "dead_letters": _sum(each["dead_letters"] for each in lines),
        "new_dead_letters": _sum(each["new_dead_letters"] for each in lines),
        "groups": sorted(lines, key=lambda each: -(each["dead_letters"] or 0)),
        "groups_without_topics": list(without),
    }


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum; null if a count is unknown."""
    found = list(counts)
    return None if None in found else sum(count or 0 for count in found)
