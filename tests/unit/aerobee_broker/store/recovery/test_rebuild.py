"""Rebuilds: derived files that are lost, unreadable or cannot be written, against the log."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.errors import DiskFull, StoreOpenError, StoreReadError
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import PowerCut, SimulatedDisk, SimulatedFile, never
from support.disk.stores import (
    FIRST_FILE,
    LOG,
    PATH,
    SMALL,
    event_names,
    new_store,
    numbered_messages,
    open_store,
    open_with_events,
    send,
    upkeep,
    visible,
    without_checkpoint,
)

SIZE = SMALL.commit_log_file_size
QUEUES = PATH / "consumequeue"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("what", ["consumequeue", "index", "checkpoint"])
def test_unreadable_derived_files_are_rebuilt(what: str, clean: bool) -> None:
    store, disk, clock = new_store()
    for n in range(0, 200, 10):
        send(store, numbered_messages(n, 10))
    upkeep(store, clock)
    send(store, numbered_messages(200, 5))
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
        rewritten.append(name)  # new files, without the bad sectors

    store = open_store(disk, on_event=hear)
    assert "derived_files_rebuilt" in rewritten
    assert visible(store) == before
    assert len(store.query("a", "ID3", unique=True)) == 1


def test_shortage_of_descriptors_rebuilds_nothing() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 20))
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
        with pytest.raises(StoreOpenError):
            open_with_events(disk)
    store, events = open_with_events(disk)
    assert event_names(events) == []
    assert visible(store) == before


def test_unreadable_first_unit_rebuilds_the_queue() -> None:
    """The log begins behind offset 0, so that recovery reads that unit."""
    store, disk, _ = new_store()
    send(store, [replace(message, queue_id=0) for message in numbered_messages(0, 200)])
    before = visible(store)
    store.close()
    disk = disk.after_kill()
    disk.remove(FIRST_FILE)
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
def test_file_unreadable_while_open_is_rebuilt_at_the_next_start(what: str, lasting: bool) -> None:
    store, disk, clock = new_store()
    send(store, numbered_messages(0, 200))
    before = visible(store)
    upkeep(store, clock)

    def look() -> None:
        if what == "index":
            store.query("a", "ID1")
        else:
            store.read("a", 0, 0)

    disk.fail_reads = lambda path: what in path.parts
    with pytest.raises(StoreReadError):
        look()
    disk.fail_reads = never
    if not lasting:
        look()
    store.close()
    store, events = open_with_events(disk.after_kill())
    assert [fields["directory"] for _, fields in events] == ([what] if lasting else [])
    assert visible(store) == before
    assert len(store.query("a", "ID3", unique=True)) == 1


def without_front() -> SimulatedDisk:
    """A stopped store: the messages 0 to 39 of topic "old" have expired, those of "a" in part; the
    derived files must be rebuilt.
    """
    store, disk, _ = new_store()
    send(
        store,
        numbered_messages(0, 40, "a")
        + [replace(message, queue_id=0) for message in numbered_messages(0, 40, "old")],
    )
    for n in range(40, 120, 10):
        send(store, numbered_messages(n, 10, "a", 900))
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
def test_rebuilt_empty_queue_keeps_its_next_offset(clean: bool) -> None:
    """Groups are at the old offsets: they would skip new messages."""
    store, events = open_with_events(disk := without_front())
    assert "derived_files_rebuilt" in event_names(events)
    check_without_front(store)
    if clean:
        store.close()
    store, _ = open_with_events(disk := disk.after_kill())
    check_without_front(store)
    assert send(store, numbered_messages(50, 1, "old"))[0].queue_offset == 40
    store.close()
    store, _ = open_with_events(disk.after_kill())
    assert list(visible(store)["old", 0]) == [40]


def test_rebuilt_empty_queue_keeps_its_offset_over_a_crash() -> None:
    whole = without_front()
    steps = 0
    while True:
        disk = whole.copy()
        disk.crash_at = disk.steps + (steps := steps + 1)
        with suppress(PowerCut):
            open_with_events(disk)
            break
        disk, clock = disk.after_kill(), ManualClock()
        store = open_store(disk, clock=clock)
        check_without_front(store)
        upkeep(store, clock)
        check_without_front(open_with_events(disk.after_power_cut(steps))[0])
    assert steps > 10


@pytest.mark.parametrize("damage", ["zeros", "more", "other size"])
def test_records_override_the_old_units_of_a_queue(damage: str) -> None:
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
    store, _ = open_with_events(disk)
    check_without_front(store)
    store.close()
    store, events = open_with_events(disk.after_kill())
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


def test_irregular_properties_are_rebuilt_with_their_tags_codes() -> None:
    """A subscription to the tag gets the message before a rebuild and after it."""
    store, disk, _ = new_store()
    send(store, [NewMessage("a", 0, b"%d" % n, message) for n, message in enumerate(ODD)])
    units = store.units("a", 0, 0, 99)
    store.close()
    store, _ = open_with_events(without_checkpoint(disk))
    assert store.units("a", 0, 0, 99) == units


@pytest.mark.parametrize("rebuilt", [False, True])
def test_store_recovers_on_a_full_disk(rebuilt: bool) -> None:
    """Units and keys wait in memory until retention makes room."""
    store, disk, clock = new_store()
    send(store, numbered_messages(0, 200))
    upkeep(store, clock)
    for n in range(200, 600, 10):
        send(store, numbered_messages(n, 10, f"new{n}"))
    before = visible(store)
    disk = disk.after_kill()
    if rebuilt:
        disk.remove_tree(QUEUES)
    disk.capacity = 0
    store = open_store(disk, clock=clock)
    assert visible(store) == before
    with pytest.raises(DiskFull):
        store.append(numbered_messages(0, 1))
    upkeep(store, clock)
    assert store.flush.read_only_reason == ""
    disk.capacity = None
    upkeep(store, clock)
    send(store, numbered_messages(600, 5))
    assert len(store.query("a", "ID3", unique=True)) == 1
    assert len(store.query("new590", "ID599", unique=True)) == 1
    store.close()
    store, events = open_with_events(disk.after_kill())
    assert events == []
    assert {queue: messages for queue, messages in visible(store).items() if queue[0] != "a"} == {
        queue: messages for queue, messages in before.items() if queue[0] != "a"
    }
