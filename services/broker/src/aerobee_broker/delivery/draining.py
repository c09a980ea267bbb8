"""Draining: a broker rejects new messages of producers until it is empty and can be removed.

Its topics stay readable. Consumption, retries, delayed messages and open transactions continue on
this broker. After a restart, the broker continues to drain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import structlog

from aerobee_broker.delivery.gauges import Backlog
from aerobee_broker.delivery.lite.lag import LiteLag
from aerobee_broker.delivery.pop.lease_space import LeaseSpaces
from aerobee_broker.delivery.pull.offsets import OffsetQueries
from aerobee_broker.metadata.persistent_table import PersistentTable
from aerobee_broker.registry.broker_permission import Drain
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock
from aerobee_wire import topics as names
from aerobee_wire.status import MqError

# A client that is refused learns the route at once, and others learn it from their name server.
QUIET_MS = 2_000


@dataclass(frozen=True, slots=True)
class Remaining:
    """The numbers of messages that a draining broker still has. Zero counts are left out.

    Attributes:
        draining_since_ms: The time at which draining began; 0 if the broker does not drain.
        lags: (consumer group, topic, number of messages that the group has not consumed).
        in_flight: The number of messages that were popped and not acknowledged.
        delayed_messages: Name of a delay queue → number of messages that wait in it.
        half_messages: Topic → number of half messages.
        dead_letters: Dead-letter topic → number of messages. Draining does not wait for them, so
            they become unavailable when the broker is removed.
        unread_topics: Topic that no group reads → number of messages. Draining does not wait for
            these messages either.
    """

    draining_since_ms: int
    lags: Sequence[tuple[str, str, int]]
    in_flight: int
    delayed_messages: Mapping[str, int]
    half_messages: Mapping[str, int]
    dead_letters: Mapping[str, int]
    unread_topics: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining:
    clock: Clock
    drain: Drain
    saved_drain: PersistentTable
    store: MessageStore
    topics: TopicRegistry
    groups: GroupRegistry
    offset_queries: OffsetQueries
    leases: LeaseSpaces
    lite_lag: LiteLag
    backlog: Backlog

    async def put(self, draining: bool) -> tuple[bool, list[str]]:
        """Begin or end draining. The change is durable on return.

        Returns whether the state changed, and the name servers that could not be notified. Raises
        MqError with the code SYSTEM_ERROR if the state cannot be saved.
        """
        # True also if an earlier call changed the state, but was cancelled or could not save it.
        changed = self.drain.put(draining) or self.drain.refuses != draining
        await self.saved_drain.save()
        unreachable = await self.topics.register_all() if changed else []
        self.drain.take_effect()
        if changed:
            structlog.get_logger().info("draining_began" if draining else "draining_ended")
        return changed, unreachable

    async def move_producers(self) -> None:
        """Refuse producers until the process ends. Return when none has been refused for QUIET_MS.

        Consumers are served until then. A restart ends this state, because it is not saved.
        """
        self.drain.begin_stop()
        try:
            await self.topics.register_all()
        except MqError as error:  # a disk that fails: producers are refused all the same
            structlog.get_logger().warning("topics_not_registered", reason=error.message)
        self.drain.take_effect()
        began_ms, quiet_ms = self.clock.monotonic_ms(), 0
        while quiet_ms < QUIET_MS:
            await asyncio.sleep((QUIET_MS - quiet_ms) / 1_000)
            quiet_ms = self.clock.monotonic_ms() - max(began_ms, self.drain.refused_ms)

    async def remaining(self) -> Remaining:
        """Return the numbers of messages that are still on this broker.

        Raises StoreReadError or OSError if a lite topic cannot be read.
        """
        in_flight = self.leases.in_flight()
        bound = dict(self.lite_lag.bound())
        lags = [lag for lag in self._lags() if bound.get(lag[0]) != lag[1]]
        for consumer_group, parent in bound.items():
            total = await self.lite_lag.total(consumer_group, parent)
            lags.append((consumer_group, parent, total))
        read = {topic for _, topic, _ in lags}
        stored = {
            config.topic: messages
            for config in self.topics.table.all()
            if not self.topics.is_system(config.topic) and (messages := self._stored(config.topic))
        }
        return Remaining(
            draining_since_ms=self.drain.since_ms,
            lags=[lag for lag in lags if lag[2]],
            in_flight=in_flight,
            delayed_messages=self.backlog.delayed(),
            half_messages=self.backlog.transactions.table.by_topic(),
            dead_letters={
                topic: count for topic, count in stored.items() if names.is_dead_letter(topic)
            },
            unread_topics={
                topic: count
                for topic, count in stored.items()
                if topic not in read and names.group_of(topic) is None
            },
        )

    def _lags(self) -> Iterator[tuple[str, str, int]]:
        """Yield (group, topic, lag) for each topic that a group subscribes to or has offsets in."""
        for group in self.groups.table.all():
            consumer_group = group.consumer_group
            if not self.groups.is_system(consumer_group):
                for topic in self.offset_queries.topics_of(consumer_group):
                    yield consumer_group, topic, self.offset_queries.lag(consumer_group, topic)

    def _stored(self, topic: str) -> int:
        """Return the number of messages of a topic that the store still has."""
        return sum(
            self.store.max_offset(topic, queue_id) - self.store.min_offset(topic, queue_id)
            for queue_id in self.store.queues(topic)
        )
