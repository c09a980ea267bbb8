"""Wait until live consumer groups have settled all messages that are visible to them.

A message is settled when it was consumed, sent back or dead-lettered, and the broker knows that.

A classic consumer reports its progress with each pull. If it has messages left, this module wakes
its waiting pulls, so that it pulls again. Pull consumers and simple consumers decide themselves
when to ask for messages, so this module does not wait for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import ClientType

from aerobee_broker.broker import Broker
from aerobee_broker.delivery.pop.in_flight import (
    INVISIBLE,
    LEASE_IDS_PER_MS,
    VISIBLE,
    InFlightMessage,
)
from aerobee_broker.registry.clients import Client
from aerobee_broker.registry.consumers import ConsumeType, MessageModel
from aerobee_chassis.clock import real_time
from aerobee_proxy.app import ProxyApp
from aerobee_proxy.v2.sessions import Session
from aerobee_suite.broker_runner import BrokerRunner
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import retry_topic

POLL_S = 0.005
TIMEOUT_MS = 10_000
PUSH_CLIENTS = frozenset({ClientType.PUSH_CONSUMER, ClientType.LITE_PUSH_CONSUMER})


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A queue with unsettled messages. `queue_id` is None for a topic that is consumed by pop."""

    consumer_group: str
    topic: str
    queue_id: int | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    runner: BrokerRunner
    proxy: Callable[[], ProxyApp | None]

    async def wait(self, consumer_group: str = "", timeout_ms: int = 0) -> None:
        """Wait until the group, or each live group, has settled all its messages.

        Raises MqError with the code REQUEST_TIMEOUT, which names groups and topics. The timeout is
        in real time.
        """
        timeout_ms = timeout_ms or TIMEOUT_MS
        with real_time():
            loop = asyncio.get_running_loop()
            end = loop.time() + timeout_ms / 1_000
            while left := self._left(consumer_group):
                if loop.time() >= end:
                    raise _not_settled(left, timeout_ms)
                await asyncio.sleep(POLL_S)

    def _left(self, consumer_group: str) -> list[Unsettled]:
        broker = self.runner.running
        if broker is None:
            return []
        left = [
            *_left_by_pull(broker, consumer_group),
            *self._left_by_pop(broker, consumer_group),
        ]
        for queue in left:
            if queue.queue_id is not None:
                broker.polls.wake_pulls(queue.topic, queue.queue_id)
        return left

    def _left_by_pop(self, broker: Broker, consumer_group: str) -> Iterator[Unsettled]:
        for group, topic in self._popped():
            if consumer_group and group != consumer_group:
                continue
            for queue_id in broker.store.queues(topic):
                if _is_left_by_pop(broker, group, topic, queue_id):
                    yield Unsettled(group, topic)
                    break

    def _popped(self) -> set[tuple[str, str]]:
        """Return the pairs (group, topic) of the push consumers that are connected to the proxy.

        A pop of a topic also takes messages of the group's retry topic.
        """
        app = self.proxy()
        if app is None:
            return set()
        return {
            (session.consumer_group, topic)
            for session in app.proxy.sessions
            if session.streams
            and session.settings is not None
            and session.settings.client_type in PUSH_CLIENTS
            for topic in (*session.subscriptions, *_retry_topics(session))
        }


def _retry_topics(session: Session) -> Iterator[str]:
    """Yield the retry topic of a consumer, unless it consumes lite topics."""
    settings = session.settings
    if settings is not None and settings.client_type == ClientType.PUSH_CONSUMER:
        yield retry_topic(session.consumer_group)


def _left_by_pull(broker: Broker, consumer_group: str) -> Iterator[Unsettled]:
    offsets = broker.consuming.offset_queries.offsets
    for group, topic in _pushed(broker.clients.all()):
        if consumer_group and group != consumer_group:
            continue
        committed = offsets.of(group, topic)
        for queue_id in broker.store.queues(topic):
            low = broker.store.min_offset(topic, queue_id)
            if committed.get(queue_id, low) < broker.store.max_offset(topic, queue_id):
                yield Unsettled(group, topic, queue_id)


def _pushed(clients: list[Client]) -> set[tuple[str, str]]:
    """Return the pairs (group, topic) of classic push consumers that use clustering."""
    return {
        (group, topic)
        for client in clients
        for group, consumer in client.consumers.items()
        if consumer.consume_type is ConsumeType.PUSH
        and consumer.message_model is MessageModel.CLUSTERING
        for topic in consumer.subscriptions
    }


def _is_left_by_pop(broker: Broker, group: str, topic: str, queue_id: int) -> bool:
    queue = broker.consuming.leases.table.find(group, topic, queue_id)
    high = broker.store.max_offset(topic, queue_id)
    if queue is None:
        offset = broker.consuming.offset_queries.offsets.of(group, topic).get(queue_id)
        return (broker.store.min_offset(topic, queue_id) if offset is None else offset) < high
    return queue.cursor < high or any(map(_is_unanswered, queue))


def _is_unanswered(message: InFlightMessage) -> bool:
    """Return whether a message is visible, or still has the lease of its last delivery.

    Such a message was neither acknowledged nor rejected since its last delivery.
    """
    if message.state is VISIBLE:
        return True
    as_given = message.pop_time_ms <= message.lease_id // LEASE_IDS_PER_MS
    return message.state is INVISIBLE and as_given


def _not_settled(left: list[Unsettled], timeout_ms: int) -> MqError:
    groups = sorted({f"{each.consumer_group} (topic {each.topic})" for each in left})
    return MqError(
        Code.REQUEST_TIMEOUT,
        f"not settled within {timeout_ms / 1_000:g} s: {', '.join(groups)}: its listener is still "
        "busy, or consumption is paused",
        about=left[0].consumer_group,
    )
