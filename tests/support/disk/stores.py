"""Stores over a simulated disk: small ones, and what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.store.damage import ignore_event
from aerobee_broker.store.derived.topic_encoding import TagsCode
from aerobee_broker.store.message_store import Clock, MessageStore
from aerobee_broker.store.messages import Appended, NewMessage, ReadStatus
from aerobee_broker.store.options import StoreOptions
from aerobee_wire import properties, record
from support.clock.manual_clock import ManualClock
from support.disk.simulated_disk import SimulatedDisk

PATH = Path("/data/store")
LOG = PATH / "commitlog"
FIRST_FILE = LOG / ("0" * 20)
Queue = tuple[str, int]  # topic, queue id
EventListener = Callable[[str, Mapping[str, object]], None]
Events = list[tuple[str, dict[str, object]]]  # name, fields

# Small files, so that a short history sees many of them; everything that is derived is written
# soon, so that there is something to lose.
SMALL = StoreOptions(
    commit_log_file_size=8_192,
    commit_log_step=1_024,
    consume_queue_file_size=20 * 32,
    max_message_size=2_048,
    index_slot_count=64,
    index_entry_count=200,
    unwritten_units=48,
    max_open_files=4,
    checkpoint_bytes=4_096,
    checkpoint_interval_ms=3_000,
)

# Body, properties, and what a store of SMALL refuses them about.
ILLEGAL_CONTENTS = (
    (b"", b"", "body"),
    (b"x" * 2_049, b"", "maxMessageSize"),
    (b"x", b"k\x01" + b"v" * 32_768 + b"\x02", "properties"),
    (b"x", b"k\x01" + b"v" * 8_200 + b"\x02", "mappedFileSizeCommitLog"),
    (b"x", b"k\x01v", "properties"),
)


class Broken(AssertionError):
    """A promise of the store does not hold. The seed is in the message of the test."""


@contextmanager
def reporting(where: str) -> Iterator[None]:
    """Says where a promise was broken, for example with which seed."""
    try:
        yield
    except Broken as error:
        raise Broken(f"{where}: {error}") from error


def claim(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def open_store(
    disk: Disk | None = None,
    options: StoreOptions = SMALL,
    clock: Clock | None = None,
    on_event: EventListener = ignore_event,
    *,
    path: Path = PATH,
    tags_code_of: Mapping[str, TagsCode] | None = None,
) -> MessageStore:
    return MessageStore(
        path,
        options,
        clock=clock or ManualClock(),
        disk=disk or SimulatedDisk(),
        store_host="127.0.0.1:10911",
        tags_code_of=tags_code_of,
        on_event=on_event,
    ).open()


def new_store(
    options: StoreOptions = SMALL, on_event: EventListener = ignore_event
) -> tuple[MessageStore, SimulatedDisk, ManualClock]:
    """A store on an empty disk of its own, at a time of its own."""
    disk, clock = SimulatedDisk(), ManualClock()
    return open_store(disk, options, clock, on_event), disk, clock


def open_with_events(
    disk: SimulatedDisk, options: StoreOptions = SMALL
) -> tuple[MessageStore, Events]:
    """A store and the events that it reports, from its recovery on."""
    events: Events = []

    def listen(name: str, fields: Mapping[str, object]) -> None:
        events.append((name, dict(fields)))

    return open_store(disk, options, on_event=listen), events


def event_names(events: Events) -> list[str]:
    return [name for name, _ in events]


def numbered_messages(
    start: int, count: int, topic: str = "a", size: int = 150
) -> list[NewMessage]:
    """With the unique ids ID<start>, … and the tag red, in queues 0 and 1 in turn."""
    return [
        NewMessage(
            topic,
            n % 2,
            b"%d|" % n * (size // 4),
            properties.encode({"UNIQ_KEY": f"ID{n}", "TAGS": "red"}),
        )
        for n in range(start, start + count)
    ]


def flush(store: MessageStore) -> None:
    """Everything that was appended is durable and visible."""
    store.flush.write()
    store.flush.confirm(store.flush.sync())


def send(store: MessageStore, messages: Sequence[NewMessage]) -> list[Appended]:
    appended = store.append(messages)
    flush(store)
    return appended


def upkeep(store: MessageStore, clock: ManualClock) -> None:
    """A checkpoint, or whatever else is due."""
    for _ in range(3):
        clock.advance(10_000)
        store.maintain(clock.now_ms())
        while store.has_file_work and store.maintain_files():
            pass


def without_checkpoint(disk: SimulatedDisk) -> SimulatedDisk:
    """What a killed broker left, except its checkpoint: the next start rebuilds."""
    disk = disk.after_kill()
    disk.remove(PATH / "checkpoint")
    return disk


def bodies(records: bytes) -> list[bytes]:
    return [message.body for message in record.iter_records(records)]


def visible(store: MessageStore) -> dict[Queue, dict[int, bytes]]:
    """Every message that the store shows: queue → queue offset → body."""
    shown: dict[Queue, dict[int, bytes]] = {}
    for topic in store.topics():
        for queue_id in store.queues(topic):
            messages = shown[topic, queue_id] = {}
            at = store.min_offset(topic, queue_id)
            while True:
                found = store.read(topic, queue_id, at, max_messages=17, max_bytes=5_000)
                if found.status in (ReadStatus.NO_NEW, ReadStatus.OFFSET_TOO_LARGE):
                    break
                for message in record.iter_records(found.records):
                    claim(
                        (message.topic, message.queue_id) == (topic, queue_id),
                        "a message of elsewhere",
                    )
                    claim(message.queue_offset not in messages, "a message twice")
                    messages[message.queue_offset] = message.body
                claim(found.next_begin_offset > at, "reading does not move on")
                at = found.next_begin_offset
    return shown
