"""The check of a record, and the fast checks of a run, one by one and over arrays: they agree."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.topic_encoding import TopicEncoding
from aerobee_broker.store.messages import UNIT
from aerobee_broker.store.reading.record_check import Run, all_whole, check
from aerobee_broker.store.reading.run_columns import RunColumns
from aerobee_wire import record
from aerobee_wire.tags import tags_code
from support import records

RED = tags_code("red")
AT = 1_000  # physical offset of the first record


def run_of(topic: str = "a", queue_id: int = 3, first: int = 7, **fields: Any) -> tuple[bytes, Run]:
    """Three records, the first at physical offset AT and queue offset `first`."""
    given = {"body": b"body", "properties": b"TAGS\x01red\x02", "whole_crc": True, **fields}
    data, run = b"", []
    for offset in range(first, first + 3):
        physical_offset = AT + len(data)
        message = records.encode(
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            physical_offset=physical_offset,
            **given,
        )
        run.append((offset, (physical_offset, len(message), RED)))
        data += message
    return data, run


def both(data: bytes, run: Run, queue: ConsumeQueue) -> tuple[bool, bool]:
    """Results of the fast check, and of the full one."""
    problems = [check(data, unit[0] - AT, unit, queue, offset) for offset, unit in run]
    return all_whole(data, AT, run, queue), not any(problems)


def columns_of(run: Run) -> RunColumns:
    units = b"".join(UNIT.pack(*unit) for _, unit in run)
    found = RunColumns.of(run[0][0], units, AT, AT + sum(unit[1] for _, unit in run))
    assert found is not None
    return found


def by_columns(data: bytes, run: Run, queue: ConsumeQueue) -> tuple[bool, bool]:
    """Results of the check over arrays, and of the full one."""
    return columns_of(run).all_whole(data, queue), both(data, run, queue)[1]


@pytest.fixture
def queue() -> ConsumeQueue:
    return ConsumeQueue(TopicEncoding("a", None), 3)


def test_fast_check_passes_a_whole_run(queue: ConsumeQueue) -> None:
    assert both(*run_of(), queue) == (True, True)
    wide = "w" * 200
    assert both(*run_of(topic=wide), ConsumeQueue(TopicEncoding(wide, None), 3)) == (True, True)
    compressed = run_of(sys_flag=1, properties=b"")
    assert both(*compressed, queue) == (True, True)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": "w" * 200},
        {"sys_flag": 1, "properties": b""},
        {"whole_crc": False},
        {"born_host": bytes(20)},
        {"store_host": bytes(20), "whole_crc": False},
    ],
)
def test_check_over_arrays_passes_every_form_of_a_whole_record(fields: dict[str, Any]) -> None:
    queue = ConsumeQueue(TopicEncoding(fields.get("topic", "a"), None), 3)
    assert by_columns(*run_of(**fields), queue) == (True, True)


def test_check_over_arrays_finds_every_flipped_bit(queue: ConsumeQueue) -> None:
    data, run = run_of()
    columns = columns_of(run)
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert not columns.all_whole(bytes(broken), queue), bit
    for missing in range(1, len(data), 7):
        assert not columns.all_whole(data[:-missing], queue)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_check_finds_a_damaged_crc(queue: ConsumeQueue, size: int) -> None:
    data, run = run_of()
    for at in range(len(data) - record.CRC_TAIL_BYTES - 1, len(data) - size + 1):
        broken = bytearray(data)
        broken[at : at + size] = bytes(byte ^ 0xFF for byte in broken[at : at + size])
        assert by_columns(bytes(broken), run, queue) == (False, False), at
        assert not all_whole(bytes(broken), AT, run, queue)


def test_records_among_others_are_checked_and_taken_out(queue: ConsumeQueue) -> None:
    data, run = run_of()
    ends = [unit[0] - AT + unit[1] for _, unit in run]
    others = b"x" * 33
    apart = data[: ends[0]] + others + data[ends[0] :]
    places = [run[0], *((offset, (at + 33, size, code)) for offset, (at, size, code) in run[1:])]
    units = b"".join(UNIT.pack(*unit) for _, unit in places)
    columns = RunColumns.of(7, units, AT, AT + len(apart))
    assert columns is not None
    assert not columns.all_whole(apart, queue), "two of them are not where they say they are"
    first = columns.part(0, 1)
    assert first.all_whole(data[: ends[0]], queue)
    assert columns.records(apart) == data


@pytest.mark.parametrize("fields", [{"whole_crc": False}, {"born_host": bytes(20)}])
def test_fast_check_leaves_unusual_records_to_the_full_check(
    queue: ConsumeQueue, fields: dict[str, Any]
) -> None:
    assert both(*run_of(**fields), queue) == (False, True)


def test_fast_check_finds_every_flipped_bit(queue: ConsumeQueue) -> None:
    data, run = run_of()
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert not all_whole(bytes(broken), AT, run, queue), bit
    for missing in range(1, len(data), 7):
        assert not all_whole(data[:-missing], AT, run, queue)


@pytest.mark.parametrize("fields", [{"topic": "b"}, {"topic": "ab"}, {"queue_id": 2}, {"first": 8}])
def test_record_of_another_queue_fails_the_check(
    queue: ConsumeQueue, fields: dict[str, Any]
) -> None:
    data, run = run_of(**fields)
    renamed = [(7 + number, unit) for number, (_, unit) in enumerate(run)]
    assert both(data, renamed, queue) == (False, False)
    assert not columns_of(renamed).all_whole(data, queue)


def test_record_at_another_physical_offset_fails_the_check(queue: ConsumeQueue) -> None:
    data, run = run_of()
    moved = [
        (offset, (physical_offset + 1, size, code)) for offset, (physical_offset, size, code) in run
    ]
    assert not all_whole(b"\0" + data, AT, moved, queue)


def test_header_that_does_not_fit_into_its_record_fails_the_check() -> None:
    """A flipped bit that says IPv6, in a record too short for such a header."""
    queue = ConsumeQueue(TopicEncoding("a", None), 3)
    data, run = run_of(body=b"x", properties=b"", whole_crc=False)
    damaged = bytearray(data)
    for at in range(0, len(data), len(data) // 3):
        sys_flag_at = at + record.HEADER_LAYOUT.offset_of("sys_flag")
        damaged[sys_flag_at + 3] |= record.HOST_BITS
    assert both(bytes(damaged), run, queue) == (False, False)
    assert not columns_of(run).all_whole(bytes(damaged), queue)
    assert all(check(bytes(damaged), unit[0] - AT, unit, queue, offset) for offset, unit in run)
