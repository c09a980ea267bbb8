"""The forecast of a report: expiry by file of the log, trend by offsets, settings of the group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from aerobee_spark.landing import job as landing
from aerobee_spark.landing.compaction import compact
from aerobee_spark.landing.request import LandRequest
from aerobee_spark.report import job
from aerobee_spark.report.request import DLQ, LOCAL, RETRY, ReportRequest
from aerobee_spark.table.files import FactsFiles
from aerobee_wire import topics
from support.client.fake_broker import FakeBroker, FakeCluster

GROUP = "arrivals"
DEAD, RETRIES = topics.dead_letter_topic(GROUP), topics.retry_topic(GROUP)
HOUR_MS = 3_600_000
# Ten files of a log, about a hundred records each.
FILE_BYTES = 16 * 1024


def report(cluster: FakeCluster, out: Path, **asked: Any) -> dict[str, Any]:
    request = ReportRequest(cluster.namesrv, GROUP, out, engine=LOCAL, **asked)
    return job.run(request, lambda step: None)


def fill(broker: FakeBroker, count: int) -> list[int]:
    """A dead letter and a retry each minute; returns the physical offsets of the dead letters."""
    offsets = []
    for minute in range(count):
        stored = broker.now_ms - (count - minute) * 60_000
        broker.put(RETRIES, b"x" * 30, store_timestamp_ms=stored)
        offsets.append(broker.next_physical_offset)
        broker.put(DEAD, b"x" * 30, store_timestamp_ms=stored)
    return offsets


@pytest.fixture
def filled(cluster: FakeCluster) -> dict[str, list[int]]:
    """Files of the log go one after the other, an hour each; the first in half an hour."""
    for name, broker in cluster.brokers.items():
        broker.log_file_bytes = FILE_BYTES
        shift = HOUR_MS * (name == "broker-b")
        broker.expiry_ms = lambda offset, broker=broker, shift=shift: (  # type: ignore[misc]
            broker.now_ms + HOUR_MS // 2 + shift + offset // FILE_BYTES * HOUR_MS
        )
        broker.groups.add(GROUP)
    return {name: fill(broker, 300) for name, broker in cluster.brokers.items()}


def within(offsets: list[int], hours: int, shift: int) -> int:
    return sum(offset // FILE_BYTES + 0.5 + shift <= hours for offset in offsets)


def test_dead_letters_expire_with_their_file(
    cluster: FakeCluster, filled: dict[str, list[int]], tmp_path: Path
) -> None:
    expires = report(cluster, tmp_path)["expires"]
    shifts = {"broker-a": 0, "broker-b": 1}
    for hours in (1, 6, 24):
        each = [within(filled[name], hours, shift) for name, shift in shifts.items()]
        found = [broker[f"within_{hours}h"] for broker in expires["brokers"]]
        assert found == each
        assert expires[f"within_{hours}h"] == sum(each)
    assert 0 < expires["within_1h"] < expires["within_6h"] <= expires["within_24h"] == 600
    assert expires["oldest_goes_at"] == "2025-10-09T09:25:00.000Z"
    (first, second) = expires["brokers"]
    assert (first["disk_used_percent"], first["disk_max_used_percent"]) == (70.0, 75)
    assert (first["file_reserved_time_ms"], first["delete_when"]) == (72 * HOUR_MS, [4])
    assert second["oldest_goes_at"] == "2025-10-09T10:25:00.000Z"
    assert "Expire within 24 h" in (tmp_path / "report.html").read_text("utf-8")


def test_files_that_never_go_by_age_do_not_expire(
    cluster: FakeCluster, filled: dict[str, list[int]], tmp_path: Path
) -> None:
    for broker in cluster.brokers.values():
        broker.expiry_ms = lambda offset: 0
    expires = report(cluster, tmp_path)["expires"]
    assert (expires["within_24h"], expires["oldest_goes_at"]) == (0, None)


def test_a_broker_that_does_not_report_it_makes_the_expiry_unknown(
    cluster: FakeCluster, filled: dict[str, list[int]], tmp_path: Path
) -> None:
    cluster["broker-a"].log_file_bytes = 0  # of an earlier version
    cluster["broker-b"].stop()
    summary = report(cluster, tmp_path)
    expires = summary["expires"]
    assert (expires["within_1h"], expires["oldest_goes_at"]) == (None, None)
    assert all(broker["problem"] for broker in expires["brokers"])
    assert summary["trend"] is None
    assert not summary["complete"]


def test_the_trend_compares_the_window_with_the_one_before(
    cluster: FakeCluster, filled: dict[str, list[int]], tmp_path: Path
) -> None:
    now_ms = cluster["broker-a"].now_ms
    asked = {"since_ms": now_ms - 2 * HOUR_MS, "until_ms": now_ms - HOUR_MS}
    trend = report(cluster, tmp_path / "one", **asked)["trend"]
    assert (trend["dead_letters"], trend["before_dead_letters"], trend["change"]) == (120, 120, 0)
    assert trend["before_complete"] is True
    # A window that begins before the first message: 300 of it, none before.
    asked = {"since_ms": now_ms - 6 * HOUR_MS, "until_ms": now_ms + 1}
    trend = report(cluster, tmp_path / "two", **asked)["trend"]
    assert (trend["dead_letters"], trend["before_dead_letters"], trend["change"]) == (600, 0, 600)
    # Of the four hours before, retention has taken a part.
    cluster["broker-b"].queue(DEAD).min_offset = 100
    asked = {"since_ms": now_ms - 2 * HOUR_MS, "until_ms": now_ms + 1}
    trend = report(cluster, tmp_path / "three", **asked)["trend"]
    assert (trend["dead_letters"], trend["before_dead_letters"]) == (240, 200)
    assert trend["before_complete"] is False


def test_a_report_of_a_facts_table_has_the_trend_of_its_rows(
    cluster: FakeCluster, filled: dict[str, list[int]], tmp_path: Path
) -> None:
    table = tmp_path / "table"
    now_ms = cluster["broker-a"].now_ms
    cluster["broker-b"].queue(DEAD).min_offset = 100  # never in the table

    def land() -> None:
        landing.land(LandRequest(cluster.namesrv, table, GROUP, engine=LOCAL), lambda step: None)

    def trend(out: str, hours: int, table: Path | None) -> dict[str, Any]:
        asked = {"since_ms": now_ms - 2 * hours * HOUR_MS, "until_ms": now_ms - hours * HOUR_MS}
        found: dict[str, Any] = report(cluster, tmp_path / out, table=table, **asked)["trend"]
        return found

    land()
    of_table = trend("one", 1, table)
    assert of_table == trend("two", 1, None) and of_table["before_complete"] is True
    assert of_table["dead_letters"] == of_table["before_dead_letters"] == 120
    # The window before begins with letters that retention took before they were landed.
    partly = trend("three", 2, table)
    assert (partly["before_dead_letters"], partly["before_complete"]) == (60, False)
    for broker in cluster.brokers.values():
        broker.put(DEAD, b"later", store_timestamp_ms=now_ms)
    land()
    compact(FactsFiles(table), keep_ms=5 * HOUR_MS // 2, now_ms=now_ms)
    kept = trend("four", 1, table)
    assert (kept["before_dead_letters"], kept["before_complete"]) == (60, False)
    assert report(cluster, tmp_path / "five", table=table, kinds=(RETRY,))["trend"] is None


def test_settings_of_the_group_stand_beside_the_figures(
    cluster: FakeCluster, filled: dict[str, list[int]], tmp_path: Path
) -> None:
    settings = report(cluster, tmp_path, kinds=(DLQ,))["group_settings"]
    assert (settings["max_attempts"], settings["retry_delays_ms"]) == (17, [1000, 5000])
    assert "retried after 1 s, 5 s" in (tmp_path / "report.html").read_text("utf-8")
    for broker in cluster.brokers.values():
        broker.groups.clear()  # deleted, and its dead letters are still there
    summary = report(cluster, tmp_path / "deleted", kinds=(RETRY,))
    assert (summary["group_settings"], summary["expires"], summary["trend"]) == (None, None, None)
