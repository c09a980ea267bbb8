"""The store: its lock, its threads, arrivals, deletion of topics, options."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from aerobee_broker.disk import RealDisk
from aerobee_broker.errors import CommitLogBroken, StoreLocked, StoreReadOnly
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_wire.status import Code
from aerobee_wire.tags import tags_code
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH, SMALL, flush, new_store, open_store, send, upkeep, visible

ONE = [NewMessage("a", 0, b"x", b"TAGS\x01red\x02")]


def test_locked_directory_is_refused() -> None:
    disk = SimulatedDisk()
    open_store(disk)
    with pytest.raises(StoreLocked):
        open_store(disk)


def test_close_and_a_failed_start_release_the_lock() -> None:
    disk = SimulatedDisk()
    open_store(disk).close()
    disk.open(PATH / "commitlog" / f"{SMALL.commit_log_file_size // 2:020d}", create=True).close()
    for _ in range(2):
        with pytest.raises(CommitLogBroken):
            open_store(disk)
    disk.remove(PATH / "commitlog" / f"{SMALL.commit_log_file_size // 2:020d}")
    open_store(disk)


def test_real_directory_is_locked_between_processes(tmp_path: Path) -> None:
    """flock belongs to the open file, so that two stores of one process exclude each other too."""
    store = open_store(RealDisk(), path=tmp_path)
    with pytest.raises(StoreLocked):
        open_store(RealDisk(), path=tmp_path)
    store.close()
    open_store(RealDisk(), path=tmp_path).close()


def test_closed_store_refuses_appends() -> None:
    store = open_store()
    store.close()
    with pytest.raises(StoreReadOnly) as caught:
        store.append(ONE)
    assert (caught.value.code, caught.value.retryable) == (Code.SERVICE_NOT_AVAILABLE, True)


def test_close_flushes_what_was_appended() -> None:
    store, disk, _ = new_store()
    store.append(ONE)
    store.close()
    assert visible(open_store(disk.after_power_cut(1))) == {("a", 0): {0: b"x"}}


def test_arrivals_have_queues_offsets_and_tags() -> None:
    store = open_store()
    store.append([NewMessage("a", 0, b"0", b"TAGS\x01red\x02"), NewMessage("b", 1, b"1")])
    store.append([NewMessage("a", 0, b"2", b"TAGS\x01blue\x02")])
    store.flush.write()
    arrivals = {
        (arrival.topic, arrival.queue_id): (
            arrival.first_offset,
            arrival.max_offset,
            arrival.tags_codes,
        )
        for arrival in store.flush.confirm(store.flush.sync())
    }
    assert arrivals == {
        ("a", 0): (0, 2, frozenset({tags_code("red"), tags_code("blue")})),
        ("b", 1): (0, 1, frozenset({0})),
    }
    assert store.flush.confirm(store.flush.sync()) == []


def test_sync_covers_what_was_written_when_it_began() -> None:
    store = open_store()
    store.append(ONE)
    assert store.flush.sync() == 0
    written = store.flush.write()
    assert store.flushed_offset == 0
    assert store.flush.sync() == written == store.flushed_offset
    assert store.confirmed_offset == 0
    store.flush.confirm(written)
    assert store.confirmed_offset == written


def test_appends_during_a_sync_on_another_thread(tmp_path: Path) -> None:
    """On a real disk: the simulated one supports one thread."""
    options = StoreOptions(commit_log_file_size=1 << 18, index_enabled=False)
    store = open_store(RealDisk(), options, path=tmp_path)
    stop = threading.Event()
    failures: list[BaseException] = []

    def flusher() -> None:
        try:
            while not stop.is_set():
                store.flush.sync()
                store.maintain_files()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=flusher)
    thread.start()
    for n in range(2_000):
        store.append([NewMessage("a", n % 4, b"%d" % n * 100)])
        store.flush.write()
        store.flush.confirm(store.flushed_offset)
        if n % 100 == 0:
            store.maintain(n)
    stop.set()
    thread.join()
    assert failures == []
    flush(store)
    assert sum(map(len, visible(store).values())) == 2_000
    store.close()


def test_appends_continue_while_another_thread_writes(tmp_path: Path) -> None:
    """As group commit does, over many small files; what is read meanwhile is whole."""
    options = StoreOptions(commit_log_file_size=1 << 16, index_enabled=False)
    store = open_store(RealDisk(), options, path=tmp_path)
    sent = 0
    with ThreadPoolExecutor(1) as flusher:
        for flush_number in range(100):
            store.flush.seal()
            under_way = flusher.submit(store.flush.write_and_sync)
            for _ in range(20):
                store.append([NewMessage("a", sent % 4, b"%d" % sent * 100)])
                sent += 1
                read = store.read("a", sent % 4, max(0, store.max_offset("a", sent % 4) - 2))
                assert read.corrupted_count == 0
            store.flush.confirm(under_way.result())
            if flush_number % 10 == 0:
                store.maintain(flush_number)
                flusher.submit(store.maintain_files).result()
    flush(store)
    shown = visible(store)
    assert sorted(int(body[: len(body) // 100]) for q in shown.values() for body in q.values()) == [
        *range(sent)
    ]
    assert len(store._log.starts) > 3
    store.close()


def test_deleted_topic_starts_again_at_offset_0() -> None:
    store, disk, clock = new_store()
    send(store, ONE * 3)
    upkeep(store, clock)
    store.append(ONE)
    store.flush.write()
    store.delete_topic("a")
    assert store.topics() == []
    assert store.flush.confirm(store.flush.sync()) == []
    assert store.max_offset("a", 0) == 0
    assert not [path for path in disk.files() if "consumequeue" in path.parts]
    [message] = send(store, ONE)
    assert message.queue_offset == 0
    upkeep(store, clock)
    store.close()
    assert visible(open_store(disk.after_kill())) == {("a", 0): {0: b"x"}}


def test_deleting_an_unknown_topic_is_no_error() -> None:
    store = open_store()
    store.delete_topic("nobody")
    assert store.topics() == []


def test_impossible_options_are_refused() -> None:
    with pytest.raises(ValueError):
        StoreOptions(consume_queue_file_size=30)
    with pytest.raises(ValueError):
        StoreOptions(commit_log_file_size=100)
    with pytest.raises(ValueError):
        StoreOptions(index_slot_count=0)


def test_store_on_a_real_disk_reopens_unchanged(tmp_path: Path) -> None:
    clock = ManualClock()
    for n in range(3):
        store = open_store(RealDisk(), clock=clock, path=tmp_path)
        for _ in range(5):
            send(store, [NewMessage("a", 0, b"x" * 1_500, b"UNIQ_KEY\x01ID%d\x02" % n)])
        upkeep(store, clock)
        assert len(visible(store)["a", 0]) == 5 * (n + 1)
        assert len(store.query("a", f"ID{n}")) == 5
        store.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["checkpoint", "commitlog", "config", "consumequeue", "index", "lock"]


def test_idle_store_has_no_file_work() -> None:
    store, _, clock = new_store()
    send(store, ONE)
    upkeep(store, clock)
    clock.advance(60_000)
    store.maintain(clock.now_ms())
    upkeep(store, clock)
    store.maintain(clock.now_ms())
    assert not store.has_file_work


def test_store_with_a_half_full_log_file_has_file_work() -> None:
    store, _, _ = new_store()
    for _ in range(3):
        send(store, [NewMessage("a", 0, bytes(1_900))])
    assert SMALL.commit_log_file_size // 2 < 3 * 1_900
    assert store.has_file_work
    while store.maintain_files():
        pass
    assert not store.has_file_work
