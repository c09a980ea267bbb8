"""Implement the calls that lease messages at a source, for topics and for lite topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from aerobee.broker.v1 import lite_pb2, message_pb2, pop_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.leasing.lite_subscription import LiteSubscription
from aerobee_client.leasing.receiving.answers import Answer, Batch, Source
from aerobee_cluster.receiving import REPEATED_S, RETRY_S
from aerobee_cluster.transport import Q, R
from aerobee_wire import rpcs
from aerobee_wire.queues.lite import lease_topic_of
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError


@dataclass(frozen=True, slots=True)
class Receive:
    """The arguments of one call of `receive`.

    `subscriptions` are those of the topics to receive from. `attempt_id` is the name that the
    caller gave to this receive, or "".
    """

    subscriptions: Mapping[str, message_pb2.Subscription]
    max_messages: int
    invisible_duration_ms: int
    deadline_s: float  # in the loop's time
    attempt_id: str = ""


class Attempt(NamedTuple):
    """The name of a pop, or "" if it has none.

    `again` is true if an earlier pop with this name may have leased messages.
    """

    name: str = ""
    again: bool = False


class Pops(Protocol):
    """The broker calls of one kind of consumer.

    If `named`, each pop gets a name, so that a pop whose answer was lost can be repeated. If
    `held`, brokers may hold pops until messages arrive, and any receive may get these messages.
    Otherwise a receive pops at a source after that source has reported a message. If `apart`,
    receives of different sizes do not share messages. `failures` counts failed requests.
    """

    named: bool
    held: bool
    apart: bool
    failures: int

    async def pop(
        self,
        source: Source,
        asked: Receive,
        attempt: Attempt,
        *,
        hold_s: float,
        answer_s: float,
    ) -> Answer:
        """Lease messages. Raises MqError.

        The broker may hold the call for `hold_s` until a message arrives. The answer may take
        `answer_s` longer.
        """
        ...

    async def has_message(
        self, source: Source, asked: Receive, *, hold_s: float, answer_s: float
    ) -> bool:
        """Check for a message without leasing it. May report stale positives. Raises MqError."""
        ...

    async def is_repeated(self, source: Source, attempt_id: str) -> bool:
        """Return whether a source has leased messages to this attempt and would repeat them."""
        ...


class TopicPops:
    """Leases messages of topics.

    If `fifo`, the application consumes the messages in the order of each message group. `start` is
    the position where the group begins in a queue in which it has no offset.
    """

    apart = False

    def __init__(
        self, instance: ClientInstance, consumer_group: str, *, fifo: bool, start: pop_pb2.PopStart
    ) -> None:
        self.named = fifo
        self.held = not fifo
        self.failures = 0
        self._instance = instance
        self._consumer_group = consumer_group
        self._start = start

    async def pop(
        self,
        source: Source,
        asked: Receive,
        attempt: Attempt,
        *,
        hold_s: float,
        answer_s: float,
    ) -> Answer:
        request = pop_pb2.PopRequest(
            consumer_group=self._consumer_group,
            topic=source.topic,
            max_messages=asked.max_messages,
            invisible_duration_ms=asked.invisible_duration_ms,
            poll_duration_ms=round(hold_s * 1_000),
            subscription=asked.subscriptions[source.topic],
            fifo=self.named,
            attempt_id=attempt.name,
            start=self._start,
            client_id=self._instance.client_id,
        )
        response = await self._call(source, rpcs.POP, request, hold_s + answer_s)
        now_ms = self._instance.now_ms_at(source.broker_name) if attempt.again else None
        return Answer([Batch(request, response)], now_ms)

    async def has_message(
        self, source: Source, asked: Receive, *, hold_s: float, answer_s: float
    ) -> bool:
        request = pop_pb2.NotificationRequest(
            consumer_group=self._consumer_group,
            topic=source.topic,
            poll_duration_ms=round(hold_s * 1_000),
            subscription=asked.subscriptions[source.topic],
        )
        try:
            answer = await self._call(source, rpcs.NOTIFICATION, request, hold_s + answer_s)
        except MqError as error:
            if error.code is not Code.REQUEST_CODE_NOT_SUPPORTED:
                raise
            await asyncio.sleep(RETRY_S)
            return True  # an older broker: each waiting receive pops once a second
        return answer.has_message

    async def is_repeated(self, source: Source, attempt_id: str) -> bool:
        request = pop_pb2.NotificationRequest(
            consumer_group=self._consumer_group, topic=source.topic, attempt_id=attempt_id
        )
        try:
            answer = await self._instance.call_broker(
                source.broker_name, rpcs.NOTIFICATION, request, timeout_s=REPEATED_S
            )
        except MqError:
            return False
        return answer.is_repeated

    async def _call(self, source: Source, rpc: Rpc[Q, R], request: Q, timeout_s: float) -> R:
        try:
            return await self._instance.call_broker(
                source.broker_name, rpc, request, timeout_s=timeout_s
            )
        except MqError:
            self.failures += 1
            raise


class LitePops:
    """Leases messages of lite topics.

    A call returns the available messages of all lite topics of the client, in order within each
    lite topic. A broker gets the subscriptions of the client before the first pop, and after a
    failure.
    """

    named = True
    held = True
    # Only one batch of a lite topic is on lease at a time, and one receive gets the whole batch.
    apart = True

    def __init__(
        self, instance: ClientInstance, consumer_group: str, subscription: LiteSubscription
    ) -> None:
        self.failures = 0
        self._instance = instance
        self._consumer_group = consumer_group
        self._subscription = subscription

    async def pop(
        self, source: Source, asked: Receive, attempt: Attempt, *, hold_s: float, answer_s: float
    ) -> Answer:
        request = lite_pb2.LitePopRequest(
            consumer_group=self._consumer_group,
            parent=source.topic,
            client_id=self._instance.client_id,
            max_messages=asked.max_messages,
            invisible_duration_ms=asked.invisible_duration_ms,
            poll_duration_ms=round(hold_s * 1_000),
            attempt_id=attempt.name,
        )
        since = self._subscription.changes
        try:
            await self._subscription.ensure(source.broker_name)
            response = await self._instance.call_broker(
                source.broker_name, rpcs.LITE_POP, request, timeout_s=hold_s + answer_s
            )
        except MqError:
            self.failures += 1
            self._subscription.doubt(source.broker_name)
            raise
        self._subscription.lost(response.lost, since)
        batches = [self._batch(source, batch) for batch in response.batches]
        now_ms = self._instance.now_ms_at(source.broker_name) if attempt.again else None
        return Answer(batches, now_ms)

    async def has_message(
        self, source: Source, asked: Receive, *, hold_s: float, answer_s: float
    ) -> bool:
        """Report the client's subscriptions to a broker that failed. Return True on success."""
        await self._subscription.report(source.broker_name)
        return True

    async def is_repeated(self, source: Source, attempt_id: str) -> bool:
        """Return False, because receives of lite topics have no names."""
        return False

    def _batch(self, source: Source, batch: lite_pb2.LiteMessages) -> Batch:
        asked = pop_pb2.PopRequest(
            consumer_group=self._consumer_group,
            topic=lease_topic_of(source.topic, batch.lite_topic),
            fifo=True,
        )
        return Batch(asked, batch.messages)
