"""F28: nothing is shown before it is durable, however long the flush takes."""

from __future__ import annotations

from aerobee_broker.store.messages import NewMessage, ReadStatus
from fault.history import TOPICS
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import open_store, visible


def test_a_message_is_not_visible_before_it_is_durable() -> None:
    store = open_store(SimulatedDisk())
    [place] = store.append([NewMessage("orders", 0, b"first")])
    for step in (store.flush.write, store.flush.sync):
        assert store.read("orders", 0, 0).status is ReadStatus.NO_NEW
        assert store.max_offset("orders", 0) == 0
        assert store.query("orders", "ID") == []
        assert store.units("orders", 0, 0, 10) == []
        flushed = step()
    [arrival] = store.flush.confirm(flushed)
    assert (arrival.topic, arrival.queue_id, arrival.max_offset) == ("orders", 0, 1)
    assert store.read("orders", 0, 0).status is ReadStatus.FOUND
    assert store.get(place.physical_offset).body == b"first"


def test_what_is_appended_during_a_flush_waits_for_the_next_one() -> None:
    store = open_store(SimulatedDisk())
    store.append([NewMessage("orders", 0, b"first")])
    store.flush.write()
    flushed = store.flush.sync()
    store.append([NewMessage("orders", 0, b"second")])
    store.flush.write()
    store.flush.confirm(flushed)
    assert visible(store) == {("orders", 0): {0: b"first"}}
    store.flush.confirm(store.flush.sync())
    assert visible(store) == {("orders", 0): {0: b"first", 1: b"second"}}


def test_visible_messages_survive_a_power_cut() -> None:
    """The file rolls while a flush is under way: both files and the new name must be durable."""
    for seed in range(200):
        disk = SimulatedDisk(seed)
        store = open_store(disk)
        for number in range(12):
            store.append([NewMessage(TOPICS[number % 2], 0, b"%d" % number * 700)])
            store.flush.write()
            if number % 3 == 2:
                store.flush.confirm(store.flush.sync())
        shown = visible(store)
        after = visible(open_store(disk.after_power_cut(seed)))
        for queue, messages in shown.items():
            assert messages.items() <= after[queue].items()


def test_recovered_records_are_flushed_before_they_are_served() -> None:
    """The process dies between write and sync; the next one finds the bytes, shows them, and the
    power goes.
    """
    disk = SimulatedDisk(4)
    store = open_store(disk)
    store.append([NewMessage("orders", 0, b"x" * 1_500) for _ in range(9)])
    store.flush.write()
    disk = disk.after_kill()
    shown = visible(open_store(disk))
    assert len(shown["orders", 0]) == 9
    for seed in range(50):
        assert visible(open_store(disk.after_power_cut(seed))) == shown
