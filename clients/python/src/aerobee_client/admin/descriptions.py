"""Define the results of an admin client as frozen dataclasses.

`dataclasses.asdict` converts them for JSON. The method `of` creates a result from protobuf
messages. Times are milliseconds since the epoch, and sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Self, TypeVar

from aerobee.access.v1 import access_pb2
from aerobee.broker.v1 import (
    admin_pb2,
    client_pb2,
    lite_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    replica_pb2,
    search_pb2,
)
from aerobee.namesrv.v1 import namesrv_pb2
from google.protobuf.message import Message

from aerobee_client.message import ReceivedMessage, received
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.route import READ, READ_WRITE, WRITE
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import ALL, SEPARATOR
from aerobee_wire.topics import is_retry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from aerobee_wire.record import Record

D = TypeVar("D", bound="DataclassInstance")


def _like(description: type[D], source: Message, **values: Any) -> D:
    """Create a description from `values`, and take all other fields from `source` by name.

    Maps become dicts, and repeated fields become tuples.
    """
    for name in _names(description):
        if name in values:
            continue
        value = getattr(source, name)
        if isinstance(value, str | int | float):  # most; the other checks take five times as long
            pass
        elif isinstance(value, MutableMapping):
            value = dict(value)
        elif isinstance(value, MutableSequence):
            value = tuple(value)
        values[name] = value
    return description(**values)


@cache
def _names(description: type[DataclassInstance]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(description))


MESSAGE_TYPE = "message.type"  # attribute of a topic
ATTRIBUTES = "attributes"
# The defaults of attributes that a topic does not have.
_DEFAULT_ATTRIBUTES = {MESSAGE_TYPE: "NORMAL"}


@dataclass(frozen=True, slots=True)
class Created:
    """A topic or group on one broker. `created` is false if it existed already."""

    broker_name: str
    address: str
    created: bool
    # Name servers that were not reached. They learn of the topic from the broker's next
    # registration.
    unreachable_namesrvs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of a topic or group that differs from its earlier or requested value.

    An update reports the values before and after the change. If a creation finds a different
    setting, `after` is the requested value. None means that the attribute does not exist.
    """

    name: str
    broker_name: str
    # A field of TopicOnBroker or GroupDescription, or "attributes.NAME".
    setting: str
    before: Any
    after: Any

    @property
    def option(self) -> str:
        """The setting, by its name in the options of a command and in a file of settings."""
        return _OPTIONS.get(self.setting, self.setting)

    @property
    def texts(self) -> tuple[str, str]:
        """The values before and after, as a user writes them in such an option."""
        return _written(self.setting, self.before), _written(self.setting, self.after)


# Settings whose names in options differ from their names in descriptions.
_OPTIONS = {
    "read_queue_count": "read_queues",
    "write_queue_count": "write_queues",
    "retry_delays_ms": "retry_delays",
    "exponential_retry": "retry",
    "consume_enable": "consume",
    "consume_from_min_enable": "consume_from_min",
}
_PERMISSIONS = {READ: "r", WRITE: "w", READ_WRITE: "rw"}


def _written(setting: str, value: Any) -> str:
    match setting, value:
        case _, None | "" | ():
            return "not set"
        case _, bool():
            return str(value).lower()
        case "permission", int():
            return _PERMISSIONS.get(value, str(value))
        case "retry_delays_ms", [*delays]:
            return ",".join(map(_duration, delays))
        case "exponential_retry", {"initial_ms": first, "max_ms": last, "multiplier": factor}:
            bounds = f"initial={_duration(first)},max={_duration(last)}"
            return f"exponential:{bounds},multiplier={factor}"
    return str(value)


def _duration(milliseconds: int) -> str:
    return f"{milliseconds}ms" if milliseconds % 1_000 else f"{milliseconds // 1_000}s"


@dataclass(frozen=True, slots=True)
class UnreadableQueue:
    """A queue that consumers could no longer read after an update.

    If `messages` is 0, the queue is empty, but its future messages would be unreadable.
    """

    name: str
    broker_name: str
    queue_id: int
    messages: int


@dataclass(frozen=True, slots=True)
class Update:
    """The changes of an update, or with `dry_run` the changes that it would make.

    `changes` is empty if all settings already had the requested values.
    """

    changes: tuple[Change, ...]
    unreadable: tuple[UnreadableQueue, ...] = ()
    # See `Created`.
    unreachable_namesrvs: tuple[str, ...] = ()


def creation(name: str, broker_name: str) -> Change:
    """Return the change that creates a topic or group on a broker."""
    return Change(name, broker_name, "created", before=False, after=True)


def differences(
    name: str, broker_name: str, before: DataclassInstance, after: DataclassInstance
) -> list[Change]:
    """Return the settings in which two descriptions of a topic or group differ.

    Both descriptions are of the same broker.
    """
    found = []
    for setting in [each.name for each in fields(before)]:
        old, new = getattr(before, setting), getattr(after, setting)
        if setting == ATTRIBUTES:
            found += [
                Change(name, broker_name, f"{ATTRIBUTES}.{key}", was, will_be)
                for key in sorted({*old, *new})
                if (was := _attribute(old, key)) != (will_be := _attribute(new, key))
            ]
        elif old != new:
            found.append(Change(name, broker_name, setting, _plain(old), _plain(new)))
    return found


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _attribute(attributes: Mapping[str, str], key: str) -> str | None:
    return attributes.get(key, _DEFAULT_ATTRIBUTES.get(key))


class AlreadyExists(MqError):
    """A topic or group exists with other settings. Nothing was changed.

    Attributes:
        differences: The settings that differ, with their broker.
    """

    def __init__(self, code: Code, kind: str, name: str, differences: Sequence[Change]) -> None:
        listed = ", ".join(
            f"on {change.broker_name} {change.option} is {before} (requested: {after})"
            for change in differences
            for before, after in [change.texts]
        )
        super().__init__(
            code,
            f"{kind} {name} exists with other settings, and nothing was changed: {listed}; "
            f"use it as it is, or change it: aerobee {kind} update {name}",
        )
        self.differences = tuple(differences)


@dataclass(frozen=True, slots=True)
class BrokerDescription:
    cluster: str
    broker_name: str
    # "host:port" by broker id; 0 is the master.
    addresses: Mapping[int, str]

    @classmethod
    def of(cls, data: namesrv_pb2.BrokerData) -> Self:
        return cls(data.cluster, data.broker_name, dict(sorted(data.addresses.items())))


@dataclass(frozen=True, slots=True)
class LiveBroker:
    cluster: str
    address: str
    last_update_timestamp_ms: int
    heartbeat_timeout_ms: int


@dataclass(frozen=True, slots=True)
class BrokerConflict:
    """Two processes that have the same `brokerId` of the same broker name.

    The process `holder` is registered. The process `newcomer` was rejected within the last two
    minutes. A store id is "" if the store has none.
    """

    broker_name: str
    number: int
    holder_address: str
    holder_store_id: str
    newcomer_address: str
    newcomer_store_id: str

    @classmethod
    def of(cls, conflict: namesrv_pb2.BrokerConflict) -> Self:
        return cls(
            conflict.broker_name,
            conflict.number,
            conflict.holder.broker_address,
            conflict.holder.store_id,
            conflict.newcomer.broker_address,
            conflict.newcomer.store_id,
        )


@dataclass(frozen=True, slots=True)
class ProxyProcess:
    """A process of a proxy. Workers of one proxy have one name."""

    # The "host:port" that the clients of the proxy have in `ClientDescription.proxy`.
    name: str
    version: str
    start_timestamp_ms: int
    # The address of its port for administration; "" if it has none.
    admin_address: str


@dataclass(frozen=True, slots=True)
class AwayProxy:
    name: str
    since_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    brokers: tuple[BrokerDescription, ...]
    live: tuple[LiveBroker, ...]
    conflicts: tuple[BrokerConflict, ...] = ()
    # Names of brokers that were registered and are not any more, without those that were drained.
    away: tuple[str, ...] = ()
    # The processes of proxies, and when proxies disappeared that did not stop in order.
    proxies: tuple[ProxyProcess, ...] = ()
    away_proxies: tuple[AwayProxy, ...] = ()

    @classmethod
    def of(cls, info: namesrv_pb2.GetClusterInfoResponse) -> Self:
        live = (_like(LiveBroker, row, address=row.broker_address) for row in info.live_brokers)
        return cls(
            tuple(BrokerDescription.of(data) for data in info.brokers),
            tuple(live),
            tuple(map(BrokerConflict.of, info.conflicts)),
            tuple(each.broker_name for each in info.away_brokers),
            tuple(_like(ProxyProcess, each) for each in info.proxies),
            tuple(_like(AwayProxy, each) for each in info.away_proxies),
        )


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """State and counters of a broker, with the fields of GetBrokerStatusResponse."""

    cluster: str
    broker_name: str
    broker_id: int
    broker_address: str
    version: str
    start_timestamp_ms: int
    min_physical_offset: int
    max_physical_offset: int
    flushed_physical_offset: int
    # The reason why the store does not accept writes; "" if it accepts them.
    read_only_reason: str
    messages_in_total: int
    messages_out_total: int
    dead_letters_total: int
    corrupted_records_total: int
    store_path: str
    disk_free_bytes: int
    disk_total_bytes: int
    parked_pulls: int
    parked_pops: int
    # Messages that are not delivered yet, by delay queue.
    delayed_messages: Mapping[str, int]
    resident_memory_bytes: int
    # When it began to drain; 0 if it accepts messages.
    draining_since_ms: int
    # The broker's time when it answered.
    now_timestamp_ms: int
    # Percentages of used disk space. Above disk_max_used_percent, expired messages are deleted at
    # any hour. Above disk_full_percent, or with less than disk_min_free_bytes, producers are
    # refused.
    disk_max_used_percent: int
    disk_full_percent: int
    disk_min_free_bytes: int
    # The memory limit of the process; 0 if unknown.
    memory_limit_bytes: int
    # A file of the commit log expires when all of its records are older than this. It is deleted in
    # one of these hours of the broker's local day.
    file_reserved_time_ms: int
    delete_when: tuple[int, ...]
    commit_log_file_bytes: int
    # The earliest time at which each requested record is deleted for its age; 0 for never.
    expiry_timestamps_ms: tuple[int, ...]
    # Damaged parts of the log that are not repaired.
    damaged_ranges: int
    damaged_bytes: int

    @classmethod
    def of(cls, response: admin_pb2.GetBrokerStatusResponse) -> Self:
        return _like(cls, response)


@dataclass(frozen=True, slots=True)
class GroupLag:
    consumer_group: str
    topic: str
    messages: int


@dataclass(frozen=True, slots=True)
class BrokerBacklog:
    """The messages that must leave a broker before it can be removed. Zero counts are left out."""

    broker_name: str
    # When it began to drain; 0 if it accepts messages.
    draining_since_ms: int
    # Messages that a group has not consumed yet, including retry topics.
    lags: tuple[GroupLag, ...]
    # Messages that were popped and not acknowledged yet.
    in_flight: int
    # Messages that are not delivered yet, by delay queue.
    delayed_messages: Mapping[str, int]
    # Transactions that have not ended, by topic.
    half_messages: Mapping[str, int]
    # Dead letters by topic. No consumer waits for them, but they are unavailable without the
    # broker.
    dead_letters: Mapping[str, int]
    # Messages by topic, for topics that no group has read.
    unread_topics: Mapping[str, int]

    @property
    def is_empty(self) -> bool:
        """True if no messages need this broker, apart from dead letters and unread topics."""
        return not (self.lags or self.in_flight or self.delayed_messages or self.half_messages)

    @classmethod
    def of(cls, broker_name: str, response: admin_pb2.GetBacklogResponse) -> Self:
        lags = tuple(_like(GroupLag, lag) for lag in response.lags)
        return _like(cls, response, broker_name=broker_name, lags=lags)


@dataclass(frozen=True, slots=True)
class TopicOnBroker:
    broker_name: str
    address: str
    read_queue_count: int
    write_queue_count: int
    # Bits: 4 read, 2 write.
    permission: int
    order: bool
    attributes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, broker_name: str, address: str, config: namesrv_pb2.TopicConfig) -> Self:
        return _like(cls, config, broker_name=broker_name, address=address)


@dataclass(frozen=True, slots=True)
class TopicDescription:
    topic: str
    # NORMAL, FIFO, DELAY, TRANSACTION, PRIORITY, LITE or MIXED.
    message_type: str
    brokers: tuple[TopicOnBroker, ...]

    @classmethod
    def of(cls, name: str, brokers: list[TopicOnBroker]) -> Self:
        message_type = brokers[0].attributes.get(MESSAGE_TYPE, "NORMAL")
        return cls(name, message_type, tuple(brokers))


@dataclass(frozen=True, slots=True)
class RouteQueues:
    broker_name: str
    read_queue_count: int
    write_queue_count: int
    permission: int


@dataclass(frozen=True, slots=True)
class RouteDescription:
    topic: str
    queues: tuple[RouteQueues, ...]
    brokers: tuple[BrokerDescription, ...]

    @classmethod
    def of(cls, topic: str, route: namesrv_pb2.TopicRoute) -> Self:
        queues = (_like(RouteQueues, data) for data in route.queues)
        return cls(
            topic,
            tuple(sorted(queues, key=lambda data: data.broker_name)),
            tuple(BrokerDescription.of(data) for data in route.brokers),
        )


@dataclass(frozen=True, slots=True)
class QueueStatus:
    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    # The offset of the next message.
    max_offset: int
    # Store times; 0 for an empty queue.
    earliest_timestamp_ms: int
    latest_timestamp_ms: int

    @classmethod
    def of(cls, topic: str, broker_name: str, bounds: offset_pb2.QueueBounds) -> Self:
        return _like(cls, bounds, topic=topic, broker_name=broker_name)


@dataclass(frozen=True, slots=True)
class TopicBounds:
    """The lowest and highest offset of each queue of a topic on one broker, by queue id.

    Queues with ids of `read_queue_count` and above are not readable.
    """

    topic: str
    broker_name: str
    read_queue_count: int
    # Bits: 4 read, 2 write.
    permission: int
    bounds: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, topic: str, broker_name: str, response: offset_pb2.GetQueueOffsetsResponse) -> Self:
        bounds = {queue.queue_id: (queue.min_offset, queue.max_offset) for queue in response.queues}
        return _like(cls, response, topic=topic, broker_name=broker_name, bounds=bounds)


@dataclass(frozen=True, slots=True)
class QueueOffset:
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class Rebalanced:
    """The topic and groups that were created on a broker, so that it shares the load of a topic.

    `queues` is the number of queues of the topic on this broker.
    """

    broker_name: str
    address: str
    queues: int
    # Consumer groups that were missing there, created with their settings from other brokers.
    groups: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueRange:
    """A part of a queue: the queue offsets from `begin_offset` up to below `end_offset`.

    If `end_offset` is None, the part ends with the queue.
    """

    broker_name: str
    queue_id: int
    begin_offset: int = 0
    end_offset: int | None = None


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The messages that a search found, and where it stopped."""

    messages: tuple[ReceivedMessage, ...]
    # Why each broker stopped, by name: COMPLETE, MESSAGE_LIMIT, BYTE_LIMIT or SCAN_LIMIT.
    stops: Mapping[str, str]
    # What is not examined yet. Pass it as `ranges` to continue. Empty if a key was looked up.
    left: tuple[QueueRange, ...]
    # Where messages begin that are stored later. Empty if a key was looked up.
    ends: tuple[QueueRange, ...]
    # Messages that were examined.
    scanned: int
    # Messages that may match, but are damaged or cannot be decompressed.
    unreadable: int
    # The errors of brokers that have the topic and did not answer, by name.
    silent: Mapping[str, MqError]

    @property
    def is_complete(self) -> bool:
        """Return whether all messages in the bounds were examined and readable."""
        return not self.silent and not self.unreadable and set(self.stops.values()) <= {"COMPLETE"}

    def reversed(self) -> Self:
        """Return the result with its messages in reverse order."""
        return replace(self, messages=self.messages[::-1])


@dataclass(frozen=True, slots=True)
class MessagePlace:
    topic: str
    queue_id: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class GroupState:
    """The state of a message in one consumer group. Times that are not known are 0."""

    consumer_group: str
    # NOT_YET, READY, ON_LEASE, RETRYING, CONSUMED, FILTERED, SKIPPED, DEAD_LETTERED, EXPIRED, or
    # UNKNOWN.
    state: str
    # How the broker knows the state, or why it does not.
    reason: str
    # The client that has or consumed the message, or the operator who skipped it; "" if unknown.
    client_id: str
    # The message got into the state between these times.
    since_timestamp_ms: int
    at_timestamp_ms: int
    # The end of the lease, or the time of the next delivery.
    until_timestamp_ms: int
    # The number of the last delivery; of the next one while the message is RETRYING; 0 if unknown.
    attempt: int
    # Messages of its queue that come first.
    ahead: int
    # Where its retry or dead letter is stored.
    place: MessagePlace | None
    # Why the last delivery failed.
    failure_reason: str
    failure_description: str

    @classmethod
    def of(cls, state: search_pb2.GroupState) -> Self:
        return _like(
            cls,
            state,
            state=search_pb2.GroupState.State.Name(state.state),
            place=_like(MessagePlace, state.place) if state.HasField("place") else None,
            failure_reason=state.failure.reason,
            failure_description=state.failure.description,
        )


@dataclass(frozen=True, slots=True)
class TrackedMessage:
    """A message, and what became of it in each consumer group."""

    broker_name: str
    place: MessagePlace
    # The message without its body. None if it is not stored any more, or damaged.
    message: ReceivedMessage | None
    groups: tuple[GroupState, ...]
    # The delivery time of a message that waits for it; else 0. No group can have it before.
    due_timestamp_ms: int
    # Whether the message is in a transaction that was not committed.
    uncommitted: bool

    @classmethod
    def of(cls, broker_name: str, tracked: search_pb2.TrackedMessage) -> Self:
        stored = tracked.message if tracked.HasField("message") else None
        return _like(
            cls,
            tracked,
            broker_name=broker_name,
            place=_like(MessagePlace, tracked.place),
            message=None if stored is None else ReceivedMessage(stored, broker_name),
            groups=tuple(map(GroupState.of, tracked.groups)),
        )


@dataclass(frozen=True, slots=True)
class Browsed:
    """Consecutive records of a queue.

    `status` is FOUND, NO_NEW_MESSAGE, or OFFSET_MOVED (continue at `next_begin_offset`).
    """

    status: str
    broker_name: str
    # Concatenated records of the commit log (docs/storage_format.md).
    records: bytes
    message_count: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    # Records before next_begin_offset, from the requested offset on, that failed their check.
    corrupted_count: int

    @classmethod
    def of(cls, broker_name: str, response: message_pb2.PullResponse) -> Self:
        status = message_pb2.PullStatus.Name(response.status)
        return _like(cls, response, status=status, broker_name=broker_name)

    def messages(self) -> list[ReceivedMessage]:
        """Decode the records.

        Raises MqError with the code MESSAGE_CORRUPTED if a record fails its check.
        """
        return received(self.records, self.broker_name)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    consumer_group: str
    # The number of deliveries before a message is dead-lettered.
    max_attempts: int
    # The delay before each retry; empty for the broker's delay levels from level 3 on.
    retry_delays_ms: tuple[int, ...]
    consume_enable: bool
    # If False, consumers that pop begin at the end of a topic.
    consume_from_min_enable: bool
    # The order of consumption: auto (topics of the type FIFO in order), on or off.
    order: str
    brokers: tuple[str, ...]
    attributes: Mapping[str, str] = field(default_factory=dict)
    # If this policy is set, it replaces `retry_delays_ms`.
    exponential_retry: ExponentialRetryPolicy | None = None

    @classmethod
    def of(cls, config: admin_pb2.GroupConfig, brokers: list[str]) -> Self:
        retry, order = config.exponential_retry, config.order
        return _like(
            cls,
            config,
            max_attempts=config.retry_max_times + 1,
            order=ConsumeOrder.of(order, orderly=config.consume_message_orderly).name.lower(),
            brokers=tuple(brokers),
            exponential_retry=(
                ExponentialRetryPolicy(retry.initial_ms, retry.max_ms, retry.multiplier)
                if config.HasField("exponential_retry")
                else None
            ),
        )


@dataclass(frozen=True, slots=True)
class QueueProgress:
    topic: str
    broker_name: str
    queue_id: int
    min_offset: int
    max_offset: int
    # None if the group has not consumed from this queue, or has one offset per lite topic instead.
    consumer_offset: int | None
    # Messages that are stored and not consumed yet.
    lag: int
    # Store time of the last consumed message; 0 if unknown.
    last_timestamp_ms: int
    # The member that owns the queue; "" if unknown.
    client_id: str

    @classmethod
    def of(cls, broker_name: str, stats: offset_pb2.QueueConsumeStats) -> Self:
        offset = stats.consumer_offset if stats.HasField("consumer_offset") else None
        consumed_to = stats.min_offset if offset is None else max(offset, stats.min_offset)
        lag = stats.lag if stats.HasField("lag") else max(stats.max_offset - consumed_to, 0)
        return _like(cls, stats, broker_name=broker_name, consumer_offset=offset, lag=lag)


@dataclass(frozen=True, slots=True)
class BlockedMessageGroup:
    """A message group, and the message that blocks the other messages of this group."""

    topic: str
    broker_name: str
    queue_id: int
    # The message group; "" for the messages of the queue that have no message group.
    message_group: str
    queue_offset: int
    # The id of the blocking message; "" if its record cannot be read.
    message_id: str
    # The number of deliveries of the blocking message so far.
    attempt: int
    # The number of messages that wait for it.
    waiting: int
    # The time of its first delivery; after a restart of the broker, the time of its last delivery.
    since_timestamp_ms: int
    # When it is delivered again; 0 for the next receive.
    next_try_timestamp_ms: int
    # The client that received it last; "" if unknown.
    client_id: str

    @classmethod
    def of(cls, broker_name: str, group: pop_pb2.BlockedMessageGroup) -> Self:
        return _like(
            cls,
            group,
            broker_name=broker_name,
            since_timestamp_ms=group.since_ms,
            next_try_timestamp_ms=group.next_try_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerDescription:
    """A consumer group to which a client belongs, and how the client consumes in it."""

    # "push", "pull" or "pop"; "clustering" or "broadcasting".
    consume_type: str = "push"
    message_model: str = "clustering"
    # The name of its strategy in RocketMQ; "" if it does not report one or does not divide queues.
    strategy: str = ""
    # The queues that it reads now, as "topic/broker/queue id"; only for clients that pull.
    queues: tuple[str, ...] = ()
    # The queues whose lock it holds, because it consumes in order.
    locks: tuple[str, ...] = ()
    # The fields of ConsumerStatistics (.proto files) from its last heartbeat; empty if it sent
    # none.
    statistics: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls, broker_name: str, data: client_pb2.ConsumerData, info: client_pb2.ClientInfo
    ) -> Self:
        model = client_pb2.MessageModel.Name(data.message_model).lower()
        queues = [each for each in info.queues if each.consumer_group == data.consumer_group]
        divides = model == "clustering" and data.consume_type != client_pb2.POP
        return cls(
            consume_type=client_pb2.ConsumeType.Name(data.consume_type).lower(),
            message_model=model,
            strategy=data.strategy if divides else "",
            queues=tuple(_name(broker_name, queue) for queue in queues),
            locks=tuple(_name(broker_name, queue) for queue in queues if queue.locked),
            statistics=_consumer_numbers(data),
        )

    def with_queues_of(self, other: ConsumerDescription | None) -> ConsumerDescription:
        if other is None:
            return self
        return replace(self, queues=self.queues + other.queues, locks=self.locks + other.locks)


def _name(broker_name: str, queue: client_pb2.PulledQueue) -> str:
    return f"{queue.topic}/{broker_name}/{queue.queue_id}"


def _numbers(
    statistics: client_pb2.ConsumerStatistics | client_pb2.ProducerStatistics,
) -> dict[str, float]:
    """Return all fields of the statistics; an empty dict if all are 0."""
    if not statistics.ListFields():
        return {}
    return {name: getattr(statistics, name) for name in statistics.DESCRIPTOR.fields_by_name}


def _consumer_numbers(data: client_pb2.ConsumerData) -> dict[str, float]:
    """Return the fields of a consumer's statistics.

    A client that pops does not own queues or know its lag, so these two fields are left out.
    """
    numbers = _numbers(data.statistics)
    if data.consume_type == client_pb2.POP:
        return {name: value for name, value in numbers.items() if name not in ("queues", "lag")}
    return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDescription:
    client_id: str
    address: str
    # As the client reports them; "" if it does not.
    language: str
    version: str
    # The address of the proxy that it uses; "" if it connects directly.
    proxy: str = ""
    # The time of the first heartbeat at a broker since that broker started, and of the last
    # heartbeat at any broker.
    since_timestamp_ms: int = 0
    last_update_timestamp_ms: int = 0
    producer_groups: tuple[str, ...] = ()
    # Topics to which the client sends, at most 1,000 of a classic client.
    published_topics: tuple[str, ...] = ()
    # The user that signs its calls to the proxy; "" without authentication.
    user: str = ""
    consumer_groups: tuple[str, ...] = ()
    # The description of the client as a consumer, by group.
    consumers: Mapping[str, ConsumerDescription] = field(default_factory=dict)
    # The fields of ProducerStatistics (.proto files) of its producer; empty if it sent none.
    producer_statistics: Mapping[str, float] = field(default_factory=dict)
    # Expressions of the subscriptions, by topic.
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    # The brokers that it is connected to.
    brokers: tuple[str, ...] = ()

    @classmethod
    def of(cls, broker_name: str, info: client_pb2.ClientInfo) -> Self:
        return _like(
            cls,
            info,
            consumer_groups=tuple(consumer.consumer_group for consumer in info.consumers),
            subscriptions={
                subscription.topic: subscription.expression
                for consumer in info.consumers
                for subscription in consumer.subscriptions
            },
            consumers={
                consumer.consumer_group: ConsumerDescription.of(broker_name, consumer, info)
                for consumer in info.consumers
            },
            producer_statistics=_numbers(info.producer_statistics),
            brokers=(broker_name,),
        )

    def uses(self, topic: str) -> bool:
        """Return whether the client subscribes or publishes to a topic."""
        return topic in self.subscriptions or topic in self.published_topics

    def merged(self, other: ClientDescription) -> ClientDescription:
        """Merge the descriptions of the same client from two brokers.

        If the descriptions differ, the one with the newer heartbeat applies.
        """
        newer, older = self, other
        if other.last_update_timestamp_ms > self.last_update_timestamp_ms:
            newer, older = other, self
        since = min(newer.since_timestamp_ms, older.since_timestamp_ms) or newer.since_timestamp_ms
        brokers = tuple(sorted({*newer.brokers, *older.brokers}))
        consumers = {
            group: consumer.with_queues_of(older.consumers.get(group))
            for group, consumer in newer.consumers.items()
        }
        return replace(newer, since_timestamp_ms=since, brokers=brokers, consumers=consumers)


def merged_clients(
    answers: Mapping[str, Iterable[client_pb2.ClientInfo]],
) -> list[ClientDescription]:
    """Return the clients that brokers list (by name), each once, sorted by client id."""
    found: dict[str, ClientDescription] = {}
    for name, clients in answers.items():
        for info in clients:
            client = ClientDescription.of(name, info)
            known = found.get(client.client_id)
            found[client.client_id] = known.merged(client) if known else client
    return [found[client_id] for client_id in sorted(found)]


@dataclass(frozen=True, slots=True)
class SubscriptionConflict:
    """A topic to which members of a group subscribe differently.

    A message goes to one member. If the filter of that member drops the message, the group loses it
    unnoticed.
    """

    topic: str
    # The clients by expression; "" stands for clients that do not subscribe to the topic.
    expressions: Mapping[str, tuple[str, ...]]


def subscription_conflicts(
    clients: Iterable[ClientDescription], group: str
) -> list[SubscriptionConflict]:
    """Return the conflicts between the members of `group` among `clients`, by topic.

    Members that do not report subscriptions do not count. Retry topics do not count either, because
    only classic clients report them.
    """
    members = [each for each in clients if group in each.consumer_groups and each.subscriptions]
    topics = sorted(
        {topic for each in members for topic in each.subscriptions if not is_retry(topic)}
    )
    found = []
    for topic in topics:
        by_expression: dict[str, list[str]] = {}
        for each in members:
            expression = each.subscriptions.get(topic)
            text = "" if expression is None else _normal(expression)
            by_expression.setdefault(text, []).append(each.client_id)
        if len(by_expression) > 1:
            listed = {text: tuple(sorted(ids)) for text, ids in sorted(by_expression.items())}
            found.append(SubscriptionConflict(topic, listed))
    return found


@dataclass(frozen=True, slots=True)
class MemberConflict:
    """A setting in which members of a group differ although it must be the same.

    With different strategies, some queues have two readers and others have none. If some members
    pull and others pop, the group consumes messages twice.
    """

    # "strategy", "message model" or "way to consume".
    setting: str
    # The clients by value of the setting.
    values: Mapping[str, tuple[str, ...]]


def member_conflicts(clients: Iterable[ClientDescription], group: str) -> list[MemberConflict]:
    """Return the conflicts between members of `group` in settings that must be the same.

    For the setting "strategy", members without a strategy do not count.
    """
    found = []
    members = [(each, each.consumers[group]) for each in clients if group in each.consumers]
    settings: dict[str, Callable[[ConsumerDescription], str]] = {
        "strategy": lambda consumer: consumer.strategy,
        "message model": lambda consumer: consumer.message_model,
        "way to consume": lambda consumer: "pop" if consumer.consume_type == "pop" else "pull",
    }
    for setting, value_of in settings.items():
        by_value: dict[str, list[str]] = {}
        for each, consumer in members:
            if value_of(consumer):
                by_value.setdefault(value_of(consumer), []).append(each.client_id)
        if len(by_value) > 1:
            listed = {value: tuple(sorted(ids)) for value, ids in sorted(by_value.items())}
            found.append(MemberConflict(setting, listed))
    return found


def _normal(expression: str) -> str:
    """Normalize a tag expression, whose order and spaces do not matter. Never returns ""."""
    return SEPARATOR.join(sorted({tag.strip() for tag in expression.split(SEPARATOR)})) or ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteTopicDescription:
    """The part of a lite topic in one queue of its parent topic.

    `messages` counts stored messages. `lag` counts messages that the group has not settled.
    `oldest_timestamp_ms` is the store time of the first unsettled message, or of the first message
    if all are settled; 0 if it cannot be read. `subscribers` counts the clients of the group, or of
    all groups if no group is given.
    """

    lite_topic: str
    broker_name: str
    queue_id: int
    messages: int
    lag: int
    oldest_timestamp_ms: int
    newest_timestamp_ms: int
    subscribers: int

    @classmethod
    def of(cls, broker_name: str, info: lite_pb2.LiteTopicInfo) -> Self:
        return _like(cls, info, broker_name=broker_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteTopics:
    """Some of the lite topics of a parent topic, and the total number of its lite topics."""

    topics: tuple[LiteTopicDescription, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteClientDescription:
    """A client that subscribes to lite topics of a parent topic, in one group.

    `lite_topics` counts its subscriptions; with `wildcard` it is 0, and the client gets all lite
    topics. `ready` counts lite topics that have a message for the client. `silent_ms` is the time
    since its last contact with a broker. After 180,000 ms the client is dropped.
    """

    consumer_group: str
    client_id: str
    brokers: tuple[str, ...]
    lite_topics: int
    wildcard: bool
    ready: int
    silent_ms: int

    @classmethod
    def of(cls, broker_name: str, info: lite_pb2.LiteClientInfo) -> Self:
        return _like(cls, info, brokers=(broker_name,))

    def merged(self, other: LiteClientDescription) -> LiteClientDescription:
        """Merge two brokers' descriptions of a client. Each broker knows all subscriptions."""
        return replace(
            self,
            brokers=self.brokers + other.brokers,
            lite_topics=max(self.lite_topics, other.lite_topics),
            ready=self.ready + other.ready,
            silent_ms=min(self.silent_ms, other.silent_ms),
        )


def merged(clients: Iterable[LiteClientDescription]) -> list[LiteClientDescription]:
    """Merge the descriptions of each client, and sort them by group and client id."""
    found: dict[tuple[str, str], LiteClientDescription] = {}
    for client in clients:
        key = client.consumer_group, client.client_id
        known = found.get(key)
        found[key] = known.merged(client) if known else client
    return [found[key] for key in sorted(found)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaDescription:
    """The state of one replica. Offsets are physical offsets of the commit log, in bytes.

    Most fields are reported by the replica. `in_sync`, `connected`, `lag_bytes` and `behind_ms` are
    reported by its master.

    Attributes:
        role: "master", "slave", "candidate" (without a role) or "refused". A refused slave follows
            no master until an operator corrects the problem in `reason`.
        replica_id: The configured brokerId of the replica, which does not depend on its role.
        epoch: The highest epoch that the replica knows.
        in_sync: Whether the replica can become master without a loss; None if neither a master nor
            etcd reports it.
        lag_bytes: The bytes of the master's log that the replica lacks; None if unknown.
        behind_ms: Milliseconds since the replica was last up to date; None if unknown.
        clock_offset_ms: How far the replica's wall clock is ahead of its master's clock; None if
            unknown.
        master_end_offset: For a slave, the last reported end of its master's log; 0 if it was not
            reported yet.
        coordinator_reachable: Whether etcd answers this replica; None if etcd is not used.
        in_sync_replicas: For a master, the ids of its in-sync set. Without a master, the ids that
            the replica last read from etcd.
        epochs: The physical offset at which the log of each epoch begins, by epoch.
        damaged_ranges: The number of parts of the log that are damaged and not repaired.
        damaged_bytes: The size of these parts.
        repaired_records: The records that were repaired from other replicas since the start.
        scrubbed_timestamp_ms: The time at which the whole log was last checked, in milliseconds
            since the epoch; 0 if it was not checked since the start.
    """

    broker_name: str
    replica_id: int
    address: str
    role: str
    epoch: int
    in_sync: bool | None
    connected: bool | None
    lag_bytes: int | None
    behind_ms: int | None
    clock_offset_ms: int | None
    reason: str
    master_address: str
    learner: bool
    copying: bool
    elected: bool
    total_replicas: int
    synchronous: bool | None
    required_replicas: int | None
    in_sync_replicas: tuple[int, ...] | None
    lowest_offset: int
    end_offset: int
    synced_offset: int
    confirmed_offset: int
    master_end_offset: int
    coordinator_reachable: bool | None
    store_id: str
    epochs: Mapping[int, int]
    damaged_ranges: int = 0
    damaged_bytes: int = 0
    repaired_records: int = 0
    scrubbed_timestamp_ms: int = 0

    @classmethod
    def of(
        cls,
        status: replica_pb2.GetReplicationStatusResponse,
        master: replica_pb2.GetReplicationStatusResponse | None,
    ) -> Self:
        """Create a description from the status of a replica and the status of its master.

        `master` is None if the master did not answer.
        """
        log = status.replica
        is_master = status.role == "master"
        seen = _seen_by(master, log.replica_id)
        # Without a master, use the ids that the replica has read from etcd.
        members = tuple(status.set_at_coordinator if master is None else master.master.in_sync)
        return _like(
            cls,
            status,
            broker_name=log.broker_name,
            replica_id=log.replica_id,
            epoch=log.epoch,
            in_sync=log.replica_id in members if members else None,
            connected=True if is_master else seen.connected if seen else None,
            lag_bytes=0 if is_master else seen.lag_bytes if seen else None,
            behind_ms=0 if is_master else seen.behind_ms if seen and seen.behind_ms >= 0 else None,
            clock_offset_ms=0 if is_master else _clock_offset(seen),
            synchronous=status.master.synchronous if is_master else None,
            required_replicas=status.master.required_replicas if is_master else None,
            in_sync_replicas=members if is_master or (master is None and members) else None,
            lowest_offset=log.lowest_offset,
            end_offset=log.end_offset,
            confirmed_offset=log.confirmed_offset,
            coordinator_reachable=(
                status.coordinator_reachable if status.HasField("coordinator_reachable") else None
            ),
            store_id=log.store_id,
            epochs={entry.epoch: entry.start_offset for entry in log.epochs},
        )

    @property
    def copied_percent(self) -> int | None:
        """The part of its master's log that a copying replica has copied, in percent.

        None if the replica does not copy a log or does not know the size of the log.
        """
        whole = self.master_end_offset - self.lowest_offset
        if not self.copying or whole <= 0:
            return None
        return min(100, 100 * (self.end_offset - self.lowest_offset) // whole)

    @property
    def reach(self) -> tuple[int, int]:
        """The last position in the log, as (epoch, end offset). The highest value is furthest.

        An epoch that begins after the end of the log does not count.
        """
        begun = (epoch for epoch, start in self.epochs.items() if start <= self.end_offset)
        return max(begun, default=0), self.end_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionResult:
    """The result of a promotion.

    `handed_over` is true if the previous master stopped in an orderly way, so that no send failed.
    It is false if that master could not be reached. `was_master` is true if the replica was already
    the master.
    """

    broker_name: str
    replica_id: int
    address: str
    epoch: int
    handed_over: bool
    was_master: bool

    @classmethod
    def of(cls, place: tuple[str, int, str], response: replica_pb2.PromoteResponse) -> Self:
        """Create a result. `place` is the broker name, replica id and address."""
        name, replica_id, address = place
        return _like(cls, response, broker_name=name, replica_id=replica_id, address=address)


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedFile:
    """A part of a replica's log that was cut off because it differs from the master's log.

    The replica keeps the part in a file. `address` is the address of the replica. `epoch` is the
    epoch in which the part was written, as far as the replica knew. `begin_offset` is the physical
    offset of the cut. `size` is in bytes.
    """

    broker_name: str
    replica_id: int
    address: str
    name: str
    epoch: int
    begin_offset: int
    size: int

    @classmethod
    def of(cls, place: tuple[str, int, str], file: replica_pb2.DivergedFile) -> Self:
        """Create a description. `place` is the broker name, replica id and address."""
        name, replica_id, address = place
        return _like(cls, file, broker_name=name, replica_id=replica_id, address=address)


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedMessage:
    """A message in a part of a log that was cut off.

    `topic` and `queue_id` name its queue, or its destination after a delay. `kind` is "message",
    "delayed", "retry", "dead letter" or "half message"; a half message is not sent again.
    `physical_offset` is its offset in the log before the cut. `stored` is true if a broker has a
    message of this topic with this id and at least the same `reconsume_times`.
    """

    topic: str
    kind: str
    message_id: str
    keys: str
    tag: str
    body_size: int
    queue_id: int
    reconsume_times: int
    physical_offset: int
    store_timestamp_ms: int
    stored: bool
    record: Record = field(repr=False)

    @property
    def is_missing(self) -> bool:
        """True if the message should be sent again."""
        return not self.stored and self.kind != "half message"


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedPage:
    """A page of messages of a part that was cut off.

    `next_position` is the start of the next page. If it does not advance and the page is empty, the
    file has ended. `internal_count` counts records that are not messages of clients.
    `corrupted_count` counts records that failed their check.
    """

    messages: Sequence[DivergedMessage]
    next_position: int
    internal_count: int
    corrupted_count: int


def _seen_by(
    master: replica_pb2.GetReplicationStatusResponse | None, replica_id: int
) -> replica_pb2.FollowerStatus | None:
    followers = master.master.followers if master is not None else ()
    return next((each for each in followers if each.replica_id == replica_id), None)


def _clock_offset(seen: replica_pb2.FollowerStatus | None) -> int | None:
    if seen is None or not seen.HasField("clock_offset_ms"):
        return None
    return seen.clock_offset_ms


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """An option of a running process.

    Attributes:
        address: The address of the process.
        key: RocketMQ's name of the option, or ours.
        value: The present value as text. Secrets are replaced by stars.
        source: From where the value comes: default, file, environment, run time, command line.
        changeable: Whether it can be changed at run time.
    """

    address: str
    key: str
    value: str
    source: str
    changeable: bool


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A process whose options were changed.

    Attributes:
        address: The address of the process.
        without_effect: Keys that were kept, and have no effect while its command line sets them.
    """

    address: str
    without_effect: tuple[str, ...]


# ---- users and policies ----


@dataclass(frozen=True, slots=True)
class UserDescription:
    """A user, without its secrets."""

    username: str
    # Whether calls of the user are served.
    enabled: bool
    # Whether the user may do everything.
    super: bool
    # The number of secrets: 2 while a secret is being changed.
    secrets: int

    @classmethod
    def of(cls, info: access_pb2.UserInfo) -> Self:
        return _like(cls, info)


@dataclass(frozen=True, slots=True)
class PolicyDescription:
    """A policy of a user."""

    # "Topic:orders", "Group:a*", "Namespace:n", "Cluster:c" or "*".
    resource: str
    # Of All, Any, Pub, Sub, Create, Update, Delete, Get and List.
    actions: tuple[str, ...]
    # ALLOW or DENY.
    decision: str = "ALLOW"
    # CUSTOM, or DEFAULT, which counts only if no CUSTOM policy matches.
    policy_type: str = "CUSTOM"
    # Addresses and networks from which it counts; empty for any.
    source_ips: tuple[str, ...] = ()

    def __str__(self) -> str:
        sources = f" from {','.join(self.source_ips)}" if self.source_ips else ""
        actions = ",".join(self.actions)
        return f"{self.decision} {actions} on {self.resource}{sources} ({self.policy_type})"

    @classmethod
    def of(cls, policy: access_pb2.Policy) -> Self:
        return cls(
            resource=policy.resource,
            actions=tuple(policy.actions),
            decision="DENY" if policy.deny else "ALLOW",
            policy_type="DEFAULT" if policy.is_default else "CUSTOM",
            source_ips=tuple(policy.source_ips),
        )

    def message(self) -> access_pb2.Policy:
        return access_pb2.Policy(
            resource=self.resource,
            actions=self.actions,
            source_ips=self.source_ips,
            deny=self.decision == "DENY",
            is_default=self.policy_type == "DEFAULT",
        )


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """A decision whether a user may do something, with its reason."""

    allowed: bool
    # The policy that decides; None if no policy matches, or if the user is SUPER or disabled.
    deciding: PolicyDescription | None
    enabled: bool
    super: bool

    @property
    def reason(self) -> str:
        """Return one clause that names the reason."""
        if not self.enabled:
            return "the user is disabled"
        if self.super:
            return "the user is SUPER"
        return f"decided by {self.deciding}" if self.deciding else "no policy matches"

    @classmethod
    def of(cls, answer: access_pb2.TestAccessResponse) -> Self:
        found = answer.deciding if answer.HasField("deciding") else None
        deciding = None if found is None else PolicyDescription.of(found)
        return _like(cls, answer, deciding=deciding)


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """The rates of a user, a client or an address, at each process. 0: unlimited."""

    # "User:NAME", "Client:ID" or "Address:HOST"; the name * is the default of its kind.
    subject: str
    calls: int = 0
    # Messages that the client sends, and the bytes of their bodies.
    messages_in: int = 0
    bytes_in: int = 0
    # Messages that the client receives, and the bytes of their records.
    messages_out: int = 0
    bytes_out: int = 0

    @classmethod
    def of(cls, quota: access_pb2.Quota) -> Self:
        return _like(cls, quota)


@dataclass(frozen=True, slots=True)
class AccessChange:
    """A change of users or policies.

    `changed_at` is the name server that stored it. `lacking` has the reason for each process that
    does not have the change yet; such a process gets it when it is reachable again. If another
    command made a newer change at the same time, the reason says so: this one may be lost.
    """

    changed_at: str
    lacking: Mapping[str, str]
