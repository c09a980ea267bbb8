"""Send: stores messages of producers, and responds when they are durable.

A request takes one of three paths. The single path and the fast path store the same records. The
batch path does not add the broker's properties.

    path       entry              accepts
    single     Sender.send        messages of any topics and queues, with delays, transactions,
                                  a consumer's own retries, or missing unique keys
    fast path  Sender.send_fast   messages with encoded properties that only need to be stored;
                                  for other messages, the caller must use `send`
    batch      BatchSender.send   many messages of one topic and queue (batch.py)

The request selects the path (MessageRpcs.send). A batch has its own field in the request. The fast
path is tried if the request asks for a response that contains only queue offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.retry.send_back import RetryRouter
from aerobee_broker.delivery.send.admission import (
    SENDER_SYS_FLAGS,
    Admission,
    check_body,
    check_properties,
    check_sys_flag,
    metric_type,
)
from aerobee_broker.delivery.send.broker_properties import BrokerProperties
from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.store.messages import Appended, NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.record import TRANSACTION_MASK

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces

# The message type in the metrics, by the topic in which a message is stored.
_MESSAGE_TYPES = {
    names.SCHEDULE_TOPIC: "delay",
    names.TIMER_TOPIC: "delay",
    names.HALF_TOPIC: "transaction",
}


@dataclass(slots=True)
class SendMessage:
    """A message to send.

    If `queue_id` is None, the broker chooses the queue. `reconsume_times` is the number of failed
    attempts to consume the message. It is 0 unless the message is sent to a retry topic.
    """

    topic: str
    body: bytes
    properties: dict[str, str]
    queue_id: int | None = None
    flag: int = 0
    sys_flag: int = 0
    born_timestamp_ms: int = 0
    born_host: bytes = b""
    reconsume_times: int = 0


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of a send.

    Attributes:
        queue_id: The queue of the message in its own topic, even if the message is delayed.
        queue_offset: The offset of the stored record. For a delayed message or a half message, it
            is an offset in the system topic in which the message waits.
        physical_offset: The offset of the stored record in the commit log.
        unique_message_id: The unique key of the message.
        transaction_id: The id of the transaction; empty if the message is not transactional.
        deliver_ms: The delivery time in milliseconds since the epoch, until which the message can
            be recalled. 0 if the message does not wait for its own time.
    """

    queue_id: int
    queue_offset: int
    physical_offset: int
    unique_message_id: str
    transaction_id: str = ""
    deliver_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    log: DurableLog
    admission: Admission
    properties: BrokerProperties
    delays: DelayRouter
    retries: RetryRouter
    transactions: Transactions
    metrics: BrokerMetrics
    clock: Clock
    traces: BrokerTraces | None = None

    async def send(
        self, messages: Sequence[SendMessage], queue_count: int = 0, creator: str = ""
    ) -> list[SendResult]:
        """Store all messages or none of them, and return a result for each message.

        Topics that do not exist are created with `queue_count` queues for `creator`.
        """
        traces = self.traces
        begin_ns = traces.now_ns() if traces is not None else 0
        routed: list[NewMessage] = []
        queue_ids = []
        completed = []
        for message in messages:
            config = await self.admission.topic(message.topic, queue_count, creator)
            queue_id = self.admission.queue(config, message.queue_id)
            check_body(len(message.body), self.admission.max_body_size)
            properties = self.properties.complete(message.properties)
            check_sys_flag(message.sys_flag, properties)
            routed.append(await self._route(message, queue_id, properties))
            queue_ids.append(queue_id)
            completed.append(properties)
        self.admission.check_present({message.topic for message in messages})
        self.admission.check_present(
            {stored.topic for stored in routed if names.is_dead_letter(stored.topic)}
        )
        store_begin_ns = traces.now_ns() if traces is not None else 0
        if any(stored.topic == names.HALF_TOPIC for stored in routed):
            appended = await self.transactions.begin(routed, completed)
        else:
            appended = await self.log.put(routed, wait=not all(map(_does_not_wait, messages)))
        if traces is not None:
            for message, stored in zip(messages, routed, strict=True):
                traces.sent(
                    message.topic,
                    stored.properties,
                    begin_ns=begin_ns,
                    store_begin_ns=store_begin_ns,
                )
        for message, stored, decoded in zip(messages, routed, completed, strict=True):
            usual = "fifo" if props.SHARDING_KEY in decoded else "normal"
            message_type = _MESSAGE_TYPES.get(stored.topic, usual)
            self.metrics.stored(message.topic, 1, len(message.body), message_type)
        return [
            SendResult(
                queue_id,
                offsets.queue_offset,
                offsets.physical_offset,
                properties[props.UNIQUE_KEY],
                properties[props.TRANSACTION_ID] if stored.topic == names.HALF_TOPIC else "",
                int(properties[props.TIMER_OUT_MS]) if stored.topic == names.TIMER_TOPIC else 0,
            )
            for queue_id, offsets, properties, stored in zip(
                queue_ids, appended, completed, routed, strict=True
            )
        ]

    async def send_fast(
        self, messages: Sequence[NewMessage], queue_count: int = 0, creator: str = ""
    ) -> list[Appended] | None:
        """Store all messages or none of them, at a third of the cost of `send`.

        If a message has a queue id below 0, the broker chooses its queue. Returns None if the
        caller must use `send` instead.
        """
        if not self.properties.fit_fast_path(messages):
            return None
        traces = self.traces
        begin_ns = traces.now_ns() if traces is not None else 0
        admission, max_body_size = self.admission, self.admission.max_body_size
        topic, config = "", None
        # (topic, message type) → messages, bytes of their bodies
        totals: dict[tuple[str, str], list[int]] = {}
        added, now_ms = self.properties.encoded, self.clock.now_ms()
        for message in messages:
            if config is None or message.topic != topic:
                topic = message.topic
                config = await admission.topic(topic, queue_count, creator)
                total = totals.setdefault((topic, metric_type(config)), [0, 0])
            message.queue_id = admission.queue(config, message.queue_id)
            size = len(message.body)
            check_body(size, max_body_size)
            if message.sys_flag & ~SENDER_SYS_FLAGS:
                check_sys_flag(message.sys_flag, {})
            message.properties += added
            check_properties(len(message.properties))
            message.born_timestamp_ms = message.born_timestamp_ms or now_ms
            total[0] += 1
            total[1] += size
        if len(totals) > 1:
            admission.check_present({topic for topic, _ in totals})
        store_begin_ns = traces.now_ns() if traces is not None else 0
        appended = await self.log.put(messages)
        if traces is not None:
            for message in messages:
                traces.sent(
                    message.topic,
                    message.properties,
                    begin_ns=begin_ns,
                    store_begin_ns=store_begin_ns,
                )
        for (topic, message_type), (count, size) in totals.items():
            self.metrics.stored(topic, count, size, message_type)
        return appended

    async def _route(
        self, message: SendMessage, queue_id: int, properties: dict[str, str]
    ) -> NewMessage:
        """Return the record to store for a message.

        The record belongs to the message's own topic, or to the topic of half messages, delayed
        messages or dead letters.
        """
        is_retry = names.is_retry(message.topic)
        transactional = half_messages.is_transactional(properties)
        if transactional and is_retry:
            # A retried message was committed before it was consumed, so it is stored directly.
            del properties[props.TRANSACTION_PREPARED]
            transactional = False
        if transactional:
            self.admission.check_transactions(len(self.transactions))
            half_messages.name_transaction(properties)
        routed = NewMessage(
            topic=message.topic,
            queue_id=queue_id,
            body=message.body,
            properties=b"",
            flag=message.flag,
            sys_flag=message.sys_flag & ~TRANSACTION_MASK,
            born_timestamp_ms=message.born_timestamp_ms or self.clock.now_ms(),
            born_host=message.born_host,
        )
        encoded = props.encode(properties)
        if not is_retry:
            check_properties(len(encoded))
        elif await self.retries.route(routed, properties, message.reconsume_times):
            encoded = props.encode(properties)
        if transactional:
            self.delays.check(properties)
            return half_messages.as_half(routed, properties)
        delayed = self.delays.route(routed, properties)
        if delayed is not None:
            return delayed
        routed.properties = encoded
        return routed


def _does_not_wait(message: SendMessage) -> bool:
    return message.properties.get(props.WAIT) == "false"
