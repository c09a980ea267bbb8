"""Handles SyncLiteSubscription requests: changes of subscriptions, and clients that leave.

Each broker that has the parent topic receives the requests. It stores the whole subscription of a
client, but uses only the lite topics that have messages on this broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from aerobee_broker.delivery.lite.dispatch import LiteDispatch
from aerobee_broker.delivery.lite.lines import line
from aerobee_broker.delivery.lite.subscriptions import MAX_SUBSCRIPTIONS, Change, LiteClient
from aerobee_broker.errors import InvalidParameter, NoPermission
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock
from aerobee_wire.queues import lite
from aerobee_wire.queues.lite import LiteGroup, lease_topic_of
from aerobee_wire.status import Code, MqError

# Clients send their complete set every 30 s. Then it replaces what is restored here.
RETURN_MS = 60_000


class Action(Enum):
    """The way in which a request changes the lite topics to which a client is subscribed."""

    ADD = "subscribe to these lite topics too"
    REMOVE = "unsubscribe from these lite topics"
    REPLACE = "subscribe to exactly these lite topics; clients send this regularly"
    LEAVE = "the client has left"
    KEEP = "subscribe to these lite topics, except those that another client holds exclusively"


class Start(Enum):
    """The position at which a consumer group starts in a lite topic."""

    WHERE_IT_IS = "at its present position; at the first message if the group is new"
    FIRST = "at the first message"
    END = "after the last message"
    NUMBER = "at the message of this number, from 0"
    TAIL = "that number of messages before the end"
    TIME = "at the first message that was stored then or later, ms since the epoch"


@dataclass(frozen=True, slots=True)
class Begin:
    start: Start = Start.WHERE_IT_IS
    value: int = 0


@dataclass(frozen=True, slots=True)
class SyncRequest:
    consumer_group: str
    client_id: str
    parent: str
    action: Action
    names: Sequence[str]
    begin: Begin = field(default_factory=Begin)
    may_return: bool = False


class _Departed(NamedTuple):
    """The lite topics of a client that has lost its connection at this time."""

    parent: str
    names: Sequence[str]
    left_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Syncing:
    """Applies subscription requests of clients, and removes clients that are silent.

    `clock` measures how long clients are silent. `_lost` maps (group, client id) to the lite topics
    that the client has lost to other clients, and of which it was not notified yet. `_departed` has
    the lite topics of clients that may return by another proxy, which does not know them.
    """

    store: MessageStore
    dispatch: LiteDispatch
    topics: TopicRegistry
    groups: GroupRegistry
    clock: Clock
    _lost: dict[tuple[str, str], dict[str, None]] = field(default_factory=dict, init=False)
    _departed: dict[tuple[str, str], _Departed] = field(default_factory=dict, init=False)

    def settings_of(self, consumer_group: str, parent: str) -> LiteGroup:
        """Return the lite settings of a group after checking that it may consume from a parent.

        Raises the errors of `binding`, and NoPermission if the group may not consume.
        """
        settings = self.binding(consumer_group, parent)
        if not self.groups.get(consumer_group).consume_enable:
            raise NoPermission(f"group {consumer_group} may not consume (consumeEnable is off)")
        return settings

    def binding(self, consumer_group: str, parent: str) -> LiteGroup:
        """Return the lite settings of a group after checking that it is bound to a parent.

        Raises GroupNotExist, MqError with the code INVALID_PARAMETER if the group is not bound to
        the parent, and the errors of `check_parent`.
        """
        group = self.groups.get(consumer_group)
        settings = lite.group_of(group.attributes)
        if settings is None or settings.parent != parent:
            bound = f"bound to {settings.parent}" if settings else "bound to no topic"
            raise MqError(
                Code.INVALID_PARAMETER,
                f"group {consumer_group} is {bound}, not to {parent} (lite.bind.topic)",
                about="topic",
            )
        self.check_parent(parent)
        return settings

    def check_parent(self, parent: str) -> None:
        """Check that a topic has the type LITE. Raises TopicNotExist, InvalidParameter."""
        if self.topics.get(parent).message_type != lite.LITE:
            raise InvalidParameter(f"topic {parent} is not of the type LITE", about="topic")

    async def sync(self, request: SyncRequest) -> None:
        """Change the subscription of a client, and the positions of its group if requested.

        Returns when the new positions are durable. Raises the errors of `settings_of` and of a
        read, DiskFull, StoreReadOnly, and MqError with the code LITE_SUBSCRIPTION_QUOTA_EXCEEDED or
        ILLEGAL_OPERATION.
        """
        group, client_id = request.consumer_group, request.client_id
        subscriptions = self.dispatch.subscriptions
        if request.action is Action.LEAVE:
            self.leave(group, client_id, may_return=request.may_return)
            return
        if request.action is Action.REPLACE:
            self._departed.pop((group, client_id), None)
        else:
            self.returned(group, client_id, request.parent)
        settings = self.settings_of(group, request.parent)
        if request.action is not Action.REMOVE:
            for name in request.names:
                lite.check_name(name)
        now_ms = self.clock.monotonic_ms()
        match request.action:
            case Action.ADD:
                change = subscriptions.add(group, client_id, settings, request.names, now_ms)
            case Action.KEEP:
                change = subscriptions.keep(group, client_id, settings, request.names, now_ms)
            case Action.REMOVE:
                change = subscriptions.remove(group, client_id, settings, request.names, now_ms)
            case _:
                change = subscriptions.replace(group, client_id, settings, request.names, now_ms)
        durable = self._reset(request, settings, change)
        if request.action is Action.ADD:  # the client holds these lite topics again
            for name in request.names:
                self._lost.get((group, client_id), {}).pop(name, None)
        self._note_lost(change)
        self.dispatch.changed(change)
        if durable is not None:
            await asyncio.shield(durable)

    def leave(self, consumer_group: str, client_id: str, *, may_return: bool = False) -> None:
        """Remove a client that has left, and offer its pending lite topics to other clients."""
        key = consumer_group, client_id
        known = self.dispatch.subscriptions.get(*key)
        names = tuple(known.names.values()) if known is not None else ()
        client = self.dispatch.subscriptions.leave(*key)
        self._lost.pop(key, None)
        if not may_return:
            self._departed.pop(key, None)
        elif client is not None:
            self._departed[key] = _Departed(client.parent, names, self.clock.monotonic_ms())
            self._bound_departed()
        if client is not None:
            self.dispatch.left(client)

    def returned(self, consumer_group: str, client_id: str, parent: str) -> None:
        """Restore the lite topics of a client that lost its connection and is here again.

        Lite topics that another client of an exclusive group has taken over meanwhile are lost. If
        the group may not have the lite topics any more, nothing is restored.
        """
        departed = self._departed.pop((consumer_group, client_id), None)
        now_ms = self.clock.monotonic_ms()
        if departed is None or departed.parent != parent or departed.left_ms < now_ms - RETURN_MS:
            return
        subscriptions = self.dispatch.subscriptions
        try:
            settings = self.settings_of(consumer_group, parent)
            restore = subscriptions.replace if settings.wildcard else subscriptions.keep
            change = restore(consumer_group, client_id, settings, departed.names, now_ms)
        except MqError:
            return
        self._note_lost(change)
        self.dispatch.changed(change)

    def _bound_departed(self) -> None:
        total = sum(len(each.names) + 1 for each in self._departed.values())
        while total > MAX_SUBSCRIPTIONS:
            oldest = self._departed.pop(next(iter(self._departed)))
            total -= len(oldest.names) + 1

    def take_lost(self, consumer_group: str, client_id: str) -> list[str]:
        """Return the lite topics that a client has lost to other clients since the last call."""
        return list(self._lost.pop((consumer_group, client_id), ()))

    def expire(self) -> list[LiteClient]:
        """Remove and return the clients that were silent for too long. Called every 10 s.

        The pending lite topics of clients that do not receive are offered to other clients.
        """
        now_ms = self.clock.monotonic_ms()
        for key, departed in list(self._departed.items()):
            if departed.left_ms < now_ms - RETURN_MS:
                del self._departed[key]
        gone = self.dispatch.subscriptions.expire(now_ms)
        for client in gone:
            self._lost.pop((client.consumer_group, client.client_id), None)
            self.dispatch.left(client)
        self.dispatch.rescue()
        return gone

    def _note_lost(self, change: Change) -> None:
        for client, name in change.evicted:
            self._lost.setdefault((client.consumer_group, client.client_id), {})[name] = None
            self.dispatch.ready.interrupt(client.consumer_group, client.client_id)

    # ---- the group's start position ----

    def _reset(
        self, request: SyncRequest, settings: LiteGroup, change: Change
    ) -> asyncio.Future[None] | None:
        group, parent = request.consumer_group, request.parent
        offsets: dict[str, dict[int, int]] = {}
        if request.action is Action.ADD and request.begin.start is not Start.WHERE_IT_IS:
            offsets = {name: self._offsets(parent, name, request.begin) for name in request.names}
        if settings.resets_evicted:
            offsets |= {name: self._offsets(parent, name) for _, name in change.evicted}
        if settings.resets_unsubscribed and request.action is Action.REMOVE:
            offsets |= {name: self._offsets(parent, name) for name in request.names}
        return self.dispatch.reset(group, parent, offsets)

    def _offsets(self, parent: str, name: str, begin: Begin | None = None) -> dict[int, int]:
        """Return the start offset of a lite topic in each queue that has messages of it.

        If a lite topic has no messages, the result is empty, because the group starts with the
        first message in any case.
        """
        begin = begin or Begin(Start.FIRST)
        code = line(lease_topic_of(parent, name)).code
        queue_ids = set(self.dispatch.lines.queue_ids(parent, code))
        return {
            queue_id: self._offset(parent, queue_id, code, begin)
            for queue_id, queue in self.dispatch.lines.lite_queues(parent)
            if queue_id in queue_ids and queue is not None
        }

    def _offset(self, parent: str, queue_id: int, code: int, begin: Begin) -> int:
        end = self.store.max_offset(parent, queue_id)
        match begin.start:
            case Start.FIRST:
                return 0
            case Start.TIME:
                return self.store.search_offset(parent, queue_id, begin.value)
            case Start.END:
                return end
        queue = dict(self.dispatch.lines.lite_queues(parent))[queue_id]
        last = queue.last(code)
        number = begin.value
        if begin.start is Start.TAIL and last is not None:
            number = last.number + 1 - begin.value
        found = queue.at_number(code, max(0, number))
        return found.queue_offset if found is not None else end
