"""The live clients of this broker: who produces, who consumes, and what each subscribed to.

A client is known by its heartbeats and gone after `timeout_ms` of silence, or at once when the
stream that it watches ends. Kept in memory only: after a restart the clients tell again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from aerobee_broker.filter.filter import Filter
from aerobee_chassis.clock import Clock
from aerobee_wire.topics import is_retry


class ConsumeType(Enum):
    PULL = 1
    PUSH = 2
    POP = 3


class MessageModel(Enum):
    CLUSTERING = 1
    BROADCASTING = 2


class ConsumeFrom(Enum):
    LAST_OFFSET = 0
    FIRST_OFFSET = 1
    TIMESTAMP = 2


@dataclass(frozen=True, slots=True)
class Subscription:
    topic: str
    filter: Filter
    # Milliseconds since the epoch at which the client made it; the newest of a group counts.
    version: int = 0


@dataclass(frozen=True, slots=True)
class Consumer:
    """One consumer group of one client."""

    consume_type: ConsumeType = ConsumeType.PUSH
    message_model: MessageModel = MessageModel.CLUSTERING
    consume_from: ConsumeFrom = ConsumeFrom.LAST_OFFSET
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Client:
    client_id: str
    address: str = ""
    language: str = ""
    version: str = ""
    producer_groups: frozenset[str] = frozenset()
    consumers: Mapping[str, Consumer] = field(default_factory=dict)
    last_update_timestamp_ms: int = 0
    seen_ms: int = 0  # of the clock that only goes forward
    # (group, topic, queue id) → when it pulled from there last, of the same clock
    pulled: dict[tuple[str, str, int], int] = field(default_factory=dict, compare=False)

    @property
    def is_idle(self) -> bool:
        return not self.producer_groups and not self.consumers


TELL_AGAIN_MS = 60_000
MAX_CHECKS = 1_000  # that wait on the way to one client


@dataclass(frozen=True, slots=True)
class CheckNotice:
    """The client is to be asked about a half message, by its name."""

    half_message: int


class Watch:
    """The notices for one client, on their way to it. A notice that waits is not repeated."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self._groups: set[str] = set()
        self._checks: dict[int, None] = {}
        self._news = asyncio.Event()
        self._ended = False

    def notify(self, consumer_group: str) -> None:
        self._groups.add(consumer_group)
        self._news.set()

    def check(self, half_message: int) -> bool:
        """False: too many wait already."""
        if len(self._checks) >= MAX_CHECKS:
            return False
        self._checks[half_message] = None
        self._news.set()
        return True

    def end(self) -> None:
        self._ended = True
        self._news.set()

    async def next(self) -> list[str | CheckNotice]:
        """The groups whose members changed, sorted, and what is to be asked; empty: the watch is
        over."""
        await self._news.wait()
        if self._ended:
            return []
        groups, self._groups = sorted(self._groups), set()
        checks, self._checks = self._checks, {}
        self._news.clear()
        return [*groups, *map(CheckNotice, checks)]


# Topic → what the members of a group want of it, where that is not the same.
Differences = Mapping[str, list[str]]


class Clients:
    """`notifies`: whether the members of a group are to be told of changes. `on_conflict` hears of
    a group whose members subscribe differently, once for each way in which they do, and of a group
    once a minute at most."""

    def __init__(
        self,
        clock: Clock,
        *,
        timeout_ms: int,
        notifies: Callable[[str], bool],
        on_conflict: Callable[[str, Differences], None] = lambda group, found: None,
    ) -> None:
        self._clock = clock
        self._on_conflict = on_conflict
        # What was found last, and when it was told.
        self._conflicts: dict[str, tuple[Differences, int | None]] = {}
        self._timeout_ms = timeout_ms
        self._notifies = notifies
        self._clients: dict[str, Client] = {}
        self._members: dict[str, set[str]] = {}
        self._subscriptions: dict[str, dict[str, Subscription]] = {}
        self._watches: dict[str, Watch] = {}

    # ---- who is there ----

    def all(self) -> list[Client]:
        return [self._clients[client_id] for client_id in sorted(self._clients)]

    def silent_ms(self, client: Client) -> int:
        """Since its last heartbeat."""
        return self._clock.monotonic_ms() - client.seen_ms

    def members(self, consumer_group: str) -> list[str]:
        """Client ids, sorted, so that every member sees the same order."""
        return sorted(self._members.get(consumer_group, ()))

    def consumers(self, consumer_group: str) -> list[Consumer]:
        return [
            self._clients[client_id].consumers[consumer_group]
            for client_id in self._members.get(consumer_group, ())
        ]

    def producers(self) -> dict[str, list[Watch]]:
        """Producer group → the watches of its live clients, by client id. Who watches nothing
        cannot be asked."""
        found: dict[str, list[Watch]] = {}
        for client_id in sorted(self._watches.keys() & self._clients.keys()):
            for group in self._clients[client_id].producer_groups:
                found.setdefault(group, []).append(self._watches[client_id])
        return found

    def subscriptions(self, consumer_group: str) -> Mapping[str, Subscription] | None:
        """Topic → subscription, the newest of all members; None when the group has no members."""
        return self._subscriptions.get(consumer_group)

    def pulls(self, client_id: str, consumer_group: str, topic: str, queue_id: int) -> None:
        """A client reads a queue for its group. Of unknown clients nothing is kept."""
        client = self._clients.get(client_id)
        if client is not None and consumer_group in client.consumers:
            client.pulled[consumer_group, topic, queue_id] = self._clock.monotonic_ms()

    def owners(self, consumer_group: str) -> Mapping[tuple[str, int], str]:
        """(topic, queue id) → the member that pulled from it last."""
        latest: dict[tuple[str, int], tuple[int, str]] = {}
        for client_id in self._members.get(consumer_group, ()):
            for (group, topic, queue_id), at_ms in self._clients[client_id].pulled.items():
                if group == consumer_group:
                    found = latest.get((topic, queue_id), (-1, ""))
                    latest[topic, queue_id] = max(found, (at_ms, client_id))
        return {queue: client_id for queue, (_, client_id) in latest.items()}

    # ---- they come and go ----

    def heartbeat(self, client: Client) -> None:
        """A sign of life; what the client produces and consumes replaces what it did before.

        A proxy that does not know what a client subscribes to says nothing of it: another one did.
        """
        before = self._clients.get(client.client_id)
        if before is not None:
            client = replace(client, consumers=_completed(client.consumers, before.consumers))
        now = self._clock
        self._clients[client.client_id] = replace(
            client,
            last_update_timestamp_ms=now.now_ms(),
            seen_ms=now.monotonic_ms(),
            pulled=before.pulled if before else {},
        )
        self._settle(client.client_id, dict(before.consumers) if before else {})

    def unregister(self, client_id: str, *, producer_group: str, consumer_group: str) -> None:
        """Forgets these groups of a client, or all of it when neither is given."""
        client = self._clients.get(client_id)
        if client is None:
            return
        remaining = replace(
            client,
            producer_groups=client.producer_groups - {producer_group},
            consumers={
                group: consumer
                for group, consumer in client.consumers.items()
                if group != consumer_group
            },
        )
        if remaining.is_idle or not (producer_group or consumer_group):
            self.forget(client_id)
        else:
            self._clients[client_id] = remaining
            self._settle(client_id, dict(client.consumers))

    def forget(self, client_id: str) -> None:
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._settle(client_id, dict(client.consumers))

    def scan(self) -> list[str]:
        """Forgets who has been silent too long, and returns their ids."""
        limit = self._clock.monotonic_ms() - self._timeout_ms
        silent = [one.client_id for one in self._clients.values() if one.seen_ms < limit]
        for client_id in silent:
            self.forget(client_id)
        return silent

    # ---- notices ----

    def watch(self, client_id: str) -> Watch:
        """Notices for this client from now on; an earlier watch of it is over."""
        earlier = self._watches.get(client_id)
        if earlier is not None:
            earlier.end()
        watch = self._watches[client_id] = Watch(client_id)
        return watch

    def watch_ended(self, watch: Watch) -> None:
        """The client hung up: it is gone, unless it watches anew already."""
        if self._watches.get(watch.client_id) is watch:
            del self._watches[watch.client_id]
            self.forget(watch.client_id)

    def close(self) -> None:
        """Ends every watch, to stop."""
        for watch in self._watches.values():
            watch.end()

    def notify(self, consumer_group: str) -> None:
        """Tells the members that something about the group changed."""
        if not self._notifies(consumer_group):
            return
        for client_id in self._members.get(consumer_group, ()):
            watch = self._watches.get(client_id)
            if watch is not None:
                watch.notify(consumer_group)

    # ---- what follows from a change ----

    def _settle(self, client_id: str, before: dict[str, Consumer]) -> None:
        client = self._clients.get(client_id)
        after = client.consumers if client else {}
        for group in before.keys() | after.keys():
            if before.get(group) == after.get(group):
                continue
            members = self._members.setdefault(group, set())
            if group in after:
                members.add(client_id)
            else:
                members.discard(client_id)
            self._subscribe(group)
            # Who only broadcasts has no queues to divide.
            if any(one.message_model is MessageModel.CLUSTERING for one in self.consumers(group)):
                self.notify(group)

    def _subscribe(self, group: str) -> None:
        if not self._members[group]:
            del self._members[group]
            self._subscriptions.pop(group, None)
            self._conflicts.pop(group, None)
            return
        merged: dict[str, Subscription] = {}
        for consumer in self.consumers(group):
            for topic, subscription in consumer.subscriptions.items():
                known = merged.get(topic)
                if known is None or subscription.version > known.version:
                    merged[topic] = subscription
        self._subscriptions[group] = merged
        found = _differences(self.consumers(group))
        before, told_ms = self._conflicts.get(group, ({}, None))
        if found and found != before:
            now_ms = self._clock.monotonic_ms()
            if told_ms is None or now_ms - told_ms >= TELL_AGAIN_MS:
                self._on_conflict(group, found)
                told_ms = now_ms
        self._conflicts[group] = found, told_ms


def _completed(
    consumers: Mapping[str, Consumer], before: Mapping[str, Consumer]
) -> Mapping[str, Consumer]:
    """With the subscriptions of before where a consumer that pops names none."""
    return {
        group: before[group]
        if one.consume_type is ConsumeType.POP and not one.subscriptions and group in before
        else one
        for group, one in consumers.items()
    }


def _differences(consumers: list[Consumer]) -> Differences:
    """What one member's filter drops, no other will see: such a group loses messages in silence.

    A topic that only some subscribe to counts too; those that do not want "". A member that has not
    said yet what it wants does not count, nor do retry topics, which only classic clients name.
    """
    saying = [one.subscriptions for one in consumers if one.subscriptions]
    topics = sorted({topic for one in saying for topic in one if not is_retry(topic)})
    wanted = {topic: {_text(one.get(topic)) for one in saying} for topic in topics}
    return {topic: sorted(texts) for topic, texts in wanted.items() if len(texts) > 1}


def _text(subscription: Subscription | None) -> str:
    if subscription is None:
        return ""
    tags = subscription.filter.tags
    return "||".join(sorted(tags)) if tags else subscription.filter.expression or "*"
