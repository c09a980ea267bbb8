"""Report every consumer group: one folder for each, and an overview page with a row for each.

The overview lists groups without a dead-letter or retry topic by name only. If the report of a
group fails, the overview is incomplete, but the other groups are still reported.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aerobee_spark.errors import MqError
from aerobee_spark.reading import planning
from aerobee_spark.report import job, publishing
from aerobee_spark.report.data.forecast import sum_of
from aerobee_spark.report.data.summary import SCHEMA_VERSION, Summary
from aerobee_spark.report.formats import encodable, iso
from aerobee_spark.report.request import DLQ, RETRY, ReportRequest
from aerobee_spark.report.view import page
from aerobee_spark.report.view.tables import as_text
from aerobee_wire import topics

NAMES = {DLQ: topics.dead_letter_topic, RETRY: topics.retry_topic}
TEMPLATE = "groups.html.j2"
COLUMNS = ("group", "dead letters", "new", "oldest", "expire within 24 h", "complete")
# The figures of a group in the order of the columns. They are null if the report of a group failed.
FIGURES = ("dead_letters", "new_dead_letters", "oldest_dead_letter")

GroupsSummary = dict[str, Any]


def run(request: ReportRequest, on_step: job.ProgressSink) -> GroupsSummary:
    """Write the reports, the overview page and its summary to `request.out`.

    Args:
        request: the request for the reports. Its consumer group is ignored.
        on_step: called with each step.

    Returns:
        The summary of all groups.

    Raises:
        MqError: no report can be made. If the folder cannot be used, the error is a ReportError.
    """
    publishing.check_groups_target(request.out)
    with_topics, without = _groups(request)
    groups = [_report(request, group, on_step) for group in with_topics]
    now_ms = round(time.time() * 1000)
    summary = summarize(request, groups, without, now_ms=now_ms)
    on_step("writing the overview page")
    _write(request.out, summary)
    return summary


def _groups(request: ReportRequest) -> tuple[list[str], list[str]]:
    """Return (groups to report, other groups), each sorted.

    A group is reported if it has a topic of the requested kinds, even if the group was deleted.
    """
    with planning.connect(request.name_server) as admin:
        there = {topic.topic for topic in admin.list_topics(include_derived=True)}
        known = {group.consumer_group for group in admin.list_groups()}
    asked = {kind: NAMES[kind]("") for kind in request.kinds}
    found = {
        name.removeprefix(prefix)
        for name in there
        for prefix in asked.values()
        if name.startswith(prefix)
    }
    return sorted(found), sorted(known - found)


def _report(request: ReportRequest, group: str, on_step: job.ProgressSink) -> dict[str, Any]:
    folder = request.out / publishing.GROUPS / group
    try:
        made = job.run(replace(request, consumer_group=group, out=folder), on_step)
    except MqError as error:
        problem = error.message
    except Exception as error:  # a defect: the other groups have their reports all the same
        problem = f"the report failed: {type(error).__name__}: {error}"
    else:
        return group_summary(made, f"{publishing.GROUPS}/{group}/{publishing.PAGE}")
    on_step(f"{group}: {problem}")
    return failed_group(group, problem)


def _write(out: Path, summary: GroupsSummary) -> None:
    """Write the overview page and its summary into `out`.

    The summary is written last, so that a program that waits for it finds both files.
    """
    texts = {
        publishing.PAGE: render(summary),
        publishing.SUMMARY: json.dumps(summary, indent=2, ensure_ascii=False) + "\n",
    }
    with publishing.scratch_folder(out) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name in texts:
            (folder / name).replace(out / name)


# ---- summary.json: docs/spark.md describes the keys ----


def group_summary(summary: Summary, page: str) -> dict[str, Any]:
    """Build the entry of one group. `page` is the path of its report, relative to the overview."""
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


def failed_group(group: str, problem: str) -> dict[str, Any]:
    """Build the entry of a group whose report failed."""
    nothing = dict.fromkeys(FIGURES) | dict.fromkeys(
        ("expire_within_24h", "oldest_goes_at", "retries", "page")
    )
    return {"group": group, "complete": False, "problems": encodable([problem]), **nothing}


def summarize(
    request: ReportRequest,
    groups: Sequence[Mapping[str, Any]],
    without: Sequence[str],
    *,
    now_ms: int,
) -> GroupsSummary:
    """Build the summary of all groups.

    `without` lists the groups that do not have a topic of the requested kinds.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "kinds": list(request.kinds),
        "generated_at": iso(now_ms),
        "generated_timestamp_ms": now_ms,
        "complete": all(each["complete"] for each in groups),
        "window": {"since": iso(request.since_ms), "until": iso(request.until_ms)},
        "dead_letters": sum_of(each["dead_letters"] for each in groups),
        "new_dead_letters": sum_of(each["new_dead_letters"] for each in groups),
        "groups": sorted(groups, key=lambda each: -(each["dead_letters"] or 0)),
        "groups_without_topics": list(without),
    }


# ---- the page ----


def render(summary: GroupsSummary) -> str:
    environment = page.environment()
    environment.filters["link"] = quote
    return environment.get_template(TEMPLATE).render(s=summary, style=page.style(environment))


def show(summary: GroupsSummary) -> str:
    """Format the summary of all groups as text for a terminal."""
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
