"""Starts: after a clean end, after a crash, over damage; what is derived against the log."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.errors import DiskFull, StoreOpenError, StoreReadError, StoreWriteError
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage, ReadStatus
from aerobee_broker.store.options import StoreOptions
from aerobee_wire import properties, record
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import PowerCut, SimulatedDisk, SimulatedFile, never
from support.disk.stores import LOG, PATH, SMALL, flush, open_store, send, upkeep, visible

SIZE = SMALL.commit_log_file_size
Events = list[tuple[str, dict[str, object]]]


def numbered(start: int, count: int, topic: str = "a", size: int = 150) -> list[NewMessage]:
    return [
        NewMessage(
            topic,
            n % 2,
            b"%d|" % n * (size // 4),
            properties.encode({"UNIQ_KEY": f"ID{n}", "TAGS": "red"}),
        )
        for n in range(start, start + count)
    ]


def started(disk: SimulatedDisk, options: StoreOptions = SMALL) -> tuple[MessageStore, Events]:
    events: Events = []

    def hear(name: str, fields: Mapping[str, object]) -> None:
        events.append((name, dict(fields)))

    return open_store(disk, options, on_event=hear), events


def names(events: Events) -> list[str]:
    return [name for name, _ in events]


def test_clean_start_reads_no_record() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    for n in range(0, 100, 10):
        send(store, numbered(n, 10))
    before = visible(store)
    store.close()
    disk = disk.after_kill()
    read: list[Path] = []

    def seen(path: Path) -> bool:
        read.append(path)
        return False

    disk.fail_reads = seen
    store, events = started(disk)
    # The last file: that there is nothing behind the end, and its tail is made zeros again.
    assert len([path for path in read if path.parent == LOG]) <= 2
    assert events == []
    assert visible(store) == before


def test_start_after_a_crash_reads_from_the_checkpoint_on() -> None:
    disk = SimulatedDisk()
    clock = ManualClock()
    store = open_store(disk, clock=clock)
    for n in range(0, 200, 10):
        send(store, numbered(n, 10))
    upkeep(store, clock)
    send(store, numbered(200, 5))
    before = visible(store)
    disk = disk.after_kill()
    read: list[Path] = []

    def seen(path: Path) -> bool:
        read.append(path)
        return False

    disk.fail_reads = seen
    store, _ = started(disk)
    last = LOG / f"{store.end_offset // SIZE * SIZE:020d}"
    assert {path for path in read if path.parent == LOG} == {last}
    assert visible(store) == before
    assert len(store.query("a", "ID204", unique=True)) == 1
    assert len(store.query("a", "ID3", unique=True)) == 1


def test_abort_is_there_while_the_store_is_open_and_only_then() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    assert disk.exists(PATH / "abort")
    store.close()
    assert not disk.exists(PATH / "abort")
    disk = disk.after_kill()
    store = open_store(disk)
    store.abandon()
    assert disk.exists(PATH / "abort")


def test_torn_tail_is_reported_and_written_over() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 4))
    store.append(numbered(4, 1))
    store.flush.write()
    end = store.confirmed_offset
    disk = disk.after_kill()
    disk.flip(LOG / ("0" * 20), (end + 100) * 8)
    store, events = started(disk)
    assert events == [
        (
            "log_tail_truncated",
            {
                "file": str(LOG / ("0" * 20)),
                "physical_offset": end,
                "reason": "it does not match its CRC",
            },
        )
    ]
    assert store.end_offset == end
    assert disk.files()[LOG / ("0" * 20)][end:] == bytes(SIZE - end)
    [message] = send(store, numbered(4, 1))
    assert message.physical_offset == end


def test_damage_in_the_middle_is_located_reported_and_passed_over() -> None:
    """A record that was durable, behind the checkpoint and in front of others."""
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 20))
    units = store.units("a", 0, 0, 20)
    physical_offset = units[3][0]
    disk = disk.after_kill()
    disk.flip(LOG / ("0" * 20), (physical_offset + 95) * 8)
    store, events = started(disk)
    assert events == [
        (
            "corrupt_record",
            {
                "file": str(LOG / ("0" * 20)),
                "physical_offset": physical_offset,
                "reason": "it does not match its CRC",
            },
        )
    ]
    assert store.max_offset("a", 0) == 10
    result = store.read("a", 0, 0)
    assert (result.message_count, result.corrupted_count, result.next_begin_offset) == (9, 1, 10)
    assert store.corruption_count == 1
    store.close()
    store, events = started(disk.after_kill())
    assert events == []
    assert store.read("a", 0, 3, max_messages=1).status is ReadStatus.NO_MATCHED


def test_damaged_head_leaves_a_hole_and_the_others_keep_their_offsets() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 20))
    before = visible(store)
    physical_offset = store.units("a", 0, 3, 1)[0][0]
    disk = disk.after_kill()
    data = bytearray(disk.files()[LOG / ("0" * 20)])
    data[physical_offset : physical_offset + 40] = b"\xff" * 40
    disk.put(LOG / ("0" * 20), bytes(data))
    store, events = started(disk)
    assert names(events) == ["corrupt_record"]
    del before["a", 0][3]
    assert visible(store) == before
    result = store.read("a", 0, 0)
    assert (result.message_count, result.corrupted_count) == (9, 1)


def test_damage_over_the_end_of_a_file_does_not_hide_the_next_one() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    for n in range(0, 100, 10):
        send(store, numbered(n, 10))
    before = visible(store)
    disk = disk.after_kill()
    path = LOG / ("0" * 20)
    disk.put(path, disk.files()[path][:-400] + b"\xee" * 400)
    store, events = started(disk)
    assert set(names(events)) == {"corrupt_record"}
    found = visible(store)
    lost = sum(len(messages) for messages in before.values()) - sum(map(len, found.values()))
    assert 1 <= lost <= 4
    for queue, messages in found.items():
        assert messages.items() <= before[queue].items()
        assert max(messages) == max(before[queue])


def test_without_a_checkpoint_damage_is_told_from_a_tail_by_what_follows() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 20))
    physical_offset = store.units("a", 0, 3, 1)[0][0]
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    disk.flip(LOG / ("0" * 20), (physical_offset + 95) * 8)
    store, events = started(disk)
    assert names(events) == ["derived_files_rebuilt", "derived_files_rebuilt", "corrupt_record"]
    assert store.max_offset("a", 0) == 10


def test_record_with_an_impossible_queue_offset_is_damage() -> None:
    """Nothing is missing before it, so it cannot leave a gap."""
    disk = SimulatedDisk()
    store = open_store(disk, replace(SMALL, whole_crc=False))
    send(store, numbered(0, 6))
    physical_offset = store.units("a", 0, 1, 1)[0][0]
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    disk.flip(LOG / ("0" * 20), (physical_offset + 24) * 8)  # the queue offset grows by 16 million
    store, events = started(disk, options=replace(SMALL, whole_crc=False))
    assert "corrupt_record" in names(events)
    assert sorted(visible(store)["a", 0]) == [0, 2]
    assert store.max_offset("a", 0) == 3


def test_long_recovery_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee_broker.store.recovery.recovery._PROGRESS_BYTES", SIZE)
    disk = SimulatedDisk()
    store = open_store(disk)
    for n in range(0, 200, 10):
        send(store, numbered(n, 10))
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    _, events = started(disk)
    progress = [fields for name, fields in events if name == "recovery_progress"]
    assert len(progress) >= 3
    assert [fields["bytes"] for fields in progress] == sorted(
        {fields["bytes"] for fields in progress}  # type: ignore[type-var]
    )


def test_keys_and_units_of_delayed_topics_come_back_as_they_were() -> None:
    codes = {"delayed": lambda given, stored_ms: stored_ms + len(given)}
    disk = SimulatedDisk()
    clock = ManualClock()
    store = MessageStore.open(
        PATH, SMALL, clock=clock, disk=disk, store_host="127.0.0.1:1", tags_code_of=codes
    )
    for n in range(5):
        send(store, numbered(n, 1, "delayed"))
        clock.advance(500)
    before = store.units("delayed", 0, 0, 9)
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    store = MessageStore.open(
        PATH, SMALL, clock=clock, disk=disk, store_host="127.0.0.1:1", tags_code_of=codes
    )
    assert store.units("delayed", 0, 0, 9) == before


def test_prepared_messages_are_derived_as_they_were() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    kinds = [record.TRANSACTION_PREPARED, 0, record.TRANSACTION_ROLLBACK, 0]
    batch = [
        replace(one, sys_flag=kind, queue_id=0)
        for one, kind in zip(numbered(0, 4), kinds, strict=True)
    ]
    send(store, batch)
    before = visible(store)
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    store, _ = started(disk)
    assert visible(store) == before
    assert len(store.query("a", "ID0", unique=True)) == 1
    assert store.query("a", "ID2", unique=True) == []


def test_log_without_any_record_starts_empty() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    store.append(numbered(0, 1))
    store.flush.write()
    disk = disk.after_kill()
    disk.put(LOG / ("0" * 20), bytes(SIZE))
    store, events = started(disk)
    assert (store.end_offset, events) == (0, [])
    send(store, numbered(0, 2))
    assert len(visible(store)["a", 0]) == 1


def test_deleted_topic_stays_deleted_when_everything_is_rebuilt() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 6) + numbered(6, 6, "b"))
    store.delete_topic("a")
    assert store.topics() == ["b"]
    [message, _] = send(store, numbered(20, 2))
    assert message.queue_offset == 0
    store.close()
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    store, _ = started(disk)
    assert {queue: list(one) for queue, one in visible(store).items() if queue[0] == "a"} == {
        ("a", 0): [0],
        ("a", 1): [0],
    }
    assert store.query("a", "ID3") == []
    assert len(store.query("a", "ID20")) == 1


@pytest.mark.parametrize("clean", [True, False])
def test_what_follows_a_deletion_and_a_crash_is_not_taken_for_deleted(clean: bool) -> None:
    """The deletion was durable, what the log held in front of it was not."""
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 4))
    store.append(numbered(4, 6, "b"))
    store.delete_topic("a")
    store, _ = started(disk := disk.after_kill())
    send(store, numbered(20, 2))
    if clean:
        store.close()
    store, _ = started(disk := disk.after_kill())
    assert {queue: list(one) for queue, one in visible(store).items()} == {
        ("a", 0): [0],
        ("a", 1): [0],
    }
    store.close()
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    store, _ = started(disk)
    assert {queue: list(one) for queue, one in visible(store).items()} == {
        ("a", 0): [0],
        ("a", 1): [0],
    }


def test_what_follows_a_deletion_and_a_write_that_failed_is_not_taken_for_deleted() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 4))
    store.append(numbered(4, 6, "b"))
    store.delete_topic("a")
    store.flush.roll_back()
    send(store, numbered(20, 2))
    store, _ = started(disk.after_kill())
    assert {queue: list(one) for queue, one in visible(store).items()} == {
        ("a", 0): [0],
        ("a", 1): [0],
    }


def test_a_deletion_that_cannot_be_set_right_ends_the_taking_in() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 4))
    store.append(numbered(4, 6, "b"))
    store.delete_topic("a")
    disk.fail_writes = lambda path: "deletedTopics" in path.name
    store.flush.roll_back()
    assert "deletedTopics" in store.flush.read_only_reason


def test_a_deletion_that_failed_does_not_come_with_the_next_one() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 2) + numbered(2, 2, "b"))
    disk.fail_writes = lambda path: "deletedTopics" in path.name
    with pytest.raises(StoreWriteError):
        store.delete_topic("a")
    disk.fail_writes = lambda path: False
    store.delete_topic("b")
    assert len(store.query("a", "ID1")) == 1
    store.close()
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    store, _ = started(disk)
    assert list(visible(store)["a", 0]) == [0]


def test_keys_of_a_deleted_topic_are_not_found_in_its_successor() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 4))
    assert len(store.query("a", "ID1")) == 1  # in the index now
    store.delete_topic("a")
    send(store, numbered(20, 2))
    assert [len(store.query("a", key)) for key in ("ID1", "ID20")] == [0, 1]
    store.close()
    store, _ = started(disk.after_kill())
    assert [len(store.query("a", key)) for key in ("ID1", "ID20")] == [0, 1]


def test_unreadable_list_of_deleted_topics_is_reported_and_not_fatal() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 2))
    store.delete_topic("a")
    store.close()
    disk = disk.after_kill()
    disk.put(PATH / "config" / "deletedTopics.json", b"{not json")
    _, events = started(disk)
    assert "file_unreadable" in names(events)


def test_store_goes_on_after_each_of_many_crashes() -> None:
    disk = SimulatedDisk()
    expected: list[bytes] = []
    for n in range(30):
        store = open_store(disk)
        batch = [replace(one, queue_id=0) for one in numbered(n, 1)]
        store.append(batch)
        flush(store)
        expected.append(batch[0].body)
        disk = disk.after_power_cut(n)
    assert list(visible(open_store(disk))["a", 0].values()) == expected


@pytest.mark.parametrize("whole_crc", [True, False])
def test_a_start_without_a_checkpoint_leaves_none_that_calls_the_log_torn(whole_crc: bool) -> None:
    """The process is killed soon after it: damage is still damage at the next one."""
    options = replace(SMALL, whole_crc=whole_crc)
    disk = SimulatedDisk()
    store = open_store(disk, options)
    appended = send(store, numbered(0, 30))
    store.close()
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    damaged = appended[3].physical_offset
    disk.flip(LOG / ("0" * 20), (damaged + 120) * 8)
    started(disk, options)
    disk = disk.after_kill()
    # A record that was written without a CRC of its own is as good as before.
    store, events = started(disk, SMALL)
    assert sum(len(one) for one in visible(store).values()) == 29
    assert store.end_offset >= appended[-1].physical_offset
    assert "log_tail_truncated" not in names(events)


def test_a_start_without_a_checkpoint_that_is_cut_short_loses_nothing() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    appended = send(store, numbered(0, 30))
    store.close()
    disk.remove(PATH / "checkpoint")
    disk.flip(LOG / ("0" * 20), (appended[3].physical_offset + 120) * 8)
    steps = 0
    while True:
        again = disk.copy()
        again.crash_at = again.steps + (steps := steps + 1)
        with suppress(PowerCut):
            started(again)
            break
        store, _ = started(again.after_kill())
        assert sum(len(one) for one in visible(store).values()) == 29, steps


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("what", ["consumequeue", "index", "checkpoint"])
def test_derived_files_that_cannot_be_read_are_rebuilt(what: str, clean: bool) -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    store = open_store(disk, clock=clock)
    for n in range(0, 200, 10):
        send(store, numbered(n, 10))
    upkeep(store, clock)
    send(store, numbered(200, 5))
    before = visible(store)
    if clean:
        store.close()
    disk = disk.after_kill()
    bad = {path for path in disk.files() if what in path.parts or path.name == what}
    assert bad

    def fails(path: Path) -> bool:
        return path in bad and not rewritten

    rewritten: list[str] = []
    disk.fail_reads = fails

    def hear(name: str, _: Mapping[str, object]) -> None:
        rewritten.append(name)  # the old files are gone, and with them the sectors

    store = open_store(disk, on_event=hear)
    assert "derived_files_rebuilt" in rewritten
    assert visible(store) == before
    assert len(store.query("a", "ID3", unique=True)) == 1


def test_what_the_system_lacks_for_a_moment_rebuilds_nothing() -> None:
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, numbered(0, 20))
    before = visible(store)
    store.close()
    disk = disk.after_kill()
    opened = disk.open

    def refuse(path: Path, *, create: bool = False) -> SimulatedFile:
        if "consumequeue" in path.parts:
            raise OSError(errno.EMFILE, "Too many open files")
        return opened(path, create=create)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "open", refuse)
        with pytest.raises(StoreOpenError, match="Too many open files"):
            started(disk)
    store, events = started(disk)
    assert names(events) == []
    assert visible(store) == before


def test_the_first_unit_of_a_queue_cannot_be_read() -> None:
    """Of a log whose front is gone, so that it is looked at."""
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, [replace(one, queue_id=0) for one in numbered(0, 200)])
    before = visible(store)
    store.close()
    disk = disk.after_kill()
    disk.remove(LOG / ("0" * 20))
    first = PATH / "consumequeue" / "a" / "0" / ("0" * 20)
    rebuilt: list[str] = []
    disk.fail_reads = lambda path: path == first and not rebuilt
    store = open_store(disk, on_event=lambda name, _: rebuilt.append(name))
    low = store.min_offset("a", 0)
    assert 0 < low < 200
    kept = {offset: body for offset, body in before["a", 0].items() if offset >= low}
    assert visible(store) == {("a", 0): kept}


@pytest.mark.parametrize("what", ["consumequeue", "index"])
@pytest.mark.parametrize("lasting", [True, False])
def test_what_could_not_be_read_while_open_is_rebuilt_by_the_next_start(
    what: str, lasting: bool
) -> None:
    """As the error says."""
    disk, clock = SimulatedDisk(), ManualClock()
    store = open_store(disk, clock=clock)
    send(store, numbered(0, 200))
    before = visible(store)
    upkeep(store, clock)

    def look() -> None:
        if what == "index":
            store.query("a", "ID1")
        else:
            store.read("a", 0, 0)

    disk.fail_reads = lambda path: what in path.parts
    with pytest.raises(StoreReadError, match="the next start"):
        look()
    disk.fail_reads = never
    if not lasting:
        look()
    store.close()
    store, events = started(disk.after_kill())
    assert [fields["directory"] for _, fields in events] == ([what] if lasting else [])
    assert visible(store) == before
    assert len(store.query("a", "ID3", unique=True)) == 1


QUEUES = PATH / "consumequeue"


def without_front() -> SimulatedDisk:
    """A stopped store: the messages 0 to 39 of topic "old" have expired, those of "a" in part; what
    is derived must be rebuilt."""
    disk, clock = SimulatedDisk(), ManualClock()
    store = open_store(disk, clock=clock)
    send(store, numbered(0, 40, "a") + [replace(one, queue_id=0) for one in numbered(0, 40, "old")])
    for n in range(40, 120, 10):
        send(store, numbered(n, 10, "a", 900))
    store.close()
    for start in (0, SIZE, 2 * SIZE, 3 * SIZE):
        disk.remove(LOG / f"{start:020d}")
    disk.remove(PATH / "checkpoint")
    return disk


def check_without_front(store: MessageStore) -> None:
    assert (store.min_offset("old", 0), store.max_offset("old", 0)) == (40, 40)
    low = store.min_offset("a", 0)
    assert 0 < low < store.max_offset("a", 0) == 60
    assert list(visible(store)["a", 0]) == list(range(low, 60))
    assert store.corruption_count == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_queue_without_messages_does_not_count_from_0_again_when_it_is_rebuilt(
    clean: bool,
) -> None:
    """Groups are at the old offsets: they would pass over what comes."""
    store, events = started(disk := without_front())
    assert "derived_files_rebuilt" in names(events)
    check_without_front(store)
    if clean:
        store.close()
    store, _ = started(disk := disk.after_kill())
    check_without_front(store)
    assert send(store, numbered(50, 1, "old"))[0].queue_offset == 40
    store.close()
    store, _ = started(disk.after_kill())
    assert list(visible(store)["old", 0]) == [40]


def test_nor_when_the_rebuild_is_cut_short() -> None:
    whole = without_front()
    steps = 0
    while True:
        disk = whole.copy()
        disk.crash_at = disk.steps + (steps := steps + 1)
        with suppress(PowerCut):
            started(disk)
            break
        disk, clock = disk.after_kill(), ManualClock()
        store = open_store(disk, clock=clock)
        check_without_front(store)
        upkeep(store, clock)
        check_without_front(started(disk.after_power_cut(steps))[0])
    assert steps > 10


@pytest.mark.parametrize("damage", ["zeros", "more", "other size"])
def test_the_log_knows_better_than_the_old_units_of_a_queue(damage: str) -> None:
    disk = without_front()
    for path, data in disk.files().items():
        if path.parent == QUEUES / "a" / "0" and path.name == "0" * 20:
            units = bytearray(data)
            if damage == "zeros":
                units[100:] = bytes(len(units) - 100)
            elif damage == "more":  # as if many more had expired
                units[:] = units[:20] * (len(units) // 20)
            else:
                units.pop()
            disk.put(path, bytes(units))
    store, _ = started(disk)
    check_without_front(store)
    store.close()
    store, events = started(disk.after_kill())
    assert events == []
    check_without_front(store)


ODD = [
    b"A\x02TAGS\x01red\x02",
    b"TAGS\x01red\x02K\x01a\x01b\x02",
    b"K\x01TAGS\x01blue\x02",
    b"\x02TAGS\x01red\x02",
    b"TAGS\x01\x02TAGS\x01red\x02",
    b"TAGS\x01\xff\xc3\x28\x02\x01\x02",
    b"KEYS\x01a b\x02TAGS\x01red\x02",
]


def test_tags_in_properties_that_are_out_of_order_come_back_as_they_were() -> None:
    """A subscription to the tag gets the message before a rebuild, and after it."""
    disk = SimulatedDisk()
    store = open_store(disk)
    send(store, [NewMessage("a", 0, b"%d" % n, one) for n, one in enumerate(ODD)])
    units = store.units("a", 0, 0, 99)
    store.close()
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    store, _ = started(disk)
    assert store.units("a", 0, 0, 99) == units


def test_a_deletion_is_not_forgotten_before_its_records_are_gone_for_good() -> None:
    """A power cut may bring back log files that were just removed, and with them messages from
    before the deletion, which would stand in the way of those that came after it."""
    options = replace(SMALL, retain_bytes=2 * SIZE, delete_when=(), clean_interval_ms=1)
    seen = 0
    for seed in range(40):
        disk, clock = SimulatedDisk(seed), ManualClock()
        store = open_store(disk, options, clock)
        send(store, numbered(0, 10))
        store.delete_topic("a")
        for n in range(10, 60, 10):
            send(store, numbered(n, 10, size=900))
        shown = visible(store)
        clock.advance(1_000)
        store.maintain(clock.now_ms())
        low = store.min_physical_offset
        for _ in range(seed % 4):
            store.maintain_files()
        store.delete_topic("other")
        disk = disk.after_power_cut(seed)
        disk.remove_tree(QUEUES)
        store, _ = started(disk, options)
        seen += store.min_physical_offset < low
        last = max(shown["a", 0])
        assert visible(store)["a", 0][last] == shown["a", 0][last], seed
        assert store.corruption_count == 0, seed
    assert seen


def test_a_deletion_that_a_start_has_seen_is_durable() -> None:
    """What came after it builds on it."""
    for crash in range(1, 12):
        for seed in range(6):
            disk = SimulatedDisk(seed)
            store = open_store(disk)
            send(store, numbered(0, 6))
            disk.crash_at = disk.steps + crash
            with suppress(PowerCut):
                store.delete_topic("a")
            disk.crash_at, disk.dead = None, False
            store, _ = started(disk := disk.after_kill())
            deleted = store.deleted_below("a") > 0
            [message, _] = send(store, numbered(20, 2))
            disk = disk.after_power_cut(seed)
            disk.remove_tree(QUEUES)
            store, events = started(disk)
            assert (store.deleted_below("a") > 0) == deleted, (crash, seed)
            assert message.queue_offset in visible(store)["a", 0], (crash, seed)
            assert "corrupt_record" not in names(events)


@pytest.mark.parametrize("rebuilt", [False, True])
def test_a_store_opens_on_a_full_disk_after_a_crash(rebuilt: bool) -> None:
    """What is derived waits in memory, as before the crash; retention may make room."""
    disk, clock = SimulatedDisk(), ManualClock()
    store = open_store(disk, clock=clock)
    send(store, numbered(0, 200))
    upkeep(store, clock)
    for n in range(200, 600, 10):
        send(store, numbered(n, 10, f"new{n}"))
    before = visible(store)
    disk = disk.after_kill()
    if rebuilt:
        disk.remove_tree(QUEUES)
    disk.capacity = 0
    store = open_store(disk, clock=clock)
    assert visible(store) == before
    assert "No space left" in store.disk_full_reason
    with pytest.raises(DiskFull):
        store.append(numbered(0, 1))
    upkeep(store, clock)
    assert store.flush.read_only_reason == ""
    disk.capacity = None
    upkeep(store, clock)
    send(store, numbered(600, 5))
    assert len(store.query("a", "ID3", unique=True)) == 1
    assert len(store.query("new590", "ID599", unique=True)) == 1
    store.close()
    store, events = started(disk.after_kill())
    assert events == []
    assert {queue: one for queue, one in visible(store).items() if queue[0] != "a"} == {
        queue: one for queue, one in before.items() if queue[0] != "a"
    }
