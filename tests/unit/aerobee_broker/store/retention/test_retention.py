"""Retention by time and by size, and what happens as the disk fills."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from aerobee_broker.disk import Usage
from aerobee_broker.errors import DiskFull
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage, ReadStatus
from aerobee_broker.store.options import HOUR_MS, StoreOptions
from aerobee_broker.store.retention.retention import deletion_hint
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import LOG, SMALL, flush, new_store, open_store, send, visible

SIZE = SMALL.commit_log_file_size
BIG = [NewMessage("a", 0, b"x" * 1_900) for _ in range(4)]  # fill a file
NEVER = replace(SMALL, delete_when=(), clean_interval_ms=1_000)


def hour_now(clock: ManualClock) -> int:
    return time.localtime(clock.now_ms() / 1000).tm_hour


def step(store: MessageStore, clock: ManualClock) -> None:
    """One run of cleaning, and the removals on the flusher's thread."""
    clock.advance(1_000)
    store.maintain(clock.now_ms())
    while store.has_file_work and store.maintain_files():
        pass


def filled(options: StoreOptions, files: int) -> tuple[MessageStore, SimulatedDisk, ManualClock]:
    """One file for each hour."""
    store, disk, clock = new_store(options)
    for _ in range(files):
        send(store, BIG)
        clock.advance(HOUR_MS)
    return store, disk, clock


def files(disk: SimulatedDisk) -> list[int]:
    return sorted(
        int(path.name) // SIZE
        for path in disk.files()
        if path.parent == LOG and path.name.isdigit()
    )


def test_a_nearly_full_disk_has_a_hint_of_what_is_deleted() -> None:
    """With unread messages and dead letters, which no reader may expect."""
    assert deletion_hint(Usage(75, 25), SMALL) == ""
    hint = deletion_hint(Usage(76, 24), SMALL)
    assert "76 %" in hint and "85 %" in hint and "unread" in hint and "dead letters" in hint
    keeping = replace(SMALL, clean_file_forcibly=False)
    assert "90 %" in deletion_hint(Usage(76, 24), keeping)


def test_a_file_is_kept_though_the_next_one_began_while_the_clock_was_wrong() -> None:
    """The clock was far behind for a moment, and the first record of a file was stored then."""
    always = replace(NEVER, delete_when=tuple(range(24)), file_reserved_time_ms=72 * HOUR_MS)
    store, disk, clock = filled(always, 1)
    clock.advance(-96 * HOUR_MS)
    send(store, BIG)
    clock.advance(96 * HOUR_MS)
    send(store, BIG)
    for _ in range(3):
        step(store, clock)
    assert files(disk) == [0, 1, 2]
    clock.advance(72 * HOUR_MS)
    for _ in range(3):
        step(store, clock)
    assert files(disk) == [2]


def test_a_file_is_kept_though_the_clock_was_right_in_its_middle_only() -> None:
    """Its first record and that of the next file were stored while the clock was far behind."""
    always = replace(NEVER, delete_when=tuple(range(24)), file_reserved_time_ms=72 * HOUR_MS)
    store, disk, clock = filled(always, 0)
    for back in (96, 0, *[96] * 6):  # four messages fill a file
        clock.jump(-back * HOUR_MS)
        send(store, BIG[:1])
        clock.jump(back * HOUR_MS)
    send(store, BIG)
    for _ in range(3):
        step(store, clock)
    assert files(disk) == [0, 1, 2]
    young = store.search_offset("a", 0, clock.now_ms() - HOUR_MS)
    physical_offset = store.units("a", 0, young, 1)[0][0]
    (expiry,) = store.expiries([physical_offset], clock.now_ms())
    assert expiry >= clock.now_ms() + 71 * HOUR_MS
    clock.advance(73 * HOUR_MS)
    for _ in range(3):
        step(store, clock)
    assert files(disk) == [2]


def test_producers_are_let_in_a_second_after_there_is_room_again() -> None:
    """Files are looked at every 10 s only; a full disk is measured each second."""
    store, disk, clock = new_store(replace(NEVER, clean_interval_ms=10_000))
    step(store, clock)
    disk.reported = Usage(used=95, free=5)
    for _ in range(11):
        step(store, clock)
    with pytest.raises(DiskFull):
        send(store, BIG)
    disk.reported = Usage(used=10, free=90)
    step(store, clock)
    send(store, BIG)
    assert not store.disk_full_reason
    store.close()


def test_expired_files_are_deleted_in_the_hour_of_deletion() -> None:
    """RocketMQ keeps files for 72 h; here 3.5. The file in use stays, however old."""
    options = replace(NEVER, file_reserved_time_ms=7 * HOUR_MS // 2)
    store, disk, clock = filled(options, 6)
    at_this_hour = replace(options, delete_when=(hour_now(clock),))
    step(store, clock)
    assert files(disk) == [0, 1, 2, 3, 4, 5]
    store.close()
    disk = disk.after_kill()
    store = open_store(disk, at_this_hour, clock)
    step(store, clock)
    assert files(disk) == [2, 3, 4, 5]
    clock.advance(24 * HOUR_MS)
    step(store, clock)
    assert files(disk) == [5]
    assert store.min_physical_offset == 5 * SIZE


def test_one_run_deletes_a_bounded_number_of_files() -> None:
    options = replace(NEVER, retain_bytes=1, delete_file_batch_max=2)
    store, disk, clock = filled(options, 7)
    step(store, clock)
    assert files(disk) == [2, 3, 4, 5, 6]
    step(store, clock)
    assert files(disk) == [4, 5, 6]


def test_unflushed_file_stays() -> None:
    """The flusher may sync it next."""
    store, disk, clock = new_store(replace(NEVER, retain_bytes=1))
    store.append([*BIG, *BIG])
    store.flush.write()
    step(store, clock)
    assert files(disk) == [0, 1]
    flush(store)
    step(store, clock)
    assert files(disk) == [1]


def test_size_of_the_log_is_bounded() -> None:
    store, disk, clock = filled(replace(NEVER, retain_bytes=3 * SIZE), 8)
    step(store, clock)
    assert files(disk) == [4, 5, 6, 7]
    assert store.end_offset - store.min_physical_offset < 4 * SIZE


def test_readers_of_deleted_messages_get_the_new_lowest_offset() -> None:
    store, _, clock = filled(replace(NEVER, retain_bytes=2 * SIZE), 5)
    step(store, clock)
    result = store.read("a", 0, 3)
    assert result.status is ReadStatus.OFFSET_TOO_SMALL
    assert (result.next_begin_offset, result.min_offset) == (8, 8)
    assert store.min_offset("a", 0) == 8
    assert sorted(visible(store)["a", 0]) == list(range(8, 20))


def test_consume_queue_files_are_deleted_with_the_log() -> None:
    options = replace(NEVER, retain_bytes=1, consume_queue_file_size=80)
    store, disk, clock = filled(options, 6)
    queue_files = [p for p in disk.files() if "consumequeue" in p.parts]
    step(store, clock)
    step(store, clock)
    left = [p.name for p in disk.files() if "consumequeue" in p.parts]
    assert len(queue_files) <= 6
    # The last expired unit stays: it tells where the queue begins.
    assert left == [f"{16 * 20:020d}", f"{20 * 20:020d}"]


@pytest.mark.parametrize("units", [4, 5, 8])
def test_expired_queue_keeps_its_next_offset_after_a_start(units: int) -> None:
    """Also when its messages filled its files to the last unit."""
    options = replace(NEVER, retain_bytes=SIZE, consume_queue_file_size=20 * units)
    store, disk, clock = filled(options, 2)
    for _ in range(4):
        send(store, [replace(message, topic="b") for message in BIG])
    for _ in range(3):
        step(store, clock)
    assert (store.min_offset("a", 0), store.max_offset("a", 0)) == (8, 8)
    store.close()
    events: list[str] = []
    store = open_store(disk.after_kill(), options, clock, lambda name, _: events.append(name))
    assert events == []
    assert (store.min_offset("a", 0), store.max_offset("a", 0)) == (8, 8)


def test_expired_queue_keeps_its_next_offset() -> None:
    store, _, clock = filled(replace(NEVER, retain_bytes=1), 1)
    send(store, [NewMessage("b", 0, b"x" * 1_900) for _ in range(8)])
    step(store, clock)
    assert (store.min_offset("a", 0), store.max_offset("a", 0)) == (4, 4)
    assert store.read("a", 0, 4).status is ReadStatus.NO_NEW
    [message] = send(store, [NewMessage("a", 0, b"next")])
    assert message.queue_offset == 4


# ---- watermarks ----


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        (75, [0, 1, 2, 3, 4, 5]),  # nothing outside of the hour
        (76, [2, 3, 4, 5]),  # the expired files
        (85, [2, 3, 4, 5]),
        (86, [5]),  # all but the file in use
    ],
)
def test_fuller_disk_deletes_more_files(used: int, expected: list[int]) -> None:
    store, disk, clock = filled(replace(NEVER, file_reserved_time_ms=7 * HOUR_MS // 2), 6)
    disk.reported = Usage(used, 100 - used)
    step(store, clock)
    assert files(disk) == expected


def test_unexpired_files_stay_without_forced_cleaning() -> None:
    store, disk, clock = filled(replace(NEVER, clean_file_forcibly=False), 4)
    disk.reported = Usage(89, 11)
    step(store, clock)
    assert files(disk) == [0, 1, 2, 3]


def test_a_disk_that_cannot_be_measured_counts_as_tight() -> None:
    store, disk, clock = filled(replace(NEVER, file_reserved_time_ms=7 * HOUR_MS // 2), 6)

    def unknown(path: object) -> Usage:
        raise OSError

    disk.usage = unknown  # type: ignore[method-assign]
    step(store, clock)
    assert files(disk) == [2, 3, 4, 5]
    assert store.disk_full_reason == ""


def test_producers_are_refused_above_90_percent_until_below_85() -> None:
    """Reads are still served."""
    events: list[str] = []
    store, disk, clock = new_store(NEVER, on_event=lambda name, fields: events.append(name))
    send(store, BIG[:1])
    for used, refused in ((90, False), (91, True), (86, True), (85, False)):
        disk.reported = Usage(used * 1_000, 100_000 - used * 1_000)
        step(store, clock)
        if refused:
            with pytest.raises(DiskFull):
                store.append(BIG[:1])
        else:
            send(store, BIG[:1])
        assert visible(store)["a", 0]
    assert events == ["disk_full", "disk_ok"]


def test_reserved_appends_are_accepted_up_to_95_percent() -> None:
    store, disk, clock = new_store(NEVER)
    disk.reported = Usage(95, 5)
    step(store, clock)
    with pytest.raises(DiskFull):
        store.append(BIG[:1])
    store.append(BIG[:1], reserve=True)
    disk.reported = Usage(96, 4)
    step(store, clock)
    with pytest.raises(DiskFull):
        store.append(BIG[:1], reserve=True)


def test_watermark_in_bytes_refuses_producers_too() -> None:
    store, disk, clock = new_store(replace(NEVER, disk_min_free_bytes=1_000))
    disk.reported = Usage(10, 999)
    step(store, clock)
    with pytest.raises(DiskFull):
        store.append(BIG[:1])
    disk.reported = Usage(10, 1_000)
    step(store, clock)
    send(store, BIG[:1])


def test_full_disk_is_seen_at_the_start() -> None:
    disk = SimulatedDisk()
    disk.reported = Usage(99, 1)
    store = open_store(disk)
    with pytest.raises(DiskFull):
        store.append(BIG)


def test_clock_jump_of_an_hour_deletes_nothing() -> None:
    store, disk, clock = filled(replace(NEVER, delete_when=tuple(range(24))), 5)
    for jump in (HOUR_MS, -2 * HOUR_MS, HOUR_MS):
        clock.jump(jump)
        step(store, clock)
    assert files(disk) == [0, 1, 2, 3, 4]


def test_deleted_topic_cancels_removals_of_its_files() -> None:
    """They were deleted with it, or belong to the recreated topic."""
    options = replace(NEVER, retain_bytes=SIZE, consume_queue_file_size=20 * 4, unwritten_units=1)
    store, disk, clock = filled(options, 4)
    clock.advance(1_000)
    store.maintain(clock.now_ms())  # the log files, and then the queues
    clock.advance(1_000)
    store.maintain(clock.now_ms())
    store.delete_topic("a")
    send(store, BIG)
    while store.has_file_work and store.maintain_files():
        pass
    step(store, clock)
    assert store.flush.read_only_reason == ""
    store.close()
    store = open_store(disk.after_kill(), options, clock)
    assert store.max_offset("a", 0) == 4
    assert len(visible(store)["a", 0]) == 4


@pytest.mark.parametrize("damage", ["an old timestamp", "zeros"])
def test_damaged_first_record_does_not_change_the_expiry(damage: str) -> None:
    options = replace(NEVER, file_reserved_time_ms=7 * HOUR_MS // 2)
    store, disk, clock = filled(options, 6)
    hour = hour_now(clock)
    second = LOG / f"{SIZE:020d}"
    data = bytearray(disk.files()[second])
    if damage == "zeros":
        data[:100] = bytes(100)
    else:
        data[56:60] = bytes(4)
    disk.put(second, bytes(data))
    store.close()
    # None of them is old enough; then the first two are.
    for hours, left in ((20, [0, 1, 2, 3, 4, 5]), (7, [2, 3, 4, 5])):
        kept = replace(options, file_reserved_time_ms=hours * HOUR_MS // 2, delete_when=(hour,))
        store = open_store(disk := disk.after_kill(), kept, clock)
        step(store, clock)
        assert files(disk) == left
        store.close()


# ---- expiries ----


def expiries(store: MessageStore, clock: ManualClock) -> list[int]:
    """Hours from now until each file goes."""
    now_ms = clock.now_ms()
    answers = store.cleaning.retention.expiries([number * SIZE + 5 for number in range(4)], now_ms)
    return [-1 if answer == 0 else round((answer - now_ms) / HOUR_MS) for answer in answers]


def test_expiry_is_when_the_next_file_is_old_enough_in_an_hour_of_deletion() -> None:
    any_hour = tuple(range(24))
    options = replace(NEVER, file_reserved_time_ms=7 * HOUR_MS // 2, delete_when=any_hour)
    store, disk, clock = filled(options, 4)  # files begin 4, 3, 2 and 1 hours ago
    clock.advance(HOUR_MS // 4)
    # The file in use: as if the next one began now.
    assert expiries(store, clock) == [0, 1, 2, 4]
    assert (
        store.cleaning.retention.expiries([5, SIZE - 1, 0], clock.now_ms())
        == [store.cleaning.retention.expiries([5], clock.now_ms())[0]] * 3
    )
    step(store, clock)
    assert files(disk) == [0, 1, 2, 3]
    clock.advance(HOUR_MS // 2)
    step(store, clock)
    assert files(disk) == [1, 2, 3]


def test_expiry_waits_for_the_hour_of_deletion_unless_the_disk_is_tight() -> None:
    options = replace(NEVER, file_reserved_time_ms=HOUR_MS)
    store, disk, clock = filled(options, 4)
    assert expiries(store, clock) == [-1] * 4
    at = replace(options, delete_when=((hour_now(clock) + 6) % 24,))
    store.close()
    disk = disk.after_kill()
    store = open_store(disk, at, clock)
    (first, *_, last) = expiries(store, clock)
    assert 5 <= first <= 6 and first == last
    moment = store.cleaning.retention.expiries([0], clock.now_ms())[0]
    local = time.localtime(moment / 1000)
    assert (local.tm_hour, local.tm_min, local.tm_sec) == (at.delete_when[0], 0, 0)
    disk.reported = Usage(80, 20)
    assert expiries(store, clock) == [0, 0, 0, 1]


# ---- replicas ----


def test_what_a_master_has_given_up_goes_unless_it_is_protected() -> None:
    store, disk, clock = filled(NEVER, 5)
    given_up = [0]
    store.cleaning.give_up(lambda: given_up[0])
    step(store, clock)
    assert files(disk) == [0, 1, 2, 3, 4]
    given_up[0] = 2 * SIZE + 5
    store.cleaning.protect(lambda: SIZE)
    step(store, clock)
    assert files(disk) == [1, 2, 3, 4]


def test_the_file_in_use_stays_wherever_the_master_begins() -> None:
    store, disk, clock = filled(NEVER, 3)
    store.cleaning.give_up(lambda: 1 << 40)
    step(store, clock)
    assert files(disk) == [2]


def test_only_a_disk_above_the_forcible_mark_forces() -> None:
    store, disk, clock = filled(NEVER, 3)
    for used, forced in ((84, False), (86, True), (60, False)):
        disk.reported = Usage(used, 100 - used)
        step(store, clock)
        assert store.cleaning.retention.forced == forced
