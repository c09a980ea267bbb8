"""Reading: what a pull gets, by offset, by time, by place; and units that lead astray."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.config import BrokerOptions
from aerobee_broker.errors import MessageCorrupted, MessageNotFound, StoreReadError, StoreShort
from aerobee_broker.store.derived.consume_queue import ConsumeQueue
from aerobee_broker.store.derived.topic_encoding import TopicEncoding
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import LOST_SIZE, UNIT, NewMessage, ReadStatus
from aerobee_broker.store.options import MAX_BODY, StoreOptions
from aerobee_broker.store.reading.record_check import Run, all_whole, check
from aerobee_chassis.errors import ConfigError
from aerobee_wire import record
from aerobee_wire.tags import tags_code
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import LOG, PATH, SMALL, open_store, send, upkeep, visible

RED, BLUE = tags_code("red"), tags_code("blue")


def tagged(tag: str, body: bytes = b"x") -> NewMessage:
    return NewMessage("a", 0, body, f"TAGS\x01{tag}\x02".encode())


def bodies(data: bytes) -> list[bytes]:
    return [one.body for one in record.iter_records(data)]


@pytest.fixture
def ten() -> MessageStore:
    store = open_store()
    for n in range(10):
        send(store, [NewMessage("a", 0, b"%d" % n), NewMessage("noise", 0, b"x" * 300)])
    return store


def test_records_come_in_order_from_the_offset_on(ten: MessageStore) -> None:
    result = ten.read("a", 0, 3, max_messages=4)
    assert result.status is ReadStatus.FOUND
    assert bodies(result.records) == [b"3", b"4", b"5", b"6"]
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (7, 0, 10)
    assert (result.message_count, result.corrupted_count) == (4, 0)


@pytest.mark.parametrize(
    ("offset", "status", "following"),
    [
        (10, ReadStatus.NO_NEW, 10),
        (11, ReadStatus.OFFSET_TOO_LARGE, 10),
        (1 << 50, ReadStatus.OFFSET_TOO_LARGE, 10),
        (-1, ReadStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_offset_without_a_message_gets_the_one_to_go_on_at(
    ten: MessageStore, offset: int, status: ReadStatus, following: int
) -> None:
    result = ten.read("a", 0, offset)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert result.records == b""


def test_queue_that_nobody_wrote_to_has_nothing_new(ten: MessageStore) -> None:
    assert ten.read("a", 7, 0).status is ReadStatus.NO_NEW
    assert ten.read("unknown", 0, 0).status is ReadStatus.NO_NEW
    assert ten.read("unknown", 0, 5).status is ReadStatus.OFFSET_TOO_LARGE


def test_bytes_are_bounded_but_the_first_message_comes_whatever_its_size() -> None:
    store = open_store()
    appended = send(store, [NewMessage("a", 0, b"x" * 500) for _ in range(4)])
    size = appended[0].store_size
    assert store.read("a", 0, 0, max_bytes=1).message_count == 1
    assert store.read("a", 0, 0, max_bytes=size).message_count == 1
    assert store.read("a", 0, 0, max_bytes=2 * size - 1).message_count == 1
    result = store.read("a", 0, 0, max_bytes=2 * size)
    assert (result.message_count, result.next_begin_offset) == (2, 2)
    assert len(result.records) == 2 * size


def test_a_record_that_is_larger_than_may_be_sent_by_now_is_served() -> None:
    disk = SimulatedDisk()
    options = replace(SMALL, commit_log_file_size=4 << 20, max_message_size=2 << 20)
    first = open_store(disk, options)
    [message] = send(first, [NewMessage("a", 0, b"x" * (2 << 20))])
    first.close()
    again = open_store(disk.after_kill(), replace(options, max_message_size=1_024))
    result = again.read("a", 0, 0)
    assert (result.message_count, result.corrupted_count) == (1, 0)
    assert len(again.get(message.physical_offset).body) == 2 << 20


def test_no_higher_limit_can_be_set_than_is_read(tmp_path: Path) -> None:
    values = {"brokerName": "a", "storePathRootDir": tmp_path}
    assert BrokerOptions.from_values({**values, "maxMessageSize": MAX_BODY})
    with pytest.raises(ConfigError, match="maxMessageSize"):
        BrokerOptions.from_values({**values, "maxMessageSize": MAX_BODY + 1})


def test_only_wanted_tags_come_and_the_others_are_passed_over() -> None:
    store = open_store()
    send(store, [tagged("red" if n % 3 == 0 else "blue", b"%d" % n) for n in range(9)])
    result = store.read("a", 0, 1, tags=frozenset({RED}))
    assert bodies(result.records) == [b"3", b"6"]
    assert result.next_begin_offset == 9
    result = store.read("a", 0, 0, max_messages=1, tags=frozenset({RED, BLUE}))
    assert (bodies(result.records), result.next_begin_offset) == ([b"0"], 1)
    result = store.read("a", 0, 0, tags=frozenset({tags_code("green")}))
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_MATCHED, 9)


def test_a_filtered_read_looks_at_800_units_at_most() -> None:
    """Facts 5.4: max filter message size 16,000 bytes of units."""
    store = open_store(options=StoreOptions(commit_log_file_size=1 << 20, index_enabled=False))
    send(store, [tagged("blue") for _ in range(1_000)] + [tagged("red")])
    result = store.read("a", 0, 0, tags=frozenset({RED}))
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_MATCHED, 800)
    result = store.read("a", 0, 800, tags=frozenset({RED}))
    assert (result.status, result.next_begin_offset) == (ReadStatus.FOUND, 1_001)


def test_records_of_one_queue_that_lie_together_are_read_with_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store()
    send(store, [NewMessage("a", 0, b"x" * 100) for _ in range(30)])
    calls = 0
    good = store._log.read

    def counted(physical_offset: int, size: int) -> bytes:
        nonlocal calls
        calls += 1
        return good(physical_offset, size)

    monkeypatch.setattr(store._log, "read", counted)
    assert store.read("a", 0, 0).message_count == 30
    assert calls == 1


def test_records_with_others_between_them_come_without_the_others() -> None:
    store = open_store()
    for n in range(20):
        gap = b"y" * (2_000 if n % 5 == 0 else 10)
        send(store, [NewMessage("a", 0, b"%d" % n), NewMessage("noise", 0, gap)])
    assert bodies(store.read("a", 0, 0).records) == [b"%d" % n for n in range(20)]


# ---- by place ----


def test_record_is_found_by_its_physical_offset() -> None:
    store = open_store()
    appended = send(store, [NewMessage("a", 0, b"%d" % n) for n in range(3)])
    one = store.get(appended[1].physical_offset)
    assert (one.body, one.queue_offset, one.physical_offset) == (
        b"1",
        1,
        appended[1].physical_offset,
    )
    assert store.get(appended[1].physical_offset, appended[1].store_size).body == b"1"


@pytest.mark.parametrize("physical_offset", [-1, 1, 57, 10_000, 1 << 60])
def test_place_without_a_record_is_not_found(physical_offset: int) -> None:
    store = open_store()
    send(store, [NewMessage("a", 0, b"0"), NewMessage("a", 0, b"1")])
    with pytest.raises(MessageNotFound):
        store.get(physical_offset)


def test_place_of_a_message_that_is_not_durable_is_not_found() -> None:
    store = open_store()
    [message] = store.append([NewMessage("a", 0, b"0")])
    store.flush.write()
    with pytest.raises(MessageNotFound):
        store.get(message.physical_offset)


def test_damaged_record_is_named_with_file_and_place() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    appended = send(store, [NewMessage("a", 0, b"0"), NewMessage("a", 0, b"1")])
    physical_offset = appended[1].physical_offset
    disk.flip(LOG / ("0" * 20), (physical_offset + 88) * 8)
    with pytest.raises(
        MessageCorrupted, match=rf"physical offset {physical_offset} in .*0{{20}}"
    ) as caught:
        store.get(physical_offset)
    assert (caught.value.physical_offset, caught.value.file) == (physical_offset, LOG / ("0" * 20))


def test_record_whose_head_is_damaged_is_damage_to_whoever_knows_that_it_is_there() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    [message] = send(store, [NewMessage("a", 0, b"0")])
    disk.flip(LOG / ("0" * 20), 4 * 8)
    with pytest.raises(MessageNotFound):
        store.get(0)
    with pytest.raises(MessageCorrupted):
        store.get(0, message.store_size)


# ---- by time ----


@pytest.mark.parametrize("host", ["10.0.0.1:1", "[::1]:1"])
def test_offset_by_time_is_that_of_a_slow_search(host: str) -> None:
    """§5.4: lower = first at or after, or the next offset; upper = last at or before, within
    [min, max].
    """
    clock = ManualClock(1_000)
    store = open_store(clock=clock)
    stored = []
    for n in range(25):
        send(store, [NewMessage("a", 0, b"x", born_host=host)])
        stored.append(clock.now_ms())
        clock.advance([0, 10, 25][n % 3])
    for time_ms in range(stored[0] - 20, stored[-1] + 20):
        lower = next((n for n, ms in enumerate(stored) if ms >= time_ms), len(stored))
        upper = max((n for n, ms in enumerate(stored) if ms <= time_ms), default=0)
        assert store.search_offset("a", 0, time_ms) == lower
        assert store.search_offset("a", 0, time_ms, upper=True) == upper
    assert store.search_offset("unknown", 0, 5) == 0
    assert store.store_timestamp("a", 0, 0) == stored[0]
    assert store.store_timestamp("a", 0, 24) == stored[-1]
    assert store.store_timestamp("a", 0, 25) == 0


# ---- units that lead astray ----


@pytest.mark.parametrize(
    "unit",
    [
        b"\0" * 20,
        UNIT.pack(1 << 50, 150, 0),
        UNIT.pack(0, 1 << 30, 0),
        UNIT.pack(-5, -5, 0),
        UNIT.pack(3, 120, 0),
    ],
)
@pytest.mark.parametrize("offset", [4, 11])
@pytest.mark.parametrize("tags", [None, frozenset({RED})])
def test_damaged_unit_is_mended_from_the_log(
    unit: bytes, offset: int, tags: frozenset[int] | None
) -> None:
    disk = SimulatedDisk()
    clock = ManualClock()
    store = open_store(disk, clock=clock)
    for n in range(12):
        send(store, [tagged("red", b"%d" % n), NewMessage("noise", 0, b"x" * 200)])
    upkeep(store, clock)
    path = PATH / "consumequeue" / "a" / "0" / ("0" * 20)
    good = disk.files()[path]
    disk.put(path, good[: offset * 20] + unit + good[offset * 20 + 20 :])
    result = store.read("a", 0, 0, tags=tags)
    assert bodies(result.records) == [b"%d" % n for n in range(12)]
    assert (result.corrupted_count, store.corruption_count) == (0, 0)
    assert disk.files()[path] == good


def test_mended_unit_with_another_tag_is_passed_over() -> None:
    disk = SimulatedDisk()
    clock = ManualClock()
    store = open_store(disk, clock=clock)
    send(store, [tagged("red", b"0"), tagged("blue", b"1"), tagged("red", b"2")])
    upkeep(store, clock)
    path = PATH / "consumequeue" / "a" / "0" / ("0" * 20)
    disk.put(path, disk.files()[path][:20] + bytes(20) + disk.files()[path][40:])
    result = store.read("a", 0, 0, tags=frozenset({RED}))
    assert bodies(result.records) == [b"0", b"2"]
    assert (result.message_count, result.corrupted_count) == (2, 0)


def test_damaged_records_are_counted_and_the_others_served() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    appended = send(store, [NewMessage("a", 0, b"%d" % n) for n in range(6)])
    for n in (0, 3, 5):
        disk.flip(LOG / ("0" * 20), (appended[n].physical_offset + 88) * 8)
    result = store.read("a", 0, 0)
    assert bodies(result.records) == [b"1", b"2", b"4"]
    assert (result.message_count, result.corrupted_count) == (3, 3)
    assert result.next_begin_offset == 6
    result = store.read("a", 0, 5)
    assert (result.status, result.corrupted_count, result.next_begin_offset) == (
        ReadStatus.NO_MATCHED,
        1,
        6,
    )
    assert store.corruption_count == 3


def test_record_of_another_queue_is_not_served_in_the_place_of_a_lost_one() -> None:
    """The unit of one queue points at a whole record of another, and its own is gone."""
    disk = SimulatedDisk()
    clock = ManualClock()
    store = open_store(disk, clock=clock)
    appended = send(store, [NewMessage("a", 0, b"mine"), NewMessage("b", 0, b"others")])
    upkeep(store, clock)
    path = PATH / "consumequeue" / "a" / "0" / ("0" * 20)
    wrong = UNIT.pack(appended[1].physical_offset, appended[1].store_size, 0)
    disk.put(path, wrong + disk.files()[path][20:])
    disk.flip(LOG / ("0" * 20), (appended[0].physical_offset + 88) * 8)
    result = store.read("a", 0, 0)
    assert (result.records, result.corrupted_count) == (b"", 1)
    assert visible(store)["b", 0] == {0: b"others"}


def test_unreadable_consume_queue_is_an_error_that_says_what_to_do() -> None:
    disk = SimulatedDisk()
    clock = ManualClock()
    store = open_store(disk, clock=clock)
    send(store, [tagged("red"), NewMessage("b", 0, b"fine")])
    upkeep(store, clock)
    disk.fail_reads = lambda path: path.parts[-3:-1] == ("a", "0")
    for call in (
        lambda: store.read("a", 0, 0),
        lambda: store.units("a", 0, 0, 1),
        lambda: store.search_offset("a", 0, 5),
        lambda: store.store_timestamp("a", 0, 0),
    ):
        with pytest.raises(StoreReadError, match=r"cannot be read: .* next start"):
            call()
    assert store.read("b", 0, 0).status is ReadStatus.FOUND


def test_unreadable_index_is_an_error_that_says_what_to_do() -> None:
    disk = SimulatedDisk()
    clock = ManualClock()
    store = open_store(disk, clock=clock)
    send(store, [NewMessage("a", 0, b"x", b"KEYS\x01k\x02")])
    upkeep(store, clock)
    disk.fail_reads = lambda path: path.parent.name == "index"
    with pytest.raises(StoreReadError, match="cannot be read"):
        store.query("a", "k")


def test_units_are_given_to_whoever_schedules() -> None:
    options = replace(SMALL, consume_queue_file_size=40)
    store = open_store(options=options)
    appended = send(store, [tagged("red") for _ in range(5)])
    assert store.units("a", 0, 1, 3) == [
        (message.physical_offset, message.store_size, RED) for message in appended[1:4]
    ]
    assert store.units("a", 0, -1, 3) == []
    assert store.units("nobody", 0, 0, 3) == []


# ---- the quick check of a run ----

PLACE = 1_000


def run_of(topic: str = "a", queue_id: int = 3, first: int = 7, **fields: Any) -> tuple[bytes, Run]:
    """Three records, the first of which stands at PLACE and has queue offset `first`."""
    given = {
        "body": b"body",
        "properties": b"TAGS\x01red\x02",
        "flag": 0,
        "sys_flag": 0,
        "born_timestamp_ms": 1,
        "born_host": bytes(8),
        "store_timestamp_ms": 2,
        "store_host": bytes(8),
        "whole_crc": True,
        **fields,
    }
    data, run = b"", []
    for offset in range(first, first + 3):
        physical_offset = PLACE + len(data)
        one = record.encode(
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            physical_offset=physical_offset,
            **given,
        )
        run.append((offset, (physical_offset, len(one), RED)))
        data += one
    return data, run


def both(data: bytes, run: Run, queue: ConsumeQueue) -> tuple[bool, bool]:
    """What the quick check says, and the thorough one."""
    problems = [check(data, unit[0] - PLACE, unit, queue, offset) for offset, unit in run]
    return all_whole(data, PLACE, run, queue), not any(problems)


@pytest.fixture
def queue() -> ConsumeQueue:
    return ConsumeQueue(TopicEncoding("a", None), 3)


def test_a_run_that_is_whole_is_taken_for_whole(queue: ConsumeQueue) -> None:
    assert both(*run_of(), queue) == (True, True)
    wide = "w" * 200
    assert both(*run_of(topic=wide), ConsumeQueue(TopicEncoding(wide, None), 3)) == (True, True)
    compressed = run_of(sys_flag=1, properties=b"")
    assert both(*compressed, queue) == (True, True)


@pytest.mark.parametrize("fields", [{"whole_crc": False}, {"born_host": bytes(20)}])
def test_a_run_that_the_quick_check_does_not_know_is_left_to_the_thorough_one(
    queue: ConsumeQueue, fields: dict[str, Any]
) -> None:
    assert both(*run_of(**fields), queue) == (False, True)


def test_no_flipped_bit_of_a_run_goes_unseen(queue: ConsumeQueue) -> None:
    data, run = run_of()
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert not all_whole(bytes(broken), PLACE, run, queue), bit
    for missing in range(1, len(data), 7):
        assert not all_whole(data[:-missing], PLACE, run, queue)


@pytest.mark.parametrize("fields", [{"topic": "b"}, {"topic": "ab"}, {"queue_id": 2}, {"first": 8}])
def test_whole_records_of_another_queue_are_not_taken(
    queue: ConsumeQueue, fields: dict[str, Any]
) -> None:
    data, run = run_of(**fields)
    renamed = [(7 + number, unit) for number, (_, unit) in enumerate(run)]
    assert both(data, renamed, queue) == (False, False)


def test_a_whole_record_that_belongs_elsewhere_is_not_taken(queue: ConsumeQueue) -> None:
    data, run = run_of()
    moved = [
        (offset, (physical_offset + 1, size, code)) for offset, (physical_offset, size, code) in run
    ]
    assert not all_whole(b"\0" + data, PLACE, moved, queue)


# ---- sectors that cannot be read ----


def unreadable(
    monkeypatch: pytest.MonkeyPatch, store: MessageStore, bad: int, times: int = 1 << 30
) -> None:
    """The disk fails so often to read whatever holds the byte at physical offset `bad`."""
    read = store._log.read
    left = times

    def fails(physical_offset: int, size: int) -> bytes:
        nonlocal left
        if physical_offset <= bad < physical_offset + size and left > 0:
            left -= 1
            raise OSError(errno.EIO, "Input/output error")
        return read(physical_offset, size)

    monkeypatch.setattr(store._log, "read", fails)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def served(clock: ManualClock) -> MessageStore:
    store = open_store(clock=clock)
    send(store, [NewMessage("a", 0, b"%d" % n) for n in range(10)])
    store.enable_read_retries()
    return store


def test_what_the_disk_fails_to_read_for_a_while_is_not_damaged(
    served: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical_offset, size, _ = served.units("a", 0, 4, 1)[0]
    unreadable(monkeypatch, served, physical_offset + 100, times=9)  # two a read, one a get
    for _ in range(3):
        clock.advance(15_000)
        with pytest.raises(StoreShort, match="tried again"):
            served.read("a", 0, 0)
        with pytest.raises(StoreShort):
            served.get(physical_offset, size)
    assert served.corruption_count == 0
    clock.advance(15_000)
    result = served.read("a", 0, 0)
    assert bodies(result.records) == [b"%d" % n for n in range(10)]
    assert served.corruption_count == 0


def test_a_sector_that_stays_unreadable_costs_its_record_and_no_other(
    served: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical_offset, size, _ = served.units("a", 0, 4, 1)[0]
    unreadable(monkeypatch, served, physical_offset + 100)
    for _ in range(2):
        with pytest.raises(StoreShort):
            served.read("a", 0, 0)
        clock.advance(30_000)
    result = served.read("a", 0, 0)
    assert bodies(result.records) == [b"%d" % n for n in range(10) if n != 4]
    assert (result.next_begin_offset, result.corrupted_count) == (10, 1)
    [damage] = served.corruptions
    assert damage.physical_offset == physical_offset
    assert damage.reason == "a 0 4: the disk cannot read it"
    with pytest.raises(MessageCorrupted):
        served.get(physical_offset, size)


def test_two_failures_far_apart_are_not_a_lasting_one(
    served: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical_offset, size, _ = served.units("a", 0, 4, 1)[0]
    unreadable(monkeypatch, served, physical_offset + 100, times=2)
    for _ in range(2):
        with pytest.raises(StoreShort):
            served.get(physical_offset, size)
        clock.advance(3_600_000)
    assert served.get(physical_offset, size).body == b"4"
    unreadable(monkeypatch, served, physical_offset + 100, times=2)
    for _ in range(2):
        with pytest.raises(StoreShort):
            served.get(physical_offset, size)
        clock.advance(3_600_000)


def test_at_a_start_nobody_waits_and_one_failure_is_no_damage_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_store()
    send(store, [NewMessage("a", 0, b"%d" % n) for n in range(10)])
    physical_offset, size, _ = store.units("a", 0, 4, 1)[0]
    unreadable(monkeypatch, store, physical_offset + 100, times=2)
    assert store.get(physical_offset, size).body == b"4"
    unreadable(monkeypatch, store, physical_offset + 100)
    with pytest.raises(MessageCorrupted):
        store.get(physical_offset, size)


def test_a_unit_is_not_given_up_because_its_record_cannot_be_looked_for(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimulatedDisk()
    store = open_store(disk, clock=clock)
    send(store, [NewMessage("a", 0, b"%d" % n) for n in range(10)])
    store.enable_read_retries()
    upkeep(store, clock)
    physical_offset = store.units("a", 0, 4, 1)[0][0]
    disk.flip(PATH / "consumequeue" / "a" / "0" / ("0" * 20), (4 * 20 + 7) * 8)
    with monkeypatch.context() as patch:
        unreadable(patch, store, physical_offset + 500)
        with pytest.raises(StoreShort):
            store.read("a", 0, 4, max_messages=1)
    assert bodies(store.read("a", 0, 4, max_messages=1).records) == [b"4"]


def test_the_place_of_a_lost_record_is_not_that_of_another(served: MessageStore) -> None:
    """Its unit carries the place of the next one."""
    physical_offset = served.units("a", 0, 5, 1)[0][0]
    with pytest.raises(MessageNotFound, match="lost"):
        served.get(physical_offset, LOST_SIZE)
