"""Pages of an audit log: order, filters, bisection by time, rotation, damaged lines, bounds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aerobee_chassis.rpc import audit_reader
from aerobee_chassis.rpc.audit_log import AuditLog
from aerobee_chassis.rpc.audit_reader import AuditReader
from aerobee_wire.audit import AuditPage, AuditQuery, Link
from aerobee_wire.status import Code
from support.codes import raises_code
from unit.aerobee_chassis.test_audit import Inline

HOUR_MS = 3_600_000
BEGIN_MS = 1_800_000_000_000


def rejected(time_ms: int, **fields: Any) -> dict[str, Any]:
    return {"timestamp_ms": time_ms, "event": "rejected", "rpc": "MessageService/Send", **fields}


def change(time_ms: int, request_id: str, **fields: Any) -> list[dict[str, Any]]:
    """Return both lines of a change that takes 1 ms."""
    record = {"rpc": "AdminService/DeleteTopic", "request_id": request_id, **fields}
    return [
        {"timestamp_ms": time_ms, "event": "change", **record},
        {"timestamp_ms": time_ms + 1, "event": "result", "result": "OK", **record},
    ]


def written(path: Path, records: Iterable[dict[str, Any]], max_bytes: int = 1 << 20) -> AuditReader:
    """Write a log, and return its reader."""
    log = AuditLog(path, max_bytes=max_bytes, keep=1_000)
    log.open()
    for record in records:
        log.append(record, durable=False)
    log.close()
    return AuditReader(path, lambda: log.last, Inline())


async def numbers(reader: AuditReader, query: AuditQuery) -> list[int]:
    return [record["number"] for record in (await reader.page(query)).records]


async def walked(reader: AuditReader, **query: Any) -> list[AuditPage]:
    """Return all pages, each from where the former one ends."""
    pages = [await reader.page(AuditQuery(**query))]
    while pages[-1].complete_from_ms:
        pages.append(await reader.page(AuditQuery(**query, to_ms=pages[-1].complete_from_ms)))
    return pages


@pytest.mark.parametrize("max_bytes", [1 << 20, 2_000])
async def test_pages_are_whole_and_newest_first(tmp_path: Path, max_bytes: int) -> None:
    """Three lines have the time of each hour, so that pages end within none of them."""
    times = [BEGIN_MS + HOUR_MS * (number // 3) for number in range(100)]
    reader = written(tmp_path / "a", map(rejected, times), max_bytes)
    assert (tmp_path / "a.2").exists() == (max_bytes == 2_000)
    pages = await walked(reader, limit=10)
    found = [record["number"] for page in pages for record in page.records]
    assert found == list(range(100, 0, -1))
    assert {len(page.records) for page in pages[1:-1]} == {12}
    assert pages[0].last.number == 100


async def test_page_ends_after_the_most_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_reader, "MOST_LINES", 7)
    times = (BEGIN_MS + number for number in range(50))
    reader = written(tmp_path / "a", map(rejected, times))
    pages = await walked(reader, limit=500, user="nobody")
    assert len(pages) == 8
    assert not any(page.records for page in pages)


async def test_a_change_is_one_line_with_its_result(tmp_path: Path) -> None:
    (begun, _) = change(BEGIN_MS + 9, "c")
    records = [*change(BEGIN_MS, "a"), *change(BEGIN_MS + 5, "b"), begun]
    reader = written(tmp_path / "a", records)
    page = await reader.page(AuditQuery(10))
    found = [(each["event"], each["request_id"], each.get("result")) for each in page.records]
    assert found == [("change", "c", None), ("change", "b", "OK"), ("change", "a", "OK")]


async def test_a_result_on_the_former_page_belongs_to_its_change(tmp_path: Path) -> None:
    first, result = change(BEGIN_MS, "a")
    between = [rejected(BEGIN_MS + 10 + number) for number in range(5)]
    result["timestamp_ms"] = BEGIN_MS + 30_000
    reader = written(tmp_path / "a", [first, *between, result])
    pages = await walked(reader, limit=2)
    events = [record["event"] for page in pages for record in page.records]
    assert events == ["change", *["rejected"] * 5]


async def test_filters_of_two_lines_apply_to_the_result(tmp_path: Path) -> None:
    reader = written(tmp_path / "a", change(BEGIN_MS, "a"))
    assert await numbers(reader, AuditQuery(10, result="NO_PERMISSION")) == []
    assert await numbers(reader, AuditQuery(10, result="OK")) == [2]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"event": "rejected"}, {1, 2, 3}),
        ({"user": "ann"}, {1, 2}),
        ({"user": "aerobee://prod/admin/ops"}, {3}),
        ({"rpc": "Send"}, {1, 3}),
        ({"rpc": "MessageService/Pull"}, {2}),
        ({"rpc": "end"}, set()),
        ({"resource": "Topic:orders"}, {1}),
        ({"resource": "Topic:ord*"}, {1, 3}),
        ({"resource": "*"}, {1, 2, 3}),
        ({"from_ms": BEGIN_MS + HOUR_MS}, {2, 3}),
        ({"to_ms": BEGIN_MS + HOUR_MS}, {1}),
        ({"from_ms": BEGIN_MS + 1, "to_ms": BEGIN_MS + 2 * HOUR_MS}, {2}),
    ],
)
async def test_filters(tmp_path: Path, query: dict[str, Any], expected: set[int]) -> None:
    times = [BEGIN_MS + HOUR_MS * number for number in range(3)]
    records = [
        rejected(times[0], user="ann", resources=["Group:g", "Topic:orders"]),
        rejected(times[1], claimed_user="ann", rpc="MessageService/Pull", resources=["Group:g"]),
        rejected(times[2], certificate="aerobee://prod/admin/ops", resources=["Topic:ord"]),
    ]
    reader = written(tmp_path / "a", records)
    assert set(await numbers(reader, AuditQuery(10, **query))) == expected


@pytest.mark.parametrize("max_bytes", [1 << 20, 3_000])
async def test_each_time_is_found_by_bisection(tmp_path: Path, max_bytes: int) -> None:
    """Lines are of different lengths, some longer than a step of the search."""
    times = [BEGIN_MS + 500_000 * number for number in range(40)]
    records = [rejected(time, reason="x" * (number * 300)) for number, time in enumerate(times)]
    reader = written(tmp_path / "a", records, max_bytes)
    for number, (earlier, later) in enumerate(pairwise(times), 1):
        for to_ms in (earlier + 1, later):
            assert await numbers(reader, AuditQuery(1, to_ms=to_ms)) == [number]
    assert await numbers(reader, AuditQuery(1, to_ms=BEGIN_MS)) == []


async def test_damaged_and_incomplete_lines_do_not_stop_a_page(tmp_path: Path) -> None:
    path = tmp_path / "a"
    reader = written(path, (rejected(BEGIN_MS + number, user="ann") for number in range(5)))
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2] = lines[2].replace(b"ann", b"bob")
    path.write_bytes(b"".join(lines) + lines[0][:40])
    page = await reader.page(AuditQuery(10))
    assert [each.get("number") for each in page.records] == [5, 4, None, 2, 1]
    assert page.records[2]["event"] == "damaged"


async def test_early_lines_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the last hour does not read a log of years."""
    times = [BEGIN_MS + HOUR_MS * number for number in range(100)]
    reader = written(tmp_path / "a", map(rejected, times))
    monkeypatch.setattr(audit_reader, "MOST_LINES", 5)
    page = await reader.page(AuditQuery(10, from_ms=times[-2]))
    assert [record["number"] for record in page.records] == [100, 99]
    assert page.complete_from_ms == 0


@pytest.mark.parametrize("step", range(1, 5))
async def test_a_page_is_whole_in_the_middle_of_a_rotation(tmp_path: Path, step: int) -> None:
    """A rotation moves one file after the other, the oldest first."""
    path = tmp_path / "a"
    reader = written(path, (rejected(BEGIN_MS + number) for number in range(9)), max_bytes=500)
    files = [path, *(path.with_name(f"a.{number}") for number in range(1, 10))]
    present = [each for each in files if each.exists()]
    assert len(present) >= 4
    for each in present[: -step - 1 : -1]:
        each.replace(files[files.index(each) + 1])
    assert await numbers(reader, AuditQuery(50)) == list(range(9, 0, -1))


async def test_missing_files_are_an_empty_page(tmp_path: Path) -> None:
    reader = written(tmp_path / "a", [])
    (tmp_path / "a").unlink()
    assert (await reader.page(AuditQuery(10))).records == []


async def test_waiting_reads_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_reader, "MOST_WAITING", 0)
    with raises_code(Code.SYSTEM_BUSY):
        await written(tmp_path / "a", []).page(AuditQuery(10))


@pytest.mark.parametrize("query", [{}, {"user": "ann"}])
async def test_removed_lines_and_replaced_ones_are_damage_with_each_filter(
    tmp_path: Path, query: dict[str, Any]
) -> None:
    path = tmp_path / "a"
    written(path, (rejected(BEGIN_MS + number) for number in range(9)))
    lines = path.read_bytes().splitlines(keepends=True)
    other = tmp_path / "b"
    written(other, (rejected(BEGIN_MS + number, reason="another") for number in range(9)))
    replaced = other.read_bytes().splitlines(keepends=True)[6]
    path.write_bytes(b"".join([*lines[:3], *lines[4:6], replaced, *lines[7:]]))
    reader = AuditReader(path, Link, Inline())
    page = await reader.page(AuditQuery(50, **query))
    reasons = [each["reason"] for each in page.records if each["event"] == "damaged"]
    assert [each.partition(":")[0] for each in reasons] == [
        "line 8 does not continue line 7",
        "line 7 does not continue line 6",
        "line 5 follows line 3",
    ]
    assert len(page.records) == 3 + (0 if query else 8)
