"""Report every consumer group: one folder for each, and an overview page with a row for each.

Groups without a dead-letter or retry topic appear in the overview by name only. If the report of a
group fails, the overview is incomplete, and the other groups are still reported.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from aerobee_spark.errors import MqError
from aerobee_spark.reading import planning
from aerobee_spark.report import job, publishing
from aerobee_spark.report.every_group import groups_page
from aerobee_spark.report.every_group.groups_summary import (
    GroupsSummary,
    failed_line,
    line,
    summarize,
)
from aerobee_spark.report.request import DLQ, RETRY, ReportRequest
from aerobee_wire import topics

NAMES = {DLQ: topics.dead_letter_topic, RETRY: topics.retry_topic}


def run(request: ReportRequest, on_step: job.ProgressSink) -> GroupsSummary:
    """Write the reports, the overview page and its summary to `request.out`.

    Args:
        request: a request without a group.
        on_step: called with each step.

    Returns:
        The summary of all groups.

    Raises:
        MqError: no report can be made (ReportError if the folder is the reason).
    """
    publishing.check_groups_target(request.out)
    with_topics, without = _groups(request)
    lines = [_report(request, group, on_step) for group in with_topics]
    now_ms = round(time.time() * 1000)
    summary = summarize(request, lines, without, now_ms=now_ms)
    on_step("writing the overview page")
    _write(request.out, summary)
    return summary


def _groups(request: ReportRequest) -> tuple[list[str], list[str]]:
    """Return groups with a topic to report, also deleted groups, and groups without; sorted."""
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
        on_step(f"{group}: {error.message}")
        return failed_line(group, error.message)
    return line(made, f"{publishing.GROUPS}/{group}/{publishing.PAGE}")


def _write(out: Path, summary: GroupsSummary) -> None:
    """Write the page, then the summary: a program that waits for the summary finds both."""
    texts = {
        publishing.PAGE: groups_page.render(summary),
        publishing.SUMMARY: json.dumps(summary, indent=2, ensure_ascii=False) + "\n",
    }
    with publishing.scratch_folder(out) as folder:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        for name in texts:
            (folder / name).replace(out / name)
