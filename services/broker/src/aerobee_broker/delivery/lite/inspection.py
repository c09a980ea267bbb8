"""Queries of the messages and subscribers of lite topics, for operators.

The lite topics with most messages are listed first. The number of a lite topic's last message is an
upper bound of its message count. Messages are therefore counted only for candidates of the result,
and read only for the result. The scan of a parent topic yields to the event loop regularly.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import NamedTuple

from aerobee_broker.delivery.lite.dispatch import LiteDispatch
from aerobee_broker.delivery.lite.syncing import Syncing
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.store.lite.lite_queue import LiteQueue, lite_code
from aerobee_chassis.clock import Clock

DEFAULT_LIMIT, MAX_LIMIT = 100, 1_000
SLICE = 500  # lite topics to scan before yielding to the event loop: 2 ms at most


class LiteTopicStatus(NamedTuple):
    """The state of a lite topic. The protobuf message LiteTopicInfo explains the fields."""

    lite_topic: str
    queue_id: int
    messages: int
    lag: int
    oldest_ms: int
    newest_ms: int
    subscribers: int


class LiteClientStatus(NamedTuple):
    """The state of a subscribed client. The protobuf message LiteClientInfo explains the fields."""

    consumer_group: str
    client_id: str
    lite_topics: int
    wildcard: bool
    ready: int
    silent_ms: int


class _Place(NamedTuple):
    """A lite topic in a queue of its parent topic."""

    queue_id: int
    queue: LiteQueue
    code: int


@dataclass(frozen=True, slots=True)
class LiteInspection:
    """Answers queries about lite topics and their clients.

    `clock` measures how long clients are silent.
    """

    dispatch: LiteDispatch
    syncing: Syncing
    clock: Clock

    async def list_topics(
        self, parent: str, *, consumer_group: str = "", limit: int = 0, lite_topic: str = ""
    ) -> tuple[list[LiteTopicStatus], int]:
        """Return the largest lite topics of a parent topic, and the number of all its lite topics.

        They are sorted by the lag of the group, and then by the number of messages. Raises
        TopicNotExist, GroupNotExist, InvalidParameter, MqError with the code INVALID_PARAMETER, and
        the errors of a read.

        Args:
            parent: The parent topic.
            consumer_group: The group; if it is empty, the lag is 0.
            limit: The maximum number of lite topics; 0 means 100.
            lite_topic: If it is not empty, only this lite topic is returned.
        """
        if not 0 <= limit <= MAX_LIMIT:
            raise InvalidParameter(f"limit is {limit}: give 1 to {MAX_LIMIT}", about="limit")
        if consumer_group:
            self.syncing.binding(consumer_group, parent)
        else:
            self.syncing.check_parent(parent)
        limit, total = limit or DEFAULT_LIMIT, 0
        # A heap of the largest lite topics so far. The smallest of them is the first.
        found: list[tuple[tuple[int, int], int, _Place]] = []
        async for queue_id, queue, ends in self._slices(parent, lite_topic):
            for code, number in ends:
                total += 1
                # Skip early: the number of the last message limits both the lag and the count.
                if len(found) == limit and number < found[0][0][0 if consumer_group else 1]:
                    continue
                place = _Place(queue_id, queue, code)
                if len(found) < limit:
                    size = self._size(parent, consumer_group, place)
                    heapq.heappush(found, (size, -total, place))
                elif self._at_most(parent, consumer_group, place) > found[0][0]:
                    size = self._size(parent, consumer_group, place)
                    heapq.heappushpop(found, (size, -total, place))
        found.sort(reverse=True)
        statuses = []
        for (lag, messages), _, place in found:
            await asyncio.sleep(0)
            status = self._status(parent, consumer_group, place, messages, lag)
            if status is not None and lite_topic in {"", status.lite_topic}:
                statuses.append(status)
        return statuses, len(statuses) if lite_topic else total

    def list_clients(self, parent: str, lite_topic: str = "") -> list[LiteClientStatus]:
        """Return the clients that are subscribed to lite topics of a parent topic.

        If `lite_topic` is not empty, only clients subscribed to it are returned. Raises
        TopicNotExist, InvalidParameter.
        """
        self.syncing.check_parent(parent)
        code = lite_code(lite_topic.encode())
        now_ms = self.clock.monotonic_ms()
        return [
            LiteClientStatus(
                client.consumer_group,
                client.client_id,
                len(client.names),
                client.wildcard,
                self.dispatch.ready.count(client.consumer_group, client.client_id),
                now_ms - client.last_seen_ms,
            )
            for client in self.dispatch.subscriptions
            if client.parent == parent
            and (not lite_topic or client.wildcard or client.names.get(code) == lite_topic)
        ]

    async def _slices(
        self, parent: str, lite_topic: str
    ) -> AsyncIterator[tuple[int, LiteQueue, list[tuple[int, int]]]]:
        """Yield the lite topics of each queue in slices, and yield to the event loop in between.

        A slice is (queue id, queue, list of (code, number of the last message)). If `lite_topic` is
        not empty, only this lite topic is included.
        """
        code = lite_code(lite_topic.encode())
        for queue_id, queue in list(self.dispatch.lines.lite_queues(parent)):
            if lite_topic:
                last = queue.last(code)
                ends = [(code, last.number)] if last is not None else []
            else:
                ends = queue.ends()
            for first in range(0, len(ends), SLICE):
                yield queue_id, queue, ends[first : first + SLICE]
                await asyncio.sleep(0)

    def _at_most(self, parent: str, consumer_group: str, place: _Place) -> tuple[int, int]:
        """Return an upper bound of `_size`, without counting messages."""
        last = place.queue.last(place.code)
        if last is None:
            return 0, 0
        count = last.number + 1
        waits = consumer_group and last.queue_offset >= self._position(
            parent, consumer_group, place
        )
        return (count if waits else 0), count

    def _size(self, parent: str, consumer_group: str, place: _Place) -> tuple[int, int]:
        """Return the lag of the group in a lite topic, and the number of the lite topic's messages.

        Raises StoreReadError, OSError.
        """
        messages = place.queue.count_from(place.code, 0)
        if not consumer_group:
            return 0, messages
        position = self._position(parent, consumer_group, place)
        return (place.queue.count_from(place.code, position) if position else messages), messages

    def _position(self, parent: str, consumer_group: str, place: _Place) -> int:
        """Return the queue offset from which on the group has not settled messages."""
        found = self.dispatch.positions.position(consumer_group, parent, place.queue_id, place.code)
        return found or 0

    def _status(
        self, parent: str, consumer_group: str, place: _Place, messages: int, lag: int
    ) -> LiteTopicStatus | None:
        """Return the status of a lite topic, or None if its last message is not stored any more.

        Raises StoreReadError, OSError.
        """
        lines, (queue_id, queue, code) = self.dispatch.lines, place
        last = queue.last(code)
        newest = lines.named(parent, queue_id, last.queue_offset) if last is not None else None
        if newest is None:
            return None
        begin = self._position(parent, consumer_group, place) if lag else 0
        first = queue.first_from(code, begin)
        oldest = lines.named(parent, queue_id, first.queue_offset) if first is not None else None
        groups = (
            [consumer_group] if consumer_group else self.dispatch.subscriptions.groups_of(parent)
        )
        subscribers = sum(len(self.dispatch.subscriptions.holders(each, code)) for each in groups)
        return LiteTopicStatus(
            newest.name,
            queue_id,
            messages,
            lag,
            oldest.stored_ms if oldest is not None else 0,
            newest.stored_ms,
            subscribers,
        )
