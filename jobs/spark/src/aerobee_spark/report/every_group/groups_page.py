"""Render the overview of all groups as report.html and for a terminal.

This module does no I/O.
"""

from __future__ import annotations

from urllib.parse import quote

from aerobee_spark.report.every_group.groups_summary import GroupsSummary
from aerobee_spark.report.view import page
from aerobee_spark.report.view.tables import as_text

TEMPLATE = "groups.html.j2"
COLUMNS = ("group", "dead letters", "new", "oldest", "expire within 24 h", "complete")


def render(summary: GroupsSummary) -> str:
    environment = page.environment()
    environment.filters["link"] = quote
    return environment.get_template(TEMPLATE).render(s=summary, style=page.style(environment))


def show(summary: GroupsSummary) -> str:
    """Format the overview for a terminal."""
    rows = [
        (
            each["group"],
            page.number(each["dead_letters"]),
            page.number(each["new_dead_letters"]),
            "" if each["oldest_dead_letter"] is None else each["oldest_dead_letter"]["stored_at"],
            page.number(each["expire_within_24h"]),
            "yes" if each["complete"] else "NO",
        )
        for each in summary["groups"]
    ]
    problems = [
        f"  ! {each['group']}: {problem}"
        for each in summary["groups"]
        for problem in each["problems"]
    ]
    state = "complete" if summary["complete"] else "NOT COMPLETE"
    head = (
        f"{len(rows)} groups with dead letters or retries: {state}; "
        f"{len(summary['groups_without_topics'])} groups have neither"
    )
    return "\n".join([head, *problems, *(["", as_text(COLUMNS, rows)] if rows else [])])
