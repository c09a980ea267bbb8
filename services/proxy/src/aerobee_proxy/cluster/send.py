"""Choose the queues of messages, and send the messages in batches.

Brokers that are unavailable or refuse every message are avoided. Some messages can go to one broker
only, because of their message group or because no other broker has the topic. Such a message waits
until its broker is available, and is then sent once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from aerobee.broker.v1.message_pb2 import Message
from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute

from aerobee_proxy.cluster.batches import BrokerBatches, SendOutcome
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_creation import TopicCreation
from aerobee_proxy.cluster.topic_route import (
    PRIORITY,
    BrokerQueue,
    accepted_types,
    untyped_brokers,
    writable_queues,
)
from aerobee_proxy.counts import ProxyCounts
from aerobee_wire.queues.choice import queue_of_group, queues_of_priority
from aerobee_wire.queues.group_queues import GroupQueues, being_elected
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import java_hash

if TYPE_CHECKING:
    from aerobee_proxy.traces import ProxyTraces

T = TypeVar("T")

MAX_SEND_ROUTES = 10_000  # topics whose routes and turns are kept


class RoundRobin:
    """Spreads messages without a message group over the queues of their topic."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}  # by topic

    def __len__(self) -> int:
        """Return the number of topics in memory."""
        return len(self._next)

    def next(self, topic: str, queues: Sequence[T]) -> T:
        """Return the next queue of `queues`, which must not be empty."""
        turn = self._next.get(topic)
        if turn is None and len(self._next) >= MAX_SEND_ROUTES:
            self._next.clear()
        turn = (java_hash(topic) if turn is None else turn) % len(queues)
        self._next[topic] = turn + 1
        return queues[turn]


@dataclass(frozen=True, slots=True)
class SendRoute:
    """The parts of a topic's route that are needed to send messages."""

    topic: str
    queues: Sequence[BrokerQueue]  # the writable queues, sorted
    group_queues: GroupQueues[BrokerQueue]  # the queues for message groups
    accepted_types: tuple[str, ...]
    untyped_brokers: Sequence[str]  # brokers where the first message decides the topic's type
    by_priority: bool  # only priority messages are accepted; queues stand for priorities
    electing: frozenset[str]  # brokers whose master is being elected


class MessageSender:
    def __init__(
        self,
        topic_creation: TopicCreation,
        route_cache: RouteCache,
        calls: BrokerCalls,
        batches: BrokerBatches,
        counts: ProxyCounts,
    ) -> None:
        self._topic_creation = topic_creation
        self._route_cache = route_cache
        self._calls = calls
        self._availability = calls.availability
        self._batches = batches
        self._counts = counts
        self._round_robin = RoundRobin()
        self.traces: ProxyTraces | None = None  # set if there is a receiver of spans
        self._send_routes: dict[str, tuple[TopicRoute, SendRoute]] = {}

    async def route(self, topic: str, creator: str = "") -> SendRoute:
        """Return the route of a topic, by its stored name. Create the topic if that is allowed.

        The result is cached until the route changes, because thousands of messages use it. Raises
        MqError, for example with the code TOPIC_NOT_EXIST or NAMESRV_UNREACHABLE.
        """
        route = await self._topic_creation.route(topic, creator)
        known = self._send_routes.get(topic)
        if known is not None and known[0] is route:
            return known[1]
        if len(self._send_routes) >= MAX_SEND_ROUTES:
            self._send_routes.clear()
        accepted = accepted_types(route)
        group_queues = known[1].group_queues if known else GroupQueues(BrokerQueue)
        group_queues.update(route, _now_ms())
        made = SendRoute(
            topic,
            writable_queues(route),
            group_queues,
            accepted,
            untyped_brokers(route),
            by_priority=accepted == (PRIORITY,),
            electing=frozenset(being_elected(route)),
        )
        self._send_routes[topic] = (route, made)
        return made

    async def specified_route(self, route: SendRoute, message_type: str) -> SendRoute:
        """Set the type of a topic at brokers where it has no type yet, and return its new route.

        `message_type` is the type of the first message. Raises the errors of `route`, and MqError
        if no broker answers.
        """
        await self._topic_creation.specify_type(route.topic, message_type)
        return await self.route(route.topic)

    async def changed_route(self, route: SendRoute) -> SendRoute | None:
        """Return the new route of a topic after a broker refused messages.

        Return None if the queues are unchanged, no broker accepts messages, or no name server
        answers.
        """
        try:
            current = await self.route(route.topic)
            if current.queues == route.queues:
                self._route_cache.expire(route.topic)
                current = await self.route(route.topic)
        except MqError:
            return None
        return current if current.queues and current.queues != route.queues else None

    def choose_queue(self, route: SendRoute, message_group: str, priority: int) -> BrokerQueue:
        """Choose the queue of a message.

        `message_group` is "" for a message without a group. Raises MqError with the code
        NO_PERMISSION if no queue is writable.
        """
        queues = route.group_queues.at(_now_ms()) if message_group else route.queues
        if not queues:
            raise MqError(
                Code.NO_PERMISSION,
                f"no writable queue: no broker accepts messages of topic {route.topic}; retry when "
                "one is back, or give the topic the permission to write",
            )
        if route.by_priority:
            queues = queues_of_priority(queues, priority)
        if message_group:
            return queue_of_group(message_group, queues)
        if self._availability.any_avoided or route.electing:
            is_avoided, electing = self._availability.is_avoided, route.electing
            queues = [
                queue
                for queue in queues
                if queue.broker_name not in electing and not is_avoided(queue.broker_name)
            ] or queues
        return self._round_robin.next(route.topic, queues)

    async def send(
        self, messages: Sequence[tuple[BrokerQueue, Message]]
    ) -> list[SendOutcome | Exception]:
        """Send messages to their queues. Return the broker's answer or the failure of each."""
        traces = self.traces
        begin_ns = traces.now_ns() if traces is not None else 0
        if self._availability.any_away:
            names = {queue.broker_name for queue, _ in messages}
            await asyncio.gather(*map(self._calls.wait_until_back, names))
        # Queue all before awaiting the first, so that they keep their order and share a batch.
        send = self._batches.send
        futures = [send(queue.broker_name, message) for queue, message in messages]
        outcomes: list[SendOutcome | Exception] = []
        failed = 0
        try:
            for (queue, _), future in zip(messages, futures, strict=True):
                try:
                    outcomes.append(await future)
                except Exception as error:
                    outcomes.append(_client_error(error, queue.broker_name))
                    failed += 1
        finally:  # if the caller was cancelled, the rest need not be sent
            for future in futures[len(outcomes) :]:
                future.cancel()
        self._counts.sent += len(outcomes) - failed
        if traces is not None:
            for (_, message), outcome in zip(messages, outcomes, strict=True):
                reason = str(outcome) if isinstance(outcome, Exception) else ""
                traces.sent(message, begin_ns, reason)
        return outcomes


def _client_error(failure: Exception, broker_name: str) -> Exception:
    """Convert the failure of a send to the error for the client.

    A broker that is not registered at the name servers is reported as unavailable. The client then
    retries, because another broker may not be able to store the message.
    """
    if not isinstance(failure, MqError) or failure.code is not Code.BROKER_NOT_EXIST:
        return failure
    return MqError(
        Code.BROKER_UNREACHABLE,
        f"broker {broker_name}, which has the message group or lite topic, is unavailable: retry",
    )


def _now_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
