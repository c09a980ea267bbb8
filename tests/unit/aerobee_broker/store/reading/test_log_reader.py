"""Records by physical offset, and sectors that the disk cannot read."""

from __future__ import annotations

import errno

import pytest

from aerobee_broker.errors import MessageCorrupted, MessageNotFound, TransientReadError
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import LOST_SIZE, NewMessage
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import (
    FIRST_FILE,
    PATH,
    Events,
    bodies,
    new_store,
    open_store,
    send,
    upkeep,
)


def test_record_is_found_by_its_physical_offset() -> None:
    store = open_store()
    appended = send(store, [NewMessage("a", 0, b"%d" % n) for n in range(3)])
    physical_offset = appended[1].physical_offset
    message = store.get(physical_offset)
    assert (message.body, message.queue_offset) == (b"1", 1)
    assert message.physical_offset == physical_offset
    assert store.get(physical_offset, appended[1].store_size).body == b"1"


@pytest.mark.parametrize("physical_offset", [-1, 1, 57, 10_000, 1 << 60])
def test_physical_offset_without_a_record_is_not_found(physical_offset: int) -> None:
    store = open_store()
    send(store, [NewMessage("a", 0, b"0"), NewMessage("a", 0, b"1")])
    with pytest.raises(MessageNotFound):
        store.get(physical_offset)


def test_record_that_is_not_durable_is_not_found() -> None:
    store = open_store()
    [message] = store.append([NewMessage("a", 0, b"0")])
    store.flush.write()
    with pytest.raises(MessageNotFound):
        store.get(message.physical_offset)


def test_error_of_a_damaged_record_has_file_and_physical_offset() -> None:
    store, disk, _ = new_store()
    appended = send(store, [NewMessage("a", 0, b"0"), NewMessage("a", 0, b"1")])
    physical_offset = appended[1].physical_offset
    disk.flip(FIRST_FILE, (physical_offset + 88) * 8)
    with pytest.raises(MessageCorrupted) as caught:
        store.get(physical_offset)
    assert (caught.value.physical_offset, caught.value.file) == (physical_offset, FIRST_FILE)


def test_damaged_header_is_damage_when_a_unit_names_the_record() -> None:
    store, disk, _ = new_store()
    [message] = send(store, [NewMessage("a", 0, b"0")])
    disk.flip(FIRST_FILE, 4 * 8)
    with pytest.raises(MessageNotFound):
        store.get(0)
    with pytest.raises(MessageCorrupted):
        store.get(0, message.store_size)


def unreadable(
    monkeypatch: pytest.MonkeyPatch, store: MessageStore, bad: int, times: int = 1 << 30
) -> None:
    """Reads that include the byte at physical offset `bad` fail, the first `times` of them."""
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
def events() -> Events:
    return []


@pytest.fixture
def served(clock: ManualClock, events: Events) -> MessageStore:
    store = open_store(
        clock=clock, on_event=lambda name, fields: events.append((name, dict(fields)))
    )
    send(store, [NewMessage("a", 0, b"%d" % n) for n in range(10)])
    store.enable_read_retries()
    return store


def test_read_that_fails_for_a_while_is_no_damage(
    served: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical_offset, size, _ = served.units("a", 0, 4, 1)[0]
    unreadable(monkeypatch, served, physical_offset + 100, times=9)  # two a read, one a get
    for _ in range(3):
        clock.advance(15_000)
        with pytest.raises(TransientReadError):
            served.read("a", 0, 0)
        with pytest.raises(TransientReadError):
            served.get(physical_offset, size)
    assert served.corruption_count == 0
    clock.advance(15_000)
    result = served.read("a", 0, 0)
    assert bodies(result.records) == [b"%d" % n for n in range(10)]
    assert served.corruption_count == 0


def test_unreadable_sector_costs_only_its_record(
    served: MessageStore, clock: ManualClock, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical_offset, size, _ = served.units("a", 0, 4, 1)[0]
    unreadable(monkeypatch, served, physical_offset + 100)
    for _ in range(2):
        with pytest.raises(TransientReadError):
            served.read("a", 0, 0)
        clock.advance(30_000)
    result = served.read("a", 0, 0)
    assert bodies(result.records) == [b"%d" % n for n in range(10) if n != 4]
    assert (result.next_begin_offset, result.corrupted_count) == (10, 1)
    [damage] = [fields for name, fields in events if name == "corrupt_record"]
    assert damage["physical_offset"] == physical_offset
    assert damage["reason"] == "a 0 4: the disk cannot read it"
    with pytest.raises(MessageCorrupted):
        served.get(physical_offset, size)


def test_two_failed_reads_far_apart_are_no_damage(
    served: MessageStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical_offset, size, _ = served.units("a", 0, 4, 1)[0]
    for _ in range(2):
        unreadable(monkeypatch, served, physical_offset + 100, times=2)
        for _ in range(2):
            with pytest.raises(TransientReadError):
                served.get(physical_offset, size)
            clock.advance(3_600_000)
        assert served.get(physical_offset, size).body == b"4"


def test_failed_read_at_a_start_is_retried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store()
    send(store, [NewMessage("a", 0, b"%d" % n) for n in range(10)])
    physical_offset, size, _ = store.units("a", 0, 4, 1)[0]
    unreadable(monkeypatch, store, physical_offset + 100, times=2)
    assert store.get(physical_offset, size).body == b"4"
    unreadable(monkeypatch, store, physical_offset + 100)
    with pytest.raises(MessageCorrupted):
        store.get(physical_offset, size)


def test_failed_search_does_not_give_up_a_unit(
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
        with pytest.raises(TransientReadError):
            store.read("a", 0, 4, max_messages=1)
    assert bodies(store.read("a", 0, 4, max_messages=1).records) == [b"4"]


def test_unit_of_a_lost_record_finds_no_other_record(served: MessageStore) -> None:
    """Its unit carries the physical offset of the next one."""
    physical_offset = served.units("a", 0, 5, 1)[0][0]
    with pytest.raises(MessageNotFound):
        served.get(physical_offset, LOST_SIZE)
