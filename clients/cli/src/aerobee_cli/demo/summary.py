"""What the demo found: added to the report's summary.json, and shown as a table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from aerobee_cli.demo.figures import Figures
from aerobee_cli.demo.job import Job
from aerobee_cli.output import Column, number, write_table

SUMMARY = "summary.json"
PAGE = "report.html"


def write(out: Path, job: Job) -> dict[str, Any]:
    """Adds the figures of the job to the summary that the report has written, and returns both.

    `complete`: the report has read everything, and every message was consumed or dead-lettered.
    """
    path = out / SUMMARY
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    merged = report | dataclasses.asdict(job.figures())
    merged["complete"] = bool(report["complete"]) and job.is_settled()
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(merged, indent=2) + "\n", encoding="utf-8")
    scratch.replace(path)
    return merged


def show(out: Path, job: Job) -> None:
    """The table, and where the report is. On stdout."""
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
