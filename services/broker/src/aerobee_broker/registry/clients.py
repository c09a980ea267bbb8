"""Keep the live clients of this broker: their groups and subscriptions.

A client is live while it sends heartbeats. The broker forgets a client after `timeout_ms` without a
heartbeat, or at once when the client's notice stream (WatchClient) ends. If the client opens such
streams but has none, UNWATCHED_MS without a heartbeat suffice: it ended before it opened the
stream, or its last heartbeat was handled after the end. The data is in memory only; after a
restart, heartbeats fill it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from aerobee_broker.errors import MembersNotKnown, NoPermission
from aerobee_broker.registry.consumers import (
    NONE,
    Consumer,
    ConsumeType,
    Differences,
    MessageModel,
    Statistics,
    Subscription,
    differences,
)
from aerobee_chassis.clock import Clock


@dataclass(frozen=True, slots=True)
class Client:
    client_id: str
    address: str = ""
    language: str = ""
    version: str = ""
    producer_groups: frozenset[str] = frozenset()
    consumers: Mapping[str, Consumer] = field(default_factory=dict)
    proxy: str = ""  # its address; empty for a client that connects directly
    user: str = ""  # the user that signs its calls
    published_topics: frozenset[str] = frozenset()
    watches: bool = False  # it opens a notice stream
    producer_statistics: Statistics = field(default_factory=dict)
    since_timestamp_ms: int = 0  # time of its first heartbeat
    last_update_timestamp_ms: int = 0
    last_heartbeat_ms: int = 0  # monotonic
    # (group, topic, queue id) → time of its last pull, monotonic ms
    last_pulls_ms: dict[tuple[str, str, int], int] = field(default_factory=dict, compare=False)

    @property
    def is_idle(self) -> bool:
        return not (self.producer_groups or self.consumers or self.published_topics)


CONFLICT_INTERVAL_MS = 60_000
UNWATCHED_MS = 10_000
GATHERING_MS = 5_000  # the time in which clients register with a new master
MAX_PENDING_CHECKS = 1_000  # per client


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFilter:
    """Choose clients. An empty field does not filter; `text` ignores the case."""

    group: str = ""
    topic: str = ""
    user: str = ""
    proxy: str = ""
    text: str = ""

    def matches(self, client: Client) -> bool:
        wanted = ((self.user, client.user), (self.proxy, client.proxy))
        if any(value and value != given for value, given in wanted):
            return False
        if self.group and self.group not in client.producer_groups | client.consumers.keys():
            return False
        if self.topic and not (
            self.topic in client.published_topics
            or any(self.topic in each.subscriptions for each in client.consumers.values())
        ):
            return False
        texts = (
            client.client_id,
            client.address,
            client.proxy,
            client.user,
            f"{client.language} {client.version}",
        )
        return not self.text or self.text.lower() in "\n".join(texts).lower()


@dataclass(frozen=True, slots=True)
class CheckNotice:
    """Ask the client for the outcome of a transaction.

    `half_message` is the queue offset of its half message.
    """

    half_message: int


class Watch:
    """The pending notices of one client. A notice that is pending already is not added again."""

    def __init__(
        self,
        client_id: str,
        user: str = "",
        may_end: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Create a watch of a user's client. The user is "" for a caller that signs no calls.

        `may_end` returns whether the client may end transactions of a topic.
        """
        self.client_id = client_id
        self.user = user
        self.may_end = may_end
        self._groups: set[str] = set()
        self._checks: dict[int, None] = {}
        self._pending = asyncio.Event()
        self._ended = False

    def notify(self, consumer_group: str) -> None:
        self._groups.add(consumer_group)
        self._pending.set()

    def check(self, half_message: int) -> bool:
        """Add a request for the outcome of a transaction. Return False if too many are pending."""
        if len(self._checks) >= MAX_PENDING_CHECKS:
            return False
        self._checks[half_message] = None
        self._pending.set()
        return True

    def end(self) -> None:
        self._ended = True
        self._pending.set()

    async def next(self) -> list[str | CheckNotice]:
        """Wait for notices and return them.

        The groups whose members changed come first, sorted; the transaction checks follow. The
        result is empty if the watch has ended.
        """
        await self._pending.wait()
        if self._ended:
            return []
        groups, self._groups = sorted(self._groups), set()
        checks, self._checks = self._checks, {}
        self._pending.clear()
        return [*groups, *map(CheckNotice, checks)]


class Clients:
    """The live clients.

    - `notifies` returns whether the members of a group are notified of changes.
    - `on_conflict` is called when members of a group begin to differ in settings that must be
      equal, and when their differences change. It is called at most once a minute per group.
    """

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
        # Consumer group → the present differences, and when they were last reported (monotonic).
        self._conflicts: dict[str, tuple[Differences, int | None]] = {}
        self._timeout_ms = timeout_ms
        self._notifies = notifies
        self._clients: dict[str, Client] = {}
        self._members: dict[str, set[str]] = {}
        self._subscriptions: dict[str, dict[str, Subscription]] = {}
        # Group → topic → queue id → the offset up to which its members have pulled.
        self._pulled: dict[str, dict[str, dict[int, int]]] = {}
        self._watches: dict[str, Watch] = {}
        self._on_leave: list[Callable[[str, str], None]] = []
        self._listed_from_ms = clock.monotonic_ms()

    def expect_all(self) -> None:
        """Expect all clients to register again, because this broker has become master.

        For GATHERING_MS, `listed_members` does not list the members of groups.
        """
        self._listed_from_ms = self._clock.monotonic_ms() + GATHERING_MS

    def listed_members(self, consumer_group: str) -> list[str]:
        """Return the members, for a client that assigns queues by them. Raises MembersNotKnown."""
        left_ms = self._listed_from_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            raise MembersNotKnown(left_ms)
        return self.members(consumer_group)

    def on_leave(self, left: Callable[[str, str], None]) -> None:
        """Call `left` with the consumer group and client id of each member that leaves."""
        self._on_leave.append(left)

    # ---- the live clients ----

    def all(self) -> list[Client]:
        return [self._clients[client_id] for client_id in sorted(self._clients)]

    def silent_ms(self, client: Client) -> int:
        """Return the milliseconds since the last heartbeat of the client."""
        return self._clock.monotonic_ms() - client.last_heartbeat_ms

    def members(self, consumer_group: str) -> list[str]:
        """Return the client ids, sorted, so that every member sees the same order."""
        return sorted(self._members.get(consumer_group, ()))

    def is_member(self, consumer_group: str, client_id: str) -> bool:
        return client_id in self._members.get(consumer_group, ())

    def consumers(self, consumer_group: str) -> list[Consumer]:
        return [
            self._clients[client_id].consumers[consumer_group]
            for client_id in self._members.get(consumer_group, ())
        ]

    def broadcasts(self, consumer_group: str) -> bool:
        """Return whether all members use broadcasting. Then each member keeps its own offsets."""
        members = self._members.get(consumer_group)
        if not members:
            return False
        return all(
            self._clients[member].consumers[consumer_group].message_model
            is MessageModel.BROADCASTING
            for member in members
        )

    def producers(self) -> dict[str, list[Watch]]:
        """Return a map from producer group to the watches of its live clients, by client id.

        A client without a watch is left out, because it cannot be asked about a transaction.
        """
        found: dict[str, list[Watch]] = {}
        for client_id in sorted(self._watches.keys() & self._clients.keys()):
            for group in self._clients[client_id].producer_groups:
                found.setdefault(group, []).append(self._watches[client_id])
        return found

    def subscriptions(self, consumer_group: str) -> Mapping[str, Subscription] | None:
        """Return a map from topic to the newest subscription of the members, or None.

        It is None if the group has no members.
        """
        return self._subscriptions.get(consumer_group)

    def note_pull(self, client_id: str, consumer_group: str, topic: str, queue_id: int) -> None:
        """Record a pull, for `owners`. Ignore pulls of unknown clients."""
        client = self._clients.get(client_id)
        if client is not None and consumer_group in client.consumers:
            client.last_pulls_ms[consumer_group, topic, queue_id] = self._clock.monotonic_ms()

    def pulled(self, consumer_group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Record the offset up to which a member has pulled a queue, for metrics."""
        if consumer_group in self._members:
            topics = self._pulled.setdefault(consumer_group, {})
            topics.setdefault(topic, {})[queue_id] = queue_offset

    def pulled_to(self, consumer_group: str, topic: str) -> Mapping[int, int]:
        """Return the offsets up to which the members have pulled: queue id → offset."""
        return self._pulled.get(consumer_group, {}).get(topic, {})

    def forget_pulled_to(self, *, consumer_group: str = "", topic: str = "") -> None:
        """Forget how far members have pulled: in a topic, of a group, or of a group in a topic."""
        for group in [consumer_group] if consumer_group else list(self._pulled):
            topics = self._pulled.get(group, {})
            if topic:
                topics.pop(topic, None)
            if not topic or not topics:
                self._pulled.pop(group, None)

    def differing(self) -> list[str]:
        """Return the groups whose members differ now in settings that must be equal."""
        return [group for group, (found, _) in self._conflicts.items() if found]

    def forget_pulls(self, client_id: str, consumer_group: str, topic: str, queue_id: int) -> None:
        """Forget that the client pulled this queue."""
        client = self._clients.get(client_id)
        if client is not None:
            client.last_pulls_ms.pop((consumer_group, topic, queue_id), None)

    def owners(self, consumer_group: str) -> Mapping[tuple[str, int], str]:
        """Return a map from (topic, queue id) to the member that last pulled from the queue."""
        latest: dict[tuple[str, int], tuple[int, str]] = {}
        for client_id in self._members.get(consumer_group, ()):
            for (group, topic, queue_id), at_ms in self._clients[client_id].last_pulls_ms.items():
                if group == consumer_group:
                    found = latest.get((topic, queue_id), (-1, ""))
                    latest[topic, queue_id] = max(found, (at_ms, client_id))
        return {queue: client_id for queue, (_, client_id) in latest.items()}

    def queues_of(self, client: Client) -> list[tuple[str, str, int]]:
        """Return the queues that the client pulls, as a sorted list of (group, topic, queue id).

        If a group divides its queues, the list excludes queues that another client pulled later.
        """
        divided = {
            group: self.owners(group)
            for group, consumer in client.consumers.items()
            if consumer.divides_queues
        }
        return sorted(
            (group, topic, queue_id)
            for group, topic, queue_id in client.last_pulls_ms
            if group in client.consumers
            and divided.get(group, {}).get((topic, queue_id), client.client_id) == client.client_id
        )

    # ---- heartbeats and expiry ----

    def heartbeat(self, client: Client) -> None:
        """Replace the groups of the client's previous heartbeat.

        A proxy may not know the subscriptions of a client that registered them at another proxy.
        Then the previous subscriptions stay. A proxy may also report a producer under the id of a
        consumer. Then the consumer stays.
        """
        before = self._clients.get(client.client_id)
        is_producer = client.published_topics and not client.consumers
        if before is not None and before.consumers and is_producer:
            return
        if before is not None:
            client = replace(
                client, consumers=_with_subscriptions(client.consumers, before.consumers)
            )
        now = self._clock
        self._clients[client.client_id] = replace(
            client,
            since_timestamp_ms=before.since_timestamp_ms if before else now.now_ms(),
            last_update_timestamp_ms=now.now_ms(),
            last_heartbeat_ms=now.monotonic_ms(),
            last_pulls_ms=before.last_pulls_ms if before else {},
        )
        self._update_groups(client.client_id, dict(before.consumers) if before else {})

    def unregister(
        self,
        client_id: str,
        *,
        producer_group: str = "",
        consumer_group: str = "",
        publishing: bool = False,
    ) -> None:
        """Forget the given groups of a client, and its published topics if `publishing` is True.

        If no group is given and `publishing` is False, forget the client.
        """
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
            published_topics=frozenset() if publishing else client.published_topics,
        )
        if remaining.is_idle or not (producer_group or consumer_group or publishing):
            self.forget(client_id)
        else:
            self._clients[client_id] = remaining
            self._update_groups(client_id, dict(client.consumers))

    def forget(self, client_id: str) -> None:
        client = self._clients.pop(client_id, None)
        if client is not None:
            self._update_groups(client_id, dict(client.consumers))

    def scan(self) -> list[str]:
        """Forget the clients that have been silent for too long, and return their ids."""
        silent = [
            client.client_id
            for client in self._clients.values()
            if self.silent_ms(client) > self._limit_ms(client)
        ]
        for client_id in silent:
            self.forget(client_id)
        return silent

    def _limit_ms(self, client: Client) -> int:
        lacks_stream = client.watches and client.client_id not in self._watches
        return min(UNWATCHED_MS, self._timeout_ms) if lacks_stream else self._timeout_ms

    def check_user(self, client_id: str, user: str) -> None:
        """Raise NoPermission if a live client of this id belongs to another user.

        `user` is "" for a caller that signs no calls: it is a process of the cluster, or the port
        checks no users.
        """
        if not user:
            return
        client, watch = self._clients.get(client_id), self._watches.get(client_id)
        if any(each is not None and each.user not in ("", user) for each in (client, watch)):
            raise NoPermission(
                f"client id {client_id!r} belongs to a client of another user: choose another id",
                client_id,
            )

    # ---- notices ----

    def watch(
        self,
        client_id: str,
        user: str = "",
        may_end: Callable[[str], bool] = lambda _: True,
    ) -> Watch:
        """Return a new watch for the notices to this client, and end its earlier watch."""
        earlier = self._watches.get(client_id)
        if earlier is not None:
            earlier.end()
        watch = self._watches[client_id] = Watch(client_id, user, may_end)
        return watch

    def end_watch(self, watch: Watch) -> None:
        """Forget the client because its stream ended, unless the client has a newer watch."""
        if self._watches.get(watch.client_id) is watch:
            del self._watches[watch.client_id]
            self.forget(watch.client_id)

    def close(self) -> None:
        """End every watch, so that the broker can stop."""
        for watch in self._watches.values():
            watch.end()

    def notify(self, consumer_group: str) -> None:
        """Notify the members that the group changed: its members, or a subscription."""
        if not self._notifies(consumer_group):
            return
        for client_id in self._members.get(consumer_group, ()):
            watch = self._watches.get(client_id)
            if watch is not None:
                watch.notify(consumer_group)

    def notify_member(self, consumer_group: str, client_id: str) -> None:
        """Notify one member that the group changed."""
        watch = self._watches.get(client_id)
        if watch is not None and self._notifies(consumer_group):
            watch.notify(consumer_group)

    # ---- groups ----

    def _update_groups(self, client_id: str, before: dict[str, Consumer]) -> None:
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
                for left in self._on_leave:
                    left(group, client_id)
            self._merge_subscriptions(group)
            # If all members broadcast, they do not divide the queues.
            if not self.broadcasts(group):
                self.notify(group)

    def _merge_subscriptions(self, group: str) -> None:
        if not self._members[group]:
            del self._members[group]
            self._subscriptions.pop(group, None)
            self._conflicts.pop(group, None)
            self._pulled.pop(group, None)
            return
        merged: dict[str, Subscription] = {}
        for consumer in self.consumers(group):
            for topic, subscription in consumer.subscriptions.items():
                known = merged.get(topic)
                if known is None or subscription.version > known.version:
                    merged[topic] = subscription
        self._subscriptions[group] = merged
        found = differences(self.consumers(group))
        before, reported_ms = self._conflicts.get(group, (NONE, None))
        if found and found != before:
            now_ms = self._clock.monotonic_ms()
            if reported_ms is None or now_ms - reported_ms >= CONFLICT_INTERVAL_MS:
                self._on_conflict(group, found)
                reported_ms = now_ms
        self._conflicts[group] = found, reported_ms


def _with_subscriptions(
    consumers: Mapping[str, Consumer], before: Mapping[str, Consumer]
) -> Mapping[str, Consumer]:
    """Return `consumers` with previous subscriptions where a popping consumer has none."""
    return {
        group: before[group]
        if consumer.consume_type is ConsumeType.POP
        and not consumer.subscriptions
        and group in before
        else consumer
        for group, consumer in consumers.items()
    }
