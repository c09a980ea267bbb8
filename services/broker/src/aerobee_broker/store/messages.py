"""The values that the store receives and returns: messages to append, results of reads, units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from aerobee_wire import properties as props
from aerobee_wire.layout import Layout
from aerobee_wire.record import Record

# A unit is an entry of a consume queue.
UNIT_LAYOUT = Layout(
    ("physical_offset", "q"),
    ("size", "i"),  # of the record in bytes
    ("tags_code", "q"),  # Java's hash of TAGS, or the deliver time (ms) of a delayed message
)
UNIT = UNIT_LAYOUT.struct
assert UNIT.size == 20
Unit = tuple[int, int, int]  # physical offset, size, tags code
# The size in a unit whose record is lost (RocketMQ fills the start of a queue with such units).
LOST_SIZE = 0x7FFF_FFFF


@dataclass(slots=True)
class NewMessage:
    """A message to append.

    `properties` is their encoded string. `born_host` is "ip:port", or its packed bytes.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes | str = b"\x7f\x00\x00\x01\x00\x00\x00\x00"
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0

    @classmethod
    def copy_of(
        cls, record: Record, topic: str, queue_id: int, properties: dict[str, str]
    ) -> NewMessage:
        """Return a new message with the content of a stored record and these properties.

        The copy is never a half message: `prepared_transaction_offset` is not copied.
        """
        return cls(
            topic=topic,
            queue_id=queue_id,
            body=record.body,
            properties=props.encode(properties),
            flag=record.flag,
            sys_flag=record.sys_flag,
            born_timestamp_ms=record.born_timestamp_ms,
            born_host=record.born_host_packed,
            reconsume_times=record.reconsume_times,
        )


@dataclass(slots=True)
class NewBatch:
    """Messages (one or more) of one topic and queue to append.

    `properties` has the encoded properties of each body. `flags` has the flag of each message; if
    it is empty, all flags are 0. `sys_flag` must not have transaction bits, because messages with
    them are appended one by one.
    """

    topic: str
    queue_id: int
    bodies: Sequence[bytes]
    properties: Sequence[bytes]
    flags: Sequence[int] = ()
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes | str = b"\x7f\x00\x00\x01\x00\x00\x00\x00"

    def message(self, number: int) -> NewMessage:
        return NewMessage(
            self.topic,
            self.queue_id,
            self.bodies[number],
            self.properties[number],
            self.flags[number] if self.flags else 0,
            self.sys_flag,
            self.born_timestamp_ms,
            self.born_host,
        )


class AppendedBatch(NamedTuple):
    """The offsets of an appended batch.

    The queue offsets are consecutive. If a log file ends within the batch, the records are not.
    """

    first_queue_offset: int
    physical_offsets: list[int]


class Appended(NamedTuple):
    queue_id: int
    queue_offset: int
    physical_offset: int
    store_size: int


@dataclass(slots=True, eq=False)
class Arrival:
    """Notifies that messages of one queue became visible.

    Their queue offsets are `first_offset` and higher, below `max_offset`.
    """

    topic: str
    queue_id: int
    first_offset: int
    max_offset: int
    units: bytes | bytearray

    @property
    def tags_codes(self) -> frozenset[int]:
        return frozenset(unit[2] for unit in UNIT.iter_unpack(self.units))


class ReadStatus(Enum):
    FOUND = "found"
    NO_NEW = "no new message"
    NO_MATCHED = "no message matched"
    OFFSET_TOO_SMALL = "the offset is below the first message"
    OFFSET_TOO_LARGE = "the offset is beyond the next message"


@dataclass(slots=True)
class ReadResult:
    """The result of a read.

    `records` are the concatenated bytes of the stored records. `next_begin_offset` is the queue
    offset of the next read. `is_all` is True if that read would find nothing now, and False if this
    is unknown.
    """

    status: ReadStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    records: bytes = b""
    message_count: int = 0
    corrupted_count: int = 0
    is_all: bool = False


class RollBacks(Protocol):
    @property
    def rollback_count(self) -> int: ...


class LeasableQueues(Protocol):
    """The methods of message queues that leases use.

    MessageStore and the lite topics implement them.
    """

    @property
    def flush(self) -> RollBacks: ...

    @property
    def queues(self) -> Callable[[str], list[int]]: ...

    @property
    def min_offset(self) -> Callable[[str, int], int]: ...

    @property
    def max_offset(self) -> Callable[[str, int], int]: ...

    @property
    def read(self) -> ReadQueue: ...


class ReadQueue(Protocol):
    def __call__(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        max_messages: int = 32,
        max_bytes: int = 262_144,
        tags: frozenset[int] | None = None,
    ) -> ReadResult: ...
