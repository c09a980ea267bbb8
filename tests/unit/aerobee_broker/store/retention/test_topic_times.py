"""Retention times of topics: minimum offsets rise, and files go when no topic needs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from aerobee_broker.disk import Usage
from aerobee_broker.errors import MessageNotFound
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import Appended, NewMessage, ReadStatus
from aerobee_broker.store.options import HOUR_MS
from aerobee_broker.store.retention.topic_times import TopicTime
from aerobee_wire import properties
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import LOG, SMALL, bodies, new_store, open_store, send, without_checkpoint

OPTIONS = replace(
    SMALL, clean_interval_ms=1_000, file_reserved_time_ms=10 * HOUR_MS, max_message_size=8_000
)
ANY_HOUR = tuple(range(24))
SHORT = {"short": TopicTime(2 * HOUR_MS)}


def step(store: MessageStore, clock: ManualClock, *, hours: int = 0) -> None:
    """Let time pass, and do the upkeep of a minute."""
    clock.advance(hours * HOUR_MS)
    for _ in range(7):
        clock.advance(10_000)
        store.maintain(clock.now_ms())
        while store.has_file_work and store.maintain_files():
            pass


def message(topic: str, number: int, size: int = 50) -> NewMessage:
    body = b"%d" % number + b"|" * size
    return NewMessage(topic, 0, body, properties.encode({"UNIQ_KEY": f"{topic}{number}"}))


def hourly(
    store: MessageStore, clock: ManualClock, hours: int, topics: Sequence[str]
) -> list[Appended]:
    """Send a message to each topic, once an hour."""
    sent = []
    for number in range(hours):
        sent += send(store, [message(topic, number) for topic in topics])
        step(store, clock, hours=1)
    return sent


def fill_file(store: MessageStore, topics: Sequence[str]) -> None:
    send(store, [message(topic, 0, 7_400 // len(topics)) for topic in topics])


def files(disk: SimulatedDisk) -> list[int]:
    size = SMALL.commit_log_file_size
    paths = [path for path in disk.files() if path.parent == LOG and path.name.isdigit()]
    return sorted(int(path.name) // size for path in paths)


def started(
    times: Mapping[str, TopicTime], **options: object
) -> tuple[MessageStore, SimulatedDisk, ManualClock]:
    store, disk, clock = new_store(replace(OPTIONS, **options))  # type: ignore[arg-type]
    store.topic_times.use(times)
    return store, disk, clock


def test_every_reader_skips_the_expired_messages_of_a_topic() -> None:
    store, _, clock = started(SHORT)
    sent = hourly(store, clock, 5, ["short", "other"])
    assert store.min_offset("short", 0) == 4  # sent 1 h and 1 min ago
    assert store.min_offset("other", 0) == 0
    found = store.read("short", 0, 0)
    assert (found.status, found.next_begin_offset) == (ReadStatus.OFFSET_TOO_SMALL, 4)
    assert store.units("short", 0, 3, 1) == []
    assert store.store_timestamp("short", 0, 3) == 0
    assert store.search_offset("short", 0, 0) == 4
    assert store.query("short", "short3") == [] != store.query("short", "short4")
    assert store.query("other", "other0")
    damaged: list[object] = []
    store.query("short", "short3", damaged=damaged)  # type: ignore[arg-type]
    assert not damaged
    with pytest.raises(MessageNotFound, match=r"reserve\.time"):
        store.get(sent[6].physical_offset)
    assert store.get(sent[8].physical_offset).topic == "short"
    assert store.get(sent[1].physical_offset).topic == "other"
    assert store.max_offset("short", 0) == 5


def test_minimum_offset_reaches_the_end_of_a_queue_and_new_messages_are_read() -> None:
    store, _, clock = started(SHORT)
    hourly(store, clock, 1, ["short"])
    step(store, clock, hours=3)
    assert store.min_offset("short", 0) == store.max_offset("short", 0) == 1
    send(store, [message("short", 7)])
    step(store, clock)
    assert bodies(store.read("short", 0, 1).records) == [message("short", 7).body]


def test_expired_messages_stay_expired_when_the_time_is_raised_or_removed() -> None:
    """Also after a restart: the store times decide, and the time up to which they had expired."""
    store, disk, clock = started(SHORT)
    hourly(store, clock, 5, ["short"])
    expired_before = clock.now_ms() - 2 * HOUR_MS
    for reserved in (8 * HOUR_MS, None):
        times = {"short": TopicTime(reserved, expired_before)}
        store.topic_times.use(times)
        step(store, clock)
        assert store.min_offset("short", 0) == 4
        disk = disk.after_kill() if reserved else without_checkpoint(disk)
        store = open_store(disk, OPTIONS, clock)
        assert store.min_offset("short", 0) == 0  # before its topics are known
        store.topic_times.use(times)
        store.topic_times.expire_all(clock.now_ms())
        assert store.min_offset("short", 0) == 4


def test_consume_queue_keeps_the_units_of_expired_messages_while_their_records_exist() -> None:
    """Otherwise each start would rebuild the queues, and a copy would lack their front."""
    store, disk, clock = started(SHORT)
    for _ in range(3):
        send(store, [message("short", n, 1) for n in range(40)])
    step(store, clock, hours=3)
    assert store.min_offset("short", 0) == 120
    store.close()
    events: list[str] = []
    again = open_store(disk.after_kill(), OPTIONS, clock, lambda name, _: events.append(name))
    assert "derived_files_rebuilt" not in events
    assert again.max_offset("short", 0) == 120


def test_file_without_needed_messages_is_deleted_at_any_hour_and_age() -> None:
    store, disk, clock = started(SHORT, delete_when=())
    for _ in range(3):
        fill_file(store, ["short"])
    step(store, clock, hours=1)
    assert files(disk) == [0, 1, 2]
    step(store, clock, hours=2)
    assert files(disk) == [2]  # the file in use stays
    assert store.min_offset("short", 0) == 3


def test_file_stays_while_a_topic_without_its_own_time_has_a_message_there() -> None:
    store, disk, clock = started(SHORT, delete_when=ANY_HOUR)
    fill_file(store, ["short"])
    fill_file(store, ["short", "other"])
    fill_file(store, ["short"])
    fill_file(store, ["short"])
    step(store, clock, hours=3)
    assert files(disk) == [1, 2, 3]
    step(store, clock, hours=8)
    assert files(disk) == [3]


def test_journal_of_the_broker_does_not_keep_a_file() -> None:
    """Its parts protect what they need, as before each deletion."""
    store, disk, clock = started({})
    store.topic_times.use(SHORT, "journal".__eq__)
    fill_file(store, ["short", "journal"])
    fill_file(store, ["short"])
    step(store, clock, hours=3)
    assert files(disk) == [1]


def test_topic_with_a_longer_time_keeps_its_files_and_all_later_ones() -> None:
    store, disk, clock = started({"long": TopicTime(30 * HOUR_MS)}, delete_when=ANY_HOUR)
    fill_file(store, ["other"])
    fill_file(store, ["long", "other"])
    fill_file(store, ["other"])
    fill_file(store, ["other"])
    step(store, clock, hours=11)
    assert files(disk) == [1, 2, 3]
    assert store.min_offset("long", 0) == 0
    step(store, clock, hours=20)
    assert files(disk) == [3]
    assert store.min_offset("long", 0) == 1


def test_longer_time_yields_to_a_full_disk_and_to_the_size_of_the_log() -> None:
    long = {"long": TopicTime(30 * HOUR_MS)}
    full, disk, clock = started(long, delete_when=ANY_HOUR)
    for _ in range(3):
        fill_file(full, ["long"])
    disk.reported = Usage(used=95, free=5)
    step(full, clock)
    assert files(disk) == [2]
    small, disk, clock = started(long, retain_bytes=SMALL.commit_log_file_size)
    for _ in range(3):
        fill_file(small, ["long"])
    step(small, clock)
    assert files(disk) == [1, 2]


def test_expiry_of_a_record_is_that_of_its_topic() -> None:
    store, _, clock = started(SHORT, delete_when=ANY_HOUR)
    sent = send(store, [message("short", 0), message("other", 0)])
    stored_ms = clock.now_ms()
    own, by_file = store.expiries([each.physical_offset for each in sent], clock.now_ms())
    assert own == stored_ms + 2 * HOUR_MS
    assert by_file == stored_ms + 10 * HOUR_MS


def test_one_step_searches_a_bounded_number_of_queues() -> None:
    store, _, clock = started({"wide": TopicTime(HOUR_MS)})
    send(store, [NewMessage("wide", queue_id, b"x") for queue_id in range(600)])
    clock.advance(2 * HOUR_MS)
    expired = []
    for _ in range(3):
        store.maintain(clock.now_ms())
        expired.append(sum(store.min_offset("wide", queue_id) for queue_id in range(600)))
    assert expired == [256, 512, 600]


def test_deleted_topic_that_is_made_again_is_read_from_its_first_message() -> None:
    store, _, clock = started(SHORT)
    hourly(store, clock, 4, ["short"])
    store.delete_topic("short")
    send(store, [message("short", 9)])
    step(store, clock)
    assert store.min_offset("short", 0) == 0
    assert store.get(store.units("short", 0, 0, 1)[0][0]).queue_offset == 0


@pytest.mark.parametrize("restarts", [False, True])
def test_a_spell_with_the_clock_in_the_past_expires_no_young_message(restarts: bool) -> None:
    store, disk, clock = started(SHORT)
    hourly(store, clock, 1, ["short"])
    step(store, clock, hours=3)
    send(store, [message("short", number) for number in range(1, 5)])
    clock.jump(-48 * HOUR_MS)
    send(store, [message("short", number) for number in range(5, 15)])
    clock.jump(48 * HOUR_MS)
    send(store, [message("short", 15)])
    if restarts:
        store.close()
        store = open_store(disk, OPTIONS, clock)
        store.topic_times.use(SHORT)
    step(store, clock)
    assert store.min_offset("short", 0) == 1
    step(store, clock, hours=3)
    assert store.min_offset("short", 0) == 16


def test_queues_are_searched_again_after_a_spell_with_the_clock_in_the_future() -> None:
    store, _, clock = started(SHORT)
    hourly(store, clock, 1, ["short"])
    clock.jump(480 * HOUR_MS)
    step(store, clock)
    assert store.min_offset("short", 0) == 1
    clock.jump(-480 * HOUR_MS)
    send(store, [message("short", 1)])
    step(store, clock)
    assert store.min_offset("short", 0) == 1
    step(store, clock, hours=3)
    assert store.min_offset("short", 0) == 2
