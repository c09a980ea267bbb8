"""Observe sends, listener calls, transactions and recalls, and trace each of them.

The messages of the trace topic itself are not traced.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.observing.interceptors import Failure, Interceptor
from aerobee_client.send_result import SendResult
from aerobee_client.trace_topic import records
from aerobee_client.trace_topic.dispatcher import TraceDispatcher
from aerobee_client.trace_topic.records import ContextCode, MessageType
from aerobee_wire import properties as names
from aerobee_wire.topics import MAX_GROUP_CHARACTERS, TRACE_TOPIC

if TYPE_CHECKING:
    from aerobee_client.transactions.ends import HalfMessage

# RocketMQ's names of the states of a transaction.
_STATES = {"COMMIT": "COMMIT_MESSAGE", "ROLLBACK": "ROLLBACK_MESSAGE", "UNKNOWN": "UNKNOW"}
_VERDICTS = frozenset({"RECONSUME_LATER", "DEAD_LETTER"})


class TraceProducer(Protocol):
    """The part of a producer that sends trace messages."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def send(self, message: Message) -> object: ...


def producer_group(group: str, kind: str) -> str:
    """Return the name of the internal producer group for the traces of a client of `group`.

    `kind` is PRODUCE or CONSUME, as in RocketMQ.
    """
    return f"_INNER_TRACE_PRODUCER-{group}-{kind}"[:MAX_GROUP_CHARACTERS]


class MessageTraces(Interceptor):
    """The traces of one client.

    `open_producer` creates the producer that sends them, which is not started yet. A listener call
    that takes `consume_timeout_s` or longer is traced as TIME_OUT.
    """

    def __init__(
        self,
        group: str,
        open_producer: Callable[[], TraceProducer],
        *,
        consume_timeout_s: float = float("inf"),
    ) -> None:
        self._group = group
        self._open_producer = open_producer
        self._consume_timeout_s = consume_timeout_s
        self._producer: TraceProducer | None = None
        self._dispatcher = TraceDispatcher(self._send)
        self._lock = threading.Lock()
        # The begins of the sends of a message, in seconds since the epoch and of perf_counter. A
        # program may send one Message object several times at once.
        self._sends: dict[int, deque[tuple[float, float]]] = {}
        # The request id and the begin of each listener call, by the list of its messages.
        self._calls: dict[int, tuple[str, float]] = {}

    @property
    def dropped(self) -> int:
        """The number of records that were not sent."""
        return self._dispatcher.dropped

    async def start(self) -> None:
        """Start to send traces. Runs on the event loop of the client."""
        if self._producer is None:
            self._producer = self._open_producer()
            await self._producer.start()
            self._dispatcher.start()

    async def close(self) -> None:
        """Send the traces that are queued, and stop. May be called twice."""
        producer = self._producer
        if producer is None:
            return
        await self._dispatcher.close()
        self._producer = None
        await producer.close()

    async def _send(self, message: Message) -> object:
        assert self._producer is not None, "the dispatcher runs while there is a producer"
        return await self._producer.send(message)

    # ---- sends ----

    def before_send(self, message: Message) -> None:
        if message.topic != TRACE_TOPIC:
            with self._lock:
                begins = self._sends.setdefault(id(message), deque())
                begins.append((time.time(), perf_counter()))

    def follows_send(self, message: Message) -> bool:
        return id(message) in self._sends

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        ended_s = perf_counter()
        with self._lock:
            begins = self._sends[id(message)]
            began_at_s, began_s = begins.popleft()
            if not begins:
                del self._sends[id(message)]
        if result is None and error is None:
            return  # a one-way send: its outcome is unknown
        self._dispatcher.put(
            records.sent(
                timestamp_ms=int(began_at_s * 1_000),
                group=self._group,
                topic=message.topic,
                message_id="" if result is None else result.message_id,
                tag=message.tag,
                keys=message.keys,
                store_host="" if result is None else result.store_host,
                body_size=len(message.body),
                cost_ms=round((ended_s - began_s) * 1_000),
                kind=_type_of(message),
                offset_message_id="" if result is None else result.offset_message_id,
                success=error is None,
            )
        )

    def transaction_ended(
        self, half: HalfMessage, store_host: str, resolution: str, *, from_check: bool
    ) -> None:
        """Trace the end of a transaction that the broker has accepted, or an UNKNOWN."""
        self._dispatcher.put(
            records.transaction_ended(
                timestamp_ms=_now_ms(),
                group=self._group,
                topic=half.topic,
                message_id=half.transaction_id,
                tag=half.tag,
                keys=half.keys,
                store_host=store_host,
                state=_STATES[resolution],
                from_check=from_check,
            )
        )

    def recalled(self, topic: str, message_id: str) -> None:
        """Trace the recall of a delayed message."""
        self._dispatcher.put(
            records.recalled(
                timestamp_ms=_now_ms(),
                group=self._group,
                topic=topic,
                message_id=message_id,
            )
        )

    # ---- listener calls ----

    def before_consume(self, consumer_group: str, messages: Sequence[ReceivedMessage]) -> None:
        if messages[0].topic == TRACE_TOPIC:
            return
        request_id = os.urandom(16).hex().upper()
        self._calls[id(messages)] = (request_id, perf_counter())
        now_ms = _now_ms()
        for message in messages:
            self._dispatcher.put(
                records.consuming(
                    timestamp_ms=now_ms,
                    group=consumer_group,
                    request_id=request_id,
                    message_id=message.message_id,
                    retries=message.reconsume_times,
                    keys=message.keys,
                )
            )

    def after_consume(
        self,
        consumer_group: str,
        messages: Sequence[ReceivedMessage],
        failures: Sequence[Failure | None],
    ) -> None:
        call = self._calls.pop(id(messages), None)
        if call is None:
            return
        request_id, began_s = call
        elapsed_s, now_ms = perf_counter() - began_s, _now_ms()
        for message, failure in zip(messages, failures, strict=True):
            self._dispatcher.put(
                records.consumed(
                    timestamp_ms=now_ms,
                    group=consumer_group,
                    request_id=request_id,
                    message_id=message.message_id,
                    keys=message.keys,
                    cost_ms=round(elapsed_s * 1_000),
                    code=self._code_of(failure, elapsed_s),
                )
            )

    def _code_of(self, failure: Failure | None, elapsed_s: float) -> ContextCode:
        if elapsed_s >= self._consume_timeout_s:
            return ContextCode.TIME_OUT
        if failure is None:
            return ContextCode.SUCCESS
        return ContextCode.FAILED if failure.reason in _VERDICTS else ContextCode.EXCEPTION


def _type_of(message: Message) -> MessageType:
    if names.TRANSACTION_PREPARED in message.system_properties:
        return MessageType.HALF
    if message.delay_level or message.delay is not None or message.deliver_at is not None:
        return MessageType.DELAYED
    return MessageType.ORDERED if message.order_key else MessageType.NORMAL


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
