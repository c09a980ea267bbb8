"""Recovery: after a clean stop, after a crash, over damage."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from aerobee_broker.store.messages import ReadStatus
from aerobee_wire import record
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import PowerCut, SimulatedDisk
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


def reads_of(disk: SimulatedDisk) -> list[Path]:
    """Gets the path of each read from now on."""
    paths: list[Path] = []

    def seen(path: Path) -> bool:
        paths.append(path)
        return False

    disk.fail_reads = seen
    return paths


def bad_crc_at(physical_offset: int) -> dict[str, object]:
    reason = "it does not match its CRC"
    return {"file": str(FIRST_FILE), "physical_offset": physical_offset, "reason": reason}


def test_clean_start_reads_no_record() -> None:
    store, disk, _ = new_store()
    for n in range(0, 100, 10):
        send(store, numbered_messages(n, 10))
    before = visible(store)
    store.close()
    disk = disk.after_kill()
    read = reads_of(disk)
    store, events = open_with_events(disk)
    # The last file: one read behind the end, and its tail is zeroed again.
    assert len([path for path in read if path.parent == LOG]) <= 2
    assert events == []
    assert visible(store) == before


def test_recovery_reads_from_the_checkpoint_on() -> None:
    store, disk, clock = new_store()
    for n in range(0, 200, 10):
        send(store, numbered_messages(n, 10))
    upkeep(store, clock)
    send(store, numbered_messages(200, 5))
    before = visible(store)
    disk = disk.after_kill()
    read = reads_of(disk)
    store, _ = open_with_events(disk)
    last = LOG / f"{store.end_offset // SIZE * SIZE:020d}"
    assert {path for path in read if path.parent == LOG} == {last}
    assert visible(store) == before
    assert len(store.query("a", "ID204", unique=True)) == 1
    assert len(store.query("a", "ID3", unique=True)) == 1


def test_abort_file_exists_while_the_store_is_open() -> None:
    store, disk, _ = new_store()
    assert disk.exists(PATH / "abort")
    store.close()
    assert not disk.exists(PATH / "abort")
    disk = disk.after_kill()
    store = open_store(disk)
    store.abandon()
    assert disk.exists(PATH / "abort")


def test_torn_tail_is_reported_and_truncated() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 4))
    store.append(numbered_messages(4, 1))
    store.flush.write()
    end = store.confirmed_offset
    disk = disk.after_kill()
    disk.flip(FIRST_FILE, (end + 100) * 8)
    store, events = open_with_events(disk)
    assert events == [("log_tail_truncated", bad_crc_at(end))]
    assert store.end_offset == end
    assert disk.files()[FIRST_FILE][end:] == bytes(SIZE - end)
    [message] = send(store, numbered_messages(4, 1))
    assert message.physical_offset == end


def test_damage_in_the_middle_is_reported_and_skipped() -> None:
    """A durable record, behind the checkpoint and before others."""
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 20))
    physical_offset = store.units("a", 0, 3, 1)[0][0]
    disk = disk.after_kill()
    disk.flip(FIRST_FILE, (physical_offset + 95) * 8)
    store, events = open_with_events(disk)
    assert events == [("corrupt_record", bad_crc_at(physical_offset))]
    assert store.max_offset("a", 0) == 10
    result = store.read("a", 0, 0)
    assert (result.message_count, result.corrupted_count, result.next_begin_offset) == (9, 1, 10)
    assert store.corruption_count == 1
    store.close()
    store, events = open_with_events(disk.after_kill())
    assert events == []
    assert store.read("a", 0, 3, max_messages=1).status is ReadStatus.NO_MATCHED


def test_damaged_header_leaves_a_hole_in_the_queue() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 20))
    before = visible(store)
    physical_offset = store.units("a", 0, 3, 1)[0][0]
    disk = disk.after_kill()
    data = bytearray(disk.files()[FIRST_FILE])
    data[physical_offset : physical_offset + 40] = b"\xff" * 40
    disk.put(FIRST_FILE, bytes(data))
    store, events = open_with_events(disk)
    assert event_names(events) == ["corrupt_record"]
    del before["a", 0][3]
    assert visible(store) == before
    result = store.read("a", 0, 0)
    assert (result.message_count, result.corrupted_count) == (9, 1)


def test_damage_across_a_file_end_does_not_hide_the_next_file() -> None:
    store, disk, _ = new_store()
    for n in range(0, 100, 10):
        send(store, numbered_messages(n, 10))
    before = visible(store)
    disk = disk.after_kill()
    path = FIRST_FILE
    disk.put(path, disk.files()[path][:-400] + b"\xee" * 400)
    store, events = open_with_events(disk)
    assert set(event_names(events)) == {"corrupt_record"}
    found = visible(store)
    lost = sum(len(messages) for messages in before.values()) - sum(map(len, found.values()))
    assert 1 <= lost <= 4
    for queue, messages in found.items():
        assert messages.items() <= before[queue].items()
        assert max(messages) == max(before[queue])


def test_without_checkpoint_a_whole_record_behind_means_damage() -> None:
    store, disk, _ = new_store()
    send(store, numbered_messages(0, 20))
    physical_offset = store.units("a", 0, 3, 1)[0][0]
    disk = without_checkpoint(disk)
    disk.flip(FIRST_FILE, (physical_offset + 95) * 8)
    store, events = open_with_events(disk)
    assert event_names(events) == [*["derived_files_rebuilt"] * 2, "corrupt_record"]
    assert store.max_offset("a", 0) == 10


def test_record_with_an_impossible_queue_offset_is_damage() -> None:
    """No record before it is lost, so there can be no gap."""
    store, disk, _ = new_store(replace(SMALL, whole_crc=False))
    send(store, numbered_messages(0, 6))
    physical_offset = store.units("a", 0, 1, 1)[0][0]
    disk = without_checkpoint(disk)
    disk.flip(FIRST_FILE, (physical_offset + 24) * 8)  # the queue offset grows by 16 million
    store, events = open_with_events(disk, options=replace(SMALL, whole_crc=False))
    assert "corrupt_record" in event_names(events)
    assert sorted(visible(store)["a", 0]) == [0, 2]
    assert store.max_offset("a", 0) == 3


def test_long_recovery_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aerobee_broker.store.recovery.recovery._PROGRESS_BYTES", SIZE)
    store, disk, _ = new_store()
    for n in range(0, 200, 10):
        send(store, numbered_messages(n, 10))
    disk = without_checkpoint(disk)
    _, events = open_with_events(disk)
    progress = [fields for name, fields in events if name == "recovery_progress"]
    assert len(progress) >= 3
    assert [fields["bytes"] for fields in progress] == sorted(
        {fields["bytes"] for fields in progress}  # type: ignore[type-var]
    )


def test_delayed_topics_are_rebuilt_with_their_tags_codes() -> None:
    codes = {"delayed": lambda given, stored_ms: stored_ms + len(given)}
    disk, clock = SimulatedDisk(), ManualClock()
    store = open_store(disk, clock=clock, tags_code_of=codes)
    for n in range(5):
        send(store, numbered_messages(n, 1, "delayed"))
        clock.advance(500)
    before = store.units("delayed", 0, 0, 9)
    disk = without_checkpoint(disk)
    store = open_store(disk, clock=clock, tags_code_of=codes)
    assert store.units("delayed", 0, 0, 9) == before


def test_prepared_messages_are_rebuilt_without_units() -> None:
    store, disk, _ = new_store()
    kinds = [record.TRANSACTION_PREPARED, 0, record.TRANSACTION_ROLLBACK, 0]
    batch = [
        replace(message, sys_flag=kind, queue_id=0)
        for message, kind in zip(numbered_messages(0, 4), kinds, strict=True)
    ]
    send(store, batch)
    before = visible(store)
    store, _ = open_with_events(without_checkpoint(disk))
    assert visible(store) == before
    assert len(store.query("a", "ID0", unique=True)) == 1
    assert store.query("a", "ID2", unique=True) == []


def test_log_without_any_record_starts_empty() -> None:
    store, disk, _ = new_store()
    store.append(numbered_messages(0, 1))
    store.flush.write()
    disk = disk.after_kill()
    disk.put(FIRST_FILE, bytes(SIZE))
    store, events = open_with_events(disk)
    assert (store.end_offset, events) == (0, [])
    send(store, numbered_messages(0, 2))
    assert len(visible(store)["a", 0]) == 1


@pytest.mark.parametrize("whole_crc", [True, False])
def test_crash_in_a_start_without_checkpoint_keeps_the_log(whole_crc: bool) -> None:
    """The process is killed soon after: the next start must not take the log for a torn tail."""
    options = replace(SMALL, whole_crc=whole_crc)
    store, disk, _ = new_store(options)
    appended = send(store, numbered_messages(0, 30))
    store.close()
    disk = without_checkpoint(disk)
    damaged = appended[3].physical_offset
    disk.flip(FIRST_FILE, (damaged + 120) * 8)
    open_with_events(disk, options)
    disk = disk.after_kill()
    # Records that were written without a CRC of their own stay valid.
    store, events = open_with_events(disk, SMALL)
    assert sum(len(messages) for messages in visible(store).values()) == 29
    assert store.end_offset >= appended[-1].physical_offset
    assert "log_tail_truncated" not in event_names(events)


def test_start_without_checkpoint_loses_nothing_when_cut_short() -> None:
    store, disk, _ = new_store()
    appended = send(store, numbered_messages(0, 30))
    store.close()
    disk.remove(PATH / "checkpoint")
    disk.flip(FIRST_FILE, (appended[3].physical_offset + 120) * 8)
    steps = 0
    while True:
        again = disk.copy()
        again.crash_at = again.steps + (steps := steps + 1)
        with suppress(PowerCut):
            open_with_events(again)
            break
        store, _ = open_with_events(again.after_kill())
        assert sum(len(messages) for messages in visible(store).values()) == 29, steps
