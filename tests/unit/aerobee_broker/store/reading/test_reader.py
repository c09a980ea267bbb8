"""Reading: records by queue offset, by tag and by time; units that name the wrong record."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import UNIT, NewMessage, ReadStatus
from aerobee_broker.store.options import StoreOptions
from aerobee_broker.store.reading import reader
from aerobee_wire.tags import tags_code
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import (
    FIRST_FILE,
    PATH,
    SMALL,
    bodies,
    new_store,
    open_store,
    send,
    upkeep,
    visible,
)

RED, BLUE = tags_code("red"), tags_code("blue")


def tagged(tag: str, body: bytes = b"x") -> NewMessage:
    return NewMessage("a", 0, body, f"TAGS\x01{tag}\x02".encode())


@pytest.fixture
def ten() -> MessageStore:
    store = open_store()
    for n in range(10):
        send(store, [NewMessage("a", 0, b"%d" % n), NewMessage("noise", 0, b"x" * 300)])
    return store


def test_records_are_read_in_order_from_the_offset(ten: MessageStore) -> None:
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
def test_offset_out_of_range_gets_the_next_begin_offset(
    ten: MessageStore, offset: int, status: ReadStatus, following: int
) -> None:
    result = ten.read("a", 0, offset)
    assert (result.status, result.next_begin_offset) == (status, following)
    assert result.records == b""


def test_unknown_queue_has_no_new_messages(ten: MessageStore) -> None:
    assert ten.read("a", 7, 0).status is ReadStatus.NO_NEW
    assert ten.read("unknown", 0, 0).status is ReadStatus.NO_NEW
    assert ten.read("unknown", 0, 5).status is ReadStatus.OFFSET_TOO_LARGE


def test_max_bytes_never_holds_back_the_first_message() -> None:
    store = open_store()
    appended = send(store, [NewMessage("a", 0, b"x" * 500) for _ in range(4)])
    size = appended[0].store_size
    assert store.read("a", 0, 0, max_bytes=1).message_count == 1
    assert store.read("a", 0, 0, max_bytes=size).message_count == 1
    assert store.read("a", 0, 0, max_bytes=2 * size - 1).message_count == 1
    result = store.read("a", 0, 0, max_bytes=2 * size)
    assert (result.message_count, result.next_begin_offset) == (2, 2)
    assert len(result.records) == 2 * size


def test_record_over_the_current_max_message_size_is_read() -> None:
    disk = SimulatedDisk()
    options = replace(SMALL, commit_log_file_size=4 << 20, max_message_size=2 << 20)
    first = open_store(disk, options)
    [message] = send(first, [NewMessage("a", 0, b"x" * (2 << 20))])
    first.close()
    again = open_store(disk.after_kill(), replace(options, max_message_size=1_024))
    result = again.read("a", 0, 0)
    assert (result.message_count, result.corrupted_count) == (1, 0)
    assert len(again.get(message.physical_offset).body) == 2 << 20


def test_messages_of_other_tags_are_skipped() -> None:
    store = open_store()
    send(store, [tagged("red" if n % 3 == 0 else "blue", b"%d" % n) for n in range(9)])
    result = store.read("a", 0, 1, tags=frozenset({RED}))
    assert bodies(result.records) == [b"3", b"6"]
    assert result.next_begin_offset == 9
    result = store.read("a", 0, 0, max_messages=1, tags=frozenset({RED, BLUE}))
    assert (bodies(result.records), result.next_begin_offset) == ([b"0"], 1)
    result = store.read("a", 0, 0, tags=frozenset({tags_code("green")}))
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_MATCHED, 9)


def test_filtered_read_scans_at_most_800_units() -> None:
    """RocketMQ's max filter message size: 16,000 bytes of units."""
    store = open_store(options=StoreOptions(commit_log_file_size=1 << 20, index_enabled=False))
    send(store, [tagged("blue") for _ in range(1_000)] + [tagged("red")])
    result = store.read("a", 0, 0, tags=frozenset({RED}))
    assert (result.status, result.next_begin_offset) == (ReadStatus.NO_MATCHED, 800)
    result = store.read("a", 0, 800, tags=frozenset({RED}))
    assert (result.status, result.next_begin_offset) == (ReadStatus.FOUND, 1_001)


def test_adjacent_records_are_read_with_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_records_of_other_queues_in_between_are_left_out() -> None:
    store = open_store()
    for n in range(20):
        gap = b"y" * (2_000 if n % 5 == 0 else 10)
        send(store, [NewMessage("a", 0, b"%d" % n), NewMessage("noise", 0, gap)])
    assert bodies(store.read("a", 0, 0).records) == [b"%d" % n for n in range(20)]


@pytest.mark.parametrize("host", ["10.0.0.1:1", "[::1]:1"])
def test_offset_by_time_matches_a_linear_search(host: str) -> None:
    """Lower = first at or after, or the next offset; upper = last at or before, within
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
def test_damaged_unit_is_repaired_from_the_log(
    unit: bytes, offset: int, tags: frozenset[int] | None
) -> None:
    store, disk, clock = new_store()
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


def test_repaired_unit_of_another_tag_is_skipped() -> None:
    store, disk, clock = new_store()
    send(store, [tagged("red", b"0"), tagged("blue", b"1"), tagged("red", b"2")])
    upkeep(store, clock)
    path = PATH / "consumequeue" / "a" / "0" / ("0" * 20)
    disk.put(path, disk.files()[path][:20] + bytes(20) + disk.files()[path][40:])
    result = store.read("a", 0, 0, tags=frozenset({RED}))
    assert bodies(result.records) == [b"0", b"2"]
    assert (result.message_count, result.corrupted_count) == (2, 0)


def test_damaged_records_are_counted_and_skipped() -> None:
    store, disk, _ = new_store()
    appended = send(store, [NewMessage("a", 0, b"%d" % n) for n in range(6)])
    for n in (0, 3, 5):
        disk.flip(FIRST_FILE, (appended[n].physical_offset + 88) * 8)
    result = store.read("a", 0, 0)
    assert bodies(result.records) == [b"1", b"2", b"4"]
    assert (result.message_count, result.corrupted_count) == (3, 3)
    assert result.next_begin_offset == 6
    result = store.read("a", 0, 5)
    assert result.status is ReadStatus.NO_MATCHED
    assert (result.corrupted_count, result.next_begin_offset) == (1, 6)
    assert store.corruption_count == 3


def test_record_of_another_queue_never_replaces_a_lost_one() -> None:
    """The unit of one queue names a whole record of another, and its own record is lost."""
    store, disk, clock = new_store()
    appended = send(store, [NewMessage("a", 0, b"mine"), NewMessage("b", 0, b"others")])
    upkeep(store, clock)
    path = PATH / "consumequeue" / "a" / "0" / ("0" * 20)
    wrong = UNIT.pack(appended[1].physical_offset, appended[1].store_size, 0)
    disk.put(path, wrong + disk.files()[path][20:])
    disk.flip(FIRST_FILE, (appended[0].physical_offset + 88) * 8)
    result = store.read("a", 0, 0)
    assert (result.records, result.corrupted_count) == (b"", 1)
    assert visible(store)["b", 0] == {0: b"others"}


def test_unreadable_consume_queue_is_a_store_read_error() -> None:
    store, disk, clock = new_store()
    send(store, [tagged("red"), NewMessage("b", 0, b"fine")])
    upkeep(store, clock)
    disk.fail_reads = lambda path: path.parts[-3:-1] == ("a", "0")
    for call in (
        lambda: store.read("a", 0, 0),
        lambda: store.units("a", 0, 0, 1),
        lambda: store.search_offset("a", 0, 5),
        lambda: store.store_timestamp("a", 0, 0),
    ):
        with pytest.raises(StoreReadError):
            call()
    assert store.read("b", 0, 0).status is ReadStatus.FOUND


def test_unreadable_index_is_a_store_read_error() -> None:
    store, disk, clock = new_store()
    send(store, [NewMessage("a", 0, b"x", b"KEYS\x01k\x02")])
    upkeep(store, clock)
    disk.fail_reads = lambda path: path.parent.name == "index"
    with pytest.raises(StoreReadError):
        store.query("a", "k")


def test_units_are_returned_from_an_offset() -> None:
    options = replace(SMALL, consume_queue_file_size=40)
    store = open_store(options=options)
    appended = send(store, [tagged("red") for _ in range(5)])
    assert store.units("a", 0, 1, 3) == [
        (message.physical_offset, message.store_size, RED) for message in appended[1:4]
    ]
    assert store.units("a", 0, -1, 3) == []
    assert store.units("nobody", 0, 0, 3) == []


@pytest.mark.parametrize("seed", range(8))
def test_many_records_are_read_over_arrays_as_they_are_one_by_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues in bursts and interleaved, over several files, with damaged records from the fifth
    seed on."""
    random = Random(seed)
    disk = SimulatedDisk()
    store = open_store(disk, replace(SMALL, commit_log_file_size=64 << 10))
    for _ in range(40):
        topics = ("a",) if random.random() < 0.7 else ("a", "noise")
        send(
            store,
            [
                NewMessage(random.choice(topics), 0, bytes(random.randint(1, 120)))
                for _ in range(random.choice((3, 300)))
            ],
        )
    last = store.max_offset("a", 0)
    if seed > 4:
        for n in random.sample(range(last), 3):
            at = store.units("a", 0, n, 1)[0][0]
            disk.flip(
                PATH / "commitlog" / f"{at - at % (64 << 10):020}", (at % (64 << 10) + 88) * 8
            )
    for _ in range(30):
        read = partial(
            store.read,
            "a",
            0,
            random.randrange(last),
            max_messages=random.choice((200, 1_000)),
            max_bytes=random.choice((1, 9_000, 40_000, 1 << 20)),
        )
        over_arrays = read()
        with monkeypatch.context() as patched:
            patched.setattr(reader, "_MANY", 1 << 30)
            assert read() == over_arrays, read.keywords


def test_a_unit_that_names_no_record_is_repaired_among_many() -> None:
    store, disk, clock = new_store()
    send(store, [NewMessage("a", 0, b"%d" % n) for n in range(300)])
    upkeep(store, clock)
    path = PATH / "consumequeue" / "a" / "0" / f"{32 * 20:020}"
    disk.put(path, bytes(20) + disk.files()[path][20:])
    result = store.read("a", 0, 0, max_messages=300)
    assert bodies(result.records) == [b"%d" % n for n in range(300)]
