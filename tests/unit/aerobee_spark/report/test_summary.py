"""Test the summary: new dead letters, unknown figures, extra figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee_spark.errors import ReportError
from aerobee_spark.reading.offsets import Bounds, OffsetRange, Queue
from aerobee_spark.report.data.coverage import Coverage, QueueCoverage
from aerobee_spark.report.data.figures import Figures
from aerobee_spark.report.data.forecast import Forecast
from aerobee_spark.report.data.summary import (
    KEYS,
    SCHEMA_VERSION,
    Earlier,
    PreviousReport,
    build,
    check_extra,
)
from aerobee_spark.report.formats import iso
from aerobee_spark.report.request import DLQ, RETRY, ReportRequest
from aerobee_wire import topics
from support.codes import raises_about

DEAD = topics.dead_letter_topic("g")
Q0 = Queue(DEAD, "broker-a", 0)
NOW_MS = 1_760_000_000_000


def summary_of(
    figures: Figures | None = None,
    *,
    earlier: Earlier | None = None,
    wanted: tuple[int, int] = (0, 10),
    **request: Any,
) -> dict[str, Any]:
    covered = QueueCoverage(Q0, Bounds(0, 10), OffsetRange(Q0, *wanted), rows=10)
    return build(
        ReportRequest("h:1", "g", Path("out"), **request),
        Coverage((covered,)),
        figures or Figures(),
        engine="local",
        forecast=Forecast(),
        now_ms=NOW_MS,
        bucket_ms=1000,
        earlier=earlier,
    )


def test_the_keys_are_always_the_same() -> None:
    for kinds in ((DLQ,), (RETRY,), (DLQ, RETRY)):
        assert set(summary_of(kinds=kinds)) == KEYS
    assert json.loads(json.dumps(summary_of())) == summary_of()


def test_unknown_is_null_and_nothing_is_zero() -> None:
    both, only_retries = summary_of(), summary_of(kinds=(RETRY,))
    assert (both["dead_letters"], both["dead_letters_by_tag"]) == (0, {})
    assert both["retries"]["records"] == 0
    assert (only_retries["dead_letters"], only_retries["dead_letters_by_tag"]) == (None, None)
    assert only_retries["new_dead_letters"] is None
    assert only_retries["retries"]["messages_dead_lettered"] is None
    assert summary_of(kinds=(DLQ,))["retries"] is None


def test_new_is_what_lies_beyond_the_earlier_report() -> None:
    earlier = Earlier("2026-01-01T00:00:00.000Z", {("broker-a", 0): 7})
    assert summary_of()["new_dead_letters"] == 10
    assert summary_of()["new_since"] is None
    assert summary_of(earlier=earlier)["new_dead_letters"] == 3
    assert summary_of(earlier=earlier)["new_since"] == "2026-01-01T00:00:00.000Z"
    assert summary_of(earlier=earlier, wanted=(9, 10))["new_dead_letters"] == 1
    assert summary_of(earlier=earlier, wanted=(0, 5))["new_dead_letters"] == 0


def test_after_a_purge_all_are_new() -> None:
    """After a purge the dead-letter topic is created again, and its offsets start at 0."""
    earlier = Earlier("2026-01-01T00:00:00.000Z", {("broker-a", 0): 29})
    assert summary_of(earlier=earlier)["new_dead_letters"] == 10
    assert summary_of(earlier=earlier, wanted=(0, 5))["new_dead_letters"] == 5


def test_messages_without_a_tag_count_under_the_empty_text() -> None:
    rows: list[dict[str, Any]] = [
        {"kind": DLQ, "tags": None, "messages": 2},
        {"kind": DLQ, "tags": "", "messages": 1},
        {"kind": DLQ, "tags": "UA", "messages": 1},
    ]
    counted = summary_of(Figures(groups={"tag": rows}))["dead_letters_by_tag"]
    assert counted == {"": 3, "UA": 1}


def test_extra_figures_stand_beside_ours_and_never_replace_them() -> None:
    assert summary_of(extra={"messages_sent": 5})["messages_sent"] == 5
    check_extra({"messages_sent": 5})
    with raises_about(ReportError, "complete, dead_letters"):
        check_extra({"dead_letters": 0, "complete": True, "mine": 1})


def test_times_are_iso_8601_in_utc() -> None:
    assert iso(1_767_225_600_123) == "2026-01-01T00:00:00.123Z"
    assert iso(None) is None


# ---- the previous report ----


def previous(tmp_path: Path, **changes: Any) -> PreviousReport:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(summary_of() | changes))
    return PreviousReport.read(path, "g")


def test_an_earlier_report_has_its_queues_and_how_far_it_read(tmp_path: Path) -> None:
    found = previous(tmp_path)
    assert found.queues((DLQ,)) == {Q0}
    assert found.queues((RETRY,)) == frozenset()
    assert found.earlier == Earlier("2025-10-09T08:53:20.000Z", {("broker-a", 0): 10})


@pytest.mark.parametrize(
    "changes",
    [{"group": "other"}, {"schema_version": SCHEMA_VERSION + 1}, {"schema_version": None}],
)
def test_a_summary_of_something_else_counts_as_none(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    found = previous(tmp_path, **changes)
    assert (found.queues((DLQ, RETRY)), found.earlier) == (frozenset(), None)


def test_an_earlier_report_without_dead_letters_is_ignored(tmp_path: Path) -> None:
    assert previous(tmp_path, kinds=[RETRY]).earlier is None


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00"])
def test_an_unreadable_summary_counts_as_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text(content)
    assert PreviousReport.read(tmp_path / "summary.json", "g").summary == {}
    assert PreviousReport.read(tmp_path / "absent.json", "g").summary == {}
