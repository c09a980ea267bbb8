"""Deleted topics: a rebuild does not bring them back, and a successor keeps its messages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.errors import ConfigFileDamaged, StoreWriteError
from aerobee_broker.store.message_store import MessageStore
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import PowerCut, SimulatedDisk
from support.disk.stores import (
    PATH,
    SMALL,
    Queue,
    event_names,
    new_store,
    numbered_messages,
    open_store,
    open_with_events,
    send,
    visible,
    without_checkpoint,
)

SIZE = SMALL.commit_log_file_size
QUEUES = PATH / "consumequeue"
DELETED = PATH / "config" / "deletedTopics.json"


def queue_offsets(store: MessageStore) -> dict[Queue, list[int]]:
    """The offsets of the visible messages of each queue."""
    return {queue: list(messages) for queue, messages in visible(store).items()}


def test_deleted_topic_stays_deleted_after_a_rebuild() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 6) + numbered_messages(6, 6, "b"))
    store.delete_topic("a")
    assert store.topics() == ["b"]
    [message, _] = send(store, numbered_messages(20, 2))
    assert message.queue_offset == 0
    store.close()
    store, _ = open_with_events(without_checkpoint(disk))
    assert {
        queue: list(message) for queue, message in visible(store).items() if queue[0] == "a"
    } == {("a", 0): [0], ("a", 1): [0]}
    assert store.query("a", "ID3") == []
    assert len(store.query("a", "ID20")) == 1


@pytest.mark.parametrize("clean", [True, False])
def test_messages_after_a_deletion_and_a_crash_are_kept(clean: bool) -> None:
    """The deletion was durable, the records before it were not."""
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 4))
    store.append(numbered_messages(4, 6, "b"))
    store.delete_topic("a")
    store, _ = open_with_events(disk := disk.after_kill())
    send(store, numbered_messages(20, 2))
    if clean:
        store.close()
    store, _ = open_with_events(disk := disk.after_kill())
    assert queue_offsets(store) == {("a", 0): [0], ("a", 1): [0]}
    store.close()
    store, _ = open_with_events(without_checkpoint(disk))
    assert queue_offsets(store) == {("a", 0): [0], ("a", 1): [0]}


def test_messages_after_a_deletion_and_a_failed_write_are_kept() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 4))
    store.append(numbered_messages(4, 6, "b"))
    store.delete_topic("a")
    store.flush.roll_back()
    send(store, numbered_messages(20, 2))
    store, _ = open_with_events(disk.after_kill())
    assert queue_offsets(store) == {("a", 0): [0], ("a", 1): [0]}


def test_deletion_that_cannot_be_lowered_makes_read_only() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 4))
    store.append(numbered_messages(4, 6, "b"))
    store.delete_topic("a")
    disk.fail_writes = lambda path: "deletedTopics" in path.name
    store.flush.roll_back()
    assert "deletedTopics" in store.flush.read_only_reason


def test_failed_deletion_is_not_written_with_the_next_one() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 2) + numbered_messages(2, 2, "b"))
    disk.fail_writes = lambda path: "deletedTopics" in path.name
    with pytest.raises(StoreWriteError):
        store.delete_topic("a")
    disk.fail_writes = lambda path: False
    store.delete_topic("b")
    assert len(store.query("a", "ID1")) == 1
    store.close()
    store, _ = open_with_events(without_checkpoint(disk))
    assert list(visible(store)["a", 0]) == [0]


def test_keys_of_a_deleted_topic_are_not_found_in_its_successor() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 4))
    assert len(store.query("a", "ID1")) == 1  # in the index now
    store.delete_topic("a")
    send(store, numbered_messages(20, 2))
    assert [len(store.query("a", key)) for key in ("ID1", "ID20")] == [0, 1]
    store.close()
    store, _ = open_with_events(disk.after_kill())
    assert [len(store.query("a", key)) for key in ("ID1", "ID20")] == [0, 1]


def test_unreadable_list_of_deleted_topics_is_reported() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 2))
    store.delete_topic("a")
    store.close()
    disk = disk.after_kill()
    disk.put(DELETED, b"{not json")
    _, events = open_with_events(disk)
    assert "file_unreadable" in event_names(events)


@pytest.mark.parametrize("damaged", [b"{not json", b'{"a":1}\n{"crc32":"00000000"}', b"[]", b'"'])
def test_damaged_list_of_deleted_topics_brings_no_message_back(damaged: bytes) -> None:
    """Nor does it hide messages of a topic that was created again, if the queues are rebuilt."""
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 6))
    store.delete_topic("a")
    send(store, numbered_messages(20, 2))
    store.close()
    disk = without_checkpoint(disk)
    disk.put(DELETED, damaged)
    store, _ = open_with_events(disk)
    assert queue_offsets(store) == {("a", 0): [0], ("a", 1): [0]}
    assert store.corruption_count == 0
    store.close()
    store, events = open_with_events(without_checkpoint(disk))
    assert queue_offsets(store) == {("a", 0): [0], ("a", 1): [0]}
    assert "file_unreadable" not in event_names(events), "it was written again"


def test_store_without_a_readable_list_of_deleted_topics_is_not_opened() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 2))
    store.delete_topic("a")
    store.close()
    for path in (DELETED, DELETED.with_name("deletedTopics.json.bak")):
        disk.put(path, b"{not json")
    with pytest.raises(ConfigFileDamaged, match="remove it and its"):
        open_store(disk)
    for path in (DELETED, DELETED.with_name("deletedTopics.json.bak")):
        disk.remove(path)
    open_store(disk).close()


def test_damage_of_the_backup_alone_changes_nothing() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 6))
    store.delete_topic("a")
    store.close()
    disk = without_checkpoint(disk)
    disk.put(DELETED.with_name("deletedTopics.json.bak"), b"{not json")
    store, events = open_with_events(disk)
    assert queue_offsets(store) == {}
    assert "file_unreadable" not in event_names(events)


def test_deletion_is_kept_until_its_records_are_durably_removed() -> None:
    """A power cut may bring back log files that were just removed, and with them messages from
    before the deletion, whose queue offsets later messages have too.
    """
    options = replace(SMALL, retain_bytes=2 * SIZE, delete_when=(), clean_interval_ms=1)
    seen = 0
    for seed in range(40):
        disk, clock = SimulatedDisk(seed), ManualClock()
        store = open_store(disk, options, clock)
        send(store, numbered_messages(0, 10))
        store.delete_topic("a")
        for n in range(10, 60, 10):
            send(store, numbered_messages(n, 10, size=900))
        shown = visible(store)
        clock.advance(1_000)
        store.maintain(clock.now_ms())
        low = store.min_physical_offset
        for _ in range(seed % 4):
            store.maintain_files()
        store.delete_topic("other")
        disk = disk.after_power_cut(seed)
        disk.remove_tree(QUEUES)
        store, _ = open_with_events(disk, options)
        seen += store.min_physical_offset < low
        last = max(shown["a", 0])
        assert visible(store)["a", 0][last] == shown["a", 0][last], seed
        assert store.corruption_count == 0, seed
    assert seen


def test_deletion_seen_by_a_start_is_durable() -> None:
    """Later appends rely on it."""
    for crash in range(1, 12):
        for seed in range(6):
            disk = SimulatedDisk(seed)
            store = open_store(disk)
            send(store, numbered_messages(0, 6))
            disk.crash_at = disk.steps + crash
            with suppress(PowerCut):
                store.delete_topic("a")
            disk.crash_at, disk.dead = None, False
            store, _ = open_with_events(disk := disk.after_kill())
            deleted = store.deleted_below("a") > 0
            [message, _] = send(store, numbered_messages(20, 2))
            disk = disk.after_power_cut(seed)
            disk.remove_tree(QUEUES)
            store, events = open_with_events(disk)
            assert (store.deleted_below("a") > 0) == deleted, (crash, seed)
            assert message.queue_offset in visible(store)["a", 0], (crash, seed)
            assert "corrupt_record" not in event_names(events)


BACKUP = DELETED.with_name("deletedTopics.json.bak")


@pytest.mark.parametrize("rolls", [False, True], ids=["one_batch", "many_files"])
@pytest.mark.parametrize("earlier", [0, 1])
def test_older_list_of_deleted_topics_hides_no_message_of_a_later_topic(
    rolls: bool, earlier: int
) -> None:
    """The queues are rebuilt with a list that lacks the last deletion, or all."""
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 4, "b"))
    older: list[bytes | None] = [None, None]
    for _ in range(earlier):
        send(store, numbered_messages(90, 4))
        store.delete_topic("a")
        older = [disk.files()[path] for path in (DELETED, BACKUP)]
    send(store, numbered_messages(0, 80 if rolls else 6))
    store.delete_topic("a")
    send(store, [*numbered_messages(100, 5), *numbered_messages(4, 2, "b")])
    expected = visible(store)
    store.close()
    disk = without_checkpoint(disk)
    for path, data in zip((DELETED, BACKUP), older, strict=True):
        disk.remove(path) if data is None else disk.put(path, data)
    store, events = open_with_events(disk)
    assert visible(store) == expected
    assert store.corruption_count == 0
    assert "deletion_found_in_log" in event_names(events)
    assert [len(store.query("a", key)) for key in ("ID1", "ID100")] == [0, 1]
    assert [message.queue_offset for message in send(store, numbered_messages(110, 1))] == [3]
    store.close()
    store, events = open_with_events(without_checkpoint(disk))
    assert store.max_offset("a", 0) == 4
    assert "deletion_found_in_log" not in event_names(events), "the list has it now"


def test_queue_without_later_messages_is_dropped_with_the_others_of_its_topic() -> None:
    """As far as the log proves it: its last message is before the last one of another queue."""
    store, disk, _ = new_store()
    old = numbered_messages(0, 9)
    send(store, old)  # the last one is in queue 0
    store.delete_topic("a")
    [message] = send(store, [replace(old[0], body=b"new")])
    assert message.queue_id == message.queue_offset == 0
    store.close()
    disk = without_checkpoint(disk)
    disk.remove(DELETED)
    disk.remove(BACKUP)
    store, _ = open_with_events(disk)
    assert visible(store) == {("a", 0): {0: b"new"}}


def test_record_without_a_whole_crc_proves_no_deletion() -> None:
    """A flipped bit in its queue offset would otherwise hide all earlier messages."""
    options = replace(SMALL, whole_crc=False)
    store, disk, _ = new_store(options)
    send(store, numbered_messages(0, 6))
    store.delete_topic("a")
    send(store, numbered_messages(100, 2))
    store.close()
    disk = without_checkpoint(disk)
    disk.remove(DELETED)
    disk.remove(BACKUP)
    store, _ = open_with_events(disk, options)
    assert queue_offsets(store) == {("a", 0): [0, 1, 2], ("a", 1): [0, 1, 2]}
    assert store.corruption_count == 2


def test_list_of_deleted_topics_is_read_from_its_backup_if_it_is_missing() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 6))
    store.delete_topic("a")
    store.close()
    disk = without_checkpoint(disk)
    disk.remove(DELETED)
    store, events = open_with_events(disk)
    assert store.topics() == []
    assert "file_unreadable" in event_names(events)


def test_first_deletion_that_fails_is_not_done_by_the_next_start() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 2))
    failing: list[str] = []

    def fails(path: Path) -> bool:
        """Let the first list and the backup pass, and fail the write of the list."""
        failing.append(path.name)
        return failing.count("deletedTopics.json.tmp") > 1

    disk.fail_writes = fails
    with pytest.raises(StoreWriteError):
        store.delete_topic("a")
    disk.fail_writes = lambda path: False
    store, _ = open_with_events(disk.after_kill())
    assert queue_offsets(store) == {("a", 0): [0], ("a", 1): [0]}


def test_messages_after_a_deletion_whose_sync_failed_are_kept() -> None:
    """The deletion was refused, and its list is on the disk."""
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 6) + numbered_messages(6, 1, "b"))
    store.delete_topic("b")
    synced: list[Path] = []

    def fails(path: Path) -> bool:
        """Fail the last sync: of the directory, when both files have been replaced."""
        if path.name == "config":
            synced.append(path)
        return len(synced) == 2

    disk.fail_syncs = fails
    with pytest.raises(StoreWriteError):
        store.delete_topic("a")
    disk.fail_syncs = lambda path: False
    send(store, numbered_messages(100, 4))
    store.close()
    store, _ = open_with_events(without_checkpoint(disk))
    assert queue_offsets(store) == {("a", 0): [3, 4], ("a", 1): [3, 4]}
    assert store.corruption_count == 0
