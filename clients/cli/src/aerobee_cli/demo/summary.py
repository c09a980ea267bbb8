"""Add the results of the demo to the report's summary.json, and print them as a table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from aerobee_cli.demo.job import Job
from aerobee_cli.demo.progress import Figures
from aerobee_cli.output import Column, number, write_table

SUMMARY = "summary.json"
PAGE = "report.html"


def extra(job: Job) -> dict[str, Any]:
    """Return the figures that only the demo's consumer has; the report shows them too."""
    names = ("messages_sent", "messages_consumed", "retried", "mean_arrival_delay_by_tag")
    figures = dataclasses.asdict(job.figures())
    return {name: figures[name] for name in names}


def complete(out: Path, job: Job) -> None:
    """Add the figures of the job to summary.json, which then counts messages, not records.

    The two differ after a crash of a broker: a redelivered message may be in the dead-letter topic
    twice. `complete` means that the report has read everything, and that every message was consumed
    or dead-lettered.
    """
    path = out / SUMMARY
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    figures = dataclasses.asdict(job.figures())
    is_complete = bool(report["complete"]) and job.is_finished()
    counted = {"complete": is_complete, **figures, "dead_letter_records": report["dead_letters"]}
    # The figures of the demo come first in the file.
    summary = counted | {name: value for name, value in report.items() if name not in counted}
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)


def show(out: Path, job: Job) -> None:
    """Print the figures and the path of the report."""
    figures = job.figures()
    print()
    for title, count in (
        ("messages sent", figures.messages_sent),
        ("messages consumed", figures.messages_consumed),
        ("retried", figures.retried),
        ("dead letters", figures.dead_letters),
    ):
        print(f"  {title:<18}{count:>9,}")
    columns = (
        Column("carrier", "carrier"),
        number("flights counted", "consumed"),
        Column("mean arrival delay, minutes", "delay", _minutes, right=True),
        number("dead letters", "dead_letters"),
    )
    write_table(_by_carrier(figures, job.delays.count_by_carrier()), columns)
    print(f"The report: {out / PAGE} (figures: {out / SUMMARY})")


def _by_carrier(figures: Figures, consumed: dict[str, int]) -> list[dict[str, Any]]:
    carriers = sorted(figures.mean_arrival_delay_by_tag.keys() | figures.dead_letters_by_tag.keys())
    return [
        {
            "carrier": carrier,
            "consumed": consumed.get(carrier, 0),
            "delay": figures.mean_arrival_delay_by_tag.get(carrier),
            "dead_letters": figures.dead_letters_by_tag.get(carrier, 0),
        }
        for carrier in carriers
    ]


def _minutes(delay: float | None) -> str:
    return "" if delay is None else f"{delay:.1f}"
