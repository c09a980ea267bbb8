"""A batch: many messages of one topic and queue, sent and stored in columns.

Properties are stored as received. The broker adds a missing UNIQ_KEY, but does not add MSG_REGION,
TRACE_ON and CLUSTER. If any message asks for a delay or a transaction, each message is checked
separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.send.admission import (
    Admission,
    check_body,
    check_properties,
    check_sys_flag,
    metric_type,
)
from aerobee_broker.delivery.send.broker_properties import BrokerProperties, asks_for_rules
from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.errors import InvalidParameter, MessageIllegal, NoPermission
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.messages import NewBatch, NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import TRANSACTION_MASK

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces

MAX_BATCH_MESSAGES = 65_536


@dataclass(slots=True)
class SendBatch:
    """A batch to send.

    Attributes:
        topic: The topic of all messages.
        body_sizes: The size of each body in bytes.
        bodies: The bodies of all messages, concatenated.
        properties_sizes: The size of each message's encoded properties in bytes. Empty if no
            message has properties.
        properties: The encoded properties of all messages, concatenated.
        flags: The flag of each message. Empty if all flags are 0.
        sys_flag: The system flag of all messages.
        queue_id: The queue of all messages. If it is None, the broker chooses the queue.
        born_timestamp_ms: The time at which the client sent the batch; 0 for the current time.
        born_host: The address of the client.
    """

    topic: str
    body_sizes: Sequence[int]
    bodies: bytes
    properties_sizes: Sequence[int] = ()
    properties: bytes = b""
    flags: Sequence[int] = ()
    sys_flag: int = 0
    queue_id: int | None = None
    born_timestamp_ms: int = 0
    born_host: bytes = b""


@dataclass(frozen=True, slots=True)
class BatchSendResult:
    queue_id: int
    first_queue_offset: int
    physical_offsets: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSender:
    log: DurableLog
    admission: Admission
    properties: BrokerProperties
    delays: DelayRouter
    metrics: BrokerMetrics
    clock: Clock
    traces: BrokerTraces | None = None

    async def send(
        self, batch: SendBatch, queue_count: int = 0, creator: str = ""
    ) -> BatchSendResult:
        """Store all messages of a batch in order, or none of them.

        If the topic does not exist, it is created with `queue_count` queues for `creator`.
        """
        traces = self.traces
        begin_ns = traces.now_ns() if traces is not None else 0
        _check(batch, self.admission.max_body_size)
        config = await self.admission.topic(batch.topic, queue_count, creator)
        queue_id = self.admission.queue(config, batch.queue_id)
        columns = self._columns(batch, queue_id)
        store_begin_ns = traces.now_ns() if traces is not None else 0
        if asks_for_rules(batch.properties):
            count = len(columns.bodies)
            messages = [self._with_rules(columns.message(number)) for number in range(count)]
            appended = await self.log.put(messages)
            first = appended[0].queue_offset
            physical = [offsets.physical_offset for offsets in appended]
        else:
            first, physical = await self.log.put_batch(columns)
        if traces is not None:
            traces.batch_sent(
                batch.topic,
                batch.properties,
                batch.properties_sizes,
                begin_ns=begin_ns,
                store_begin_ns=store_begin_ns,
            )
        self.metrics.stored(batch.topic, len(physical), len(batch.bodies), metric_type(config))
        return BatchSendResult(queue_id, first, physical)

    def _columns(self, batch: SendBatch, queue_id: int) -> NewBatch:
        sizes = batch.properties_sizes or [0] * len(batch.body_sizes)
        return NewBatch(
            batch.topic,
            queue_id,
            _slices(batch.body_sizes, batch.bodies),
            self.properties.with_unique_keys(_slices(sizes, batch.properties)),
            batch.flags,
            batch.sys_flag,
            batch.born_timestamp_ms or self.clock.now_ms(),
            batch.born_host,
        )

    def _with_rules(self, message: NewMessage) -> NewMessage:
        """Return the message as it is stored, after its properties were checked.

        If the message is delayed, it is redirected to a topic of delayed messages. Properties that
        are reserved for the broker are removed. Raises NoPermission for a transactional message.
        """
        if not asks_for_rules(message.properties):
            return message
        properties = props.decode(message.properties)
        if half_messages.is_transactional(properties):
            raise _no_transactions()
        properties.pop(props.POP_CHECK_POINT, None)
        delayed = self.delays.route(message, properties)
        if delayed is not None:
            return delayed
        message.properties = props.encode(properties)
        return message


def _slices(sizes: Sequence[int], blob: bytes) -> list[bytes]:
    ends = list(accumulate(sizes))
    return [blob[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _check(batch: SendBatch, max_body_size: int) -> None:
    count = len(batch.body_sizes)
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        problem = f"a batch has 1 to {MAX_BATCH_MESSAGES} messages, not {count}"
        raise InvalidParameter(problem, "body_sizes")
    if names.is_retry(batch.topic):
        problem = "a batch cannot go to a retry topic: send the messages one by one"
        raise MessageIllegal(problem, "topic")
    for name, sizes, blob in (
        ("body_sizes", batch.body_sizes, batch.bodies),
        ("properties_sizes", batch.properties_sizes, batch.properties),
    ):
        if sum(sizes) != len(blob):
            problem = f"{name} add up to {sum(sizes)}, but {len(blob)} bytes came"
            raise InvalidParameter(problem, name)
    for name, column in (
        ("properties_sizes", batch.properties_sizes),
        ("flags", batch.flags),
    ):
        if len(column) not in (0, count):
            problem = f"{name} has {len(column)} entries for {count} messages"
            raise InvalidParameter(problem, name)
    if batch.sys_flag & TRANSACTION_MASK:
        raise _no_transactions()
    check_sys_flag(batch.sys_flag, {})
    check_body(min(batch.body_sizes), max_body_size)
    check_body(max(batch.body_sizes), max_body_size)
    check_properties(max(batch.properties_sizes, default=0))
    props.check_sent(batch.properties)


def _no_transactions() -> NoPermission:
    return NoPermission("a batch does not accept transactional messages: send them one by one")
