"""Offer ready lines to clients, from subscriptions, arrivals, leases and receives.

Each event that makes a line ready ends here: a message, a subscription, the end of the last lease
on the line, a reset. Synchronous, except for journal writes. Reads no messages, except for a name
that only the record contains (wildcard groups).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from aerobee_broker.delivery.lite.line_leases import LineLeases
from aerobee_broker.delivery.lite.lines import LiteLines, line
from aerobee_broker.delivery.lite.positions import LitePositions
from aerobee_broker.delivery.lite.ready import ReadyLine, ReadyLines
from aerobee_broker.delivery.lite.subscriptions import Change, LiteClient, Subscriptions
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import ResetRecord
from aerobee_broker.errors import StoreReadError
from aerobee_broker.store.lite.lite_queue import NO_CODE
from aerobee_broker.store.messages import Arrival
from aerobee_wire.queues.lite import lease_topic_of
from aerobee_wire.status import MqError

_CAUGHT_UP_UNITS = 4_096  # units of a queue whose arrival failed: about 40 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteDispatch:
    lines: LiteLines
    subscriptions: Subscriptions
    ready: ReadyLines
    table: LineLeases
    positions: LitePositions
    journal: LeaseJournal
    # Group, parent and line whose state could not be read.
    _unread: dict[tuple[str, str, ReadyLine], None] = field(default_factory=dict, init=False)

    # ---- events that make a line ready ----

    def arrived(self, arrival: Arrival) -> None:
        """Offer the lines of newly visible messages of a parent.

        A failure is logged: the next arrival, or `rescue`, processes the messages.
        """
        try:
            parent, queue_id, codes = self.lines.arrived(arrival)
            for consumer_group in self.subscriptions.groups_of(parent):
                for code in codes:
                    self._offer(consumer_group, parent, ReadyLine(queue_id, code))
        except (OSError, MqError) as error:
            structlog.get_logger().error(
                "lite_topics_not_followed", topic=arrival.topic, reason=str(error)
            )
            for consumer_group in self.subscriptions.groups_of(arrival.topic):
                for code in arrival.tags_codes - {NO_CODE}:
                    ready = ReadyLine(arrival.queue_id, code)
                    self._unread[consumer_group, arrival.topic, ready] = None

    def wake_pop(self, consumer_group: str, topic: str, queue_id: int | None = None) -> None:
        """Offer a line whose lease has ended or whose messages are settled, if it is ready."""
        parent, _, code = line(topic)
        queue_ids = self.lines.queue_ids(parent, code) if queue_id is None else [queue_id]
        for each in queue_ids:
            self._offer(consumer_group, parent, ReadyLine(each, code))

    def wake_pops(self, topic: str) -> None:
        """Do nothing: `reset` offers lines itself, and deleted lines have no messages."""

    def changed(self, change: Change) -> None:
        """Offer and withdraw lines after a client changed its subscription."""
        client = change.client
        for eviction in change.evicted:
            if eviction.client is not client:
                lost = line(lease_topic_of(client.parent, eviction.name))
                self._withdraw(eviction.client, lost.code)
        for code in change.removed:
            self._withdraw(client, code)
        for code in change.added:
            self._offer_all(client.consumer_group, client.parent, code)
        if client.wildcard:
            for _, queue in self.lines.lite_queues(client.parent):
                for code in queue.codes():
                    self._offer_all(client.consumer_group, client.parent, code)

    def left(self, client: LiteClient) -> None:
        """Offer the lines of a client that has left to other clients."""
        for ready in self.ready.leave(client.consumer_group, client.client_id):
            self._offer(client.consumer_group, client.parent, ready)

    def rescue(self) -> None:
        """Move lines from clients that do not receive to other holders; called every 10 s.

        Also checks lines again that could not be read.
        """
        self._look_again()
        for consumer_group, client_id, lines in self.ready.stuck():
            client = self.subscriptions.get(consumer_group, client_id)
            for ready in lines:
                holders = dict(self.subscriptions.holders(consumer_group, ready.code))
                holders.pop(client_id, None)
                if holders and client is not None:
                    self.ready.withdraw(consumer_group, client_id, ready)
                    self.ready.offer(consumer_group, ready, holders)

    def _look_again(self) -> None:
        unread = list(self._unread)
        try:
            if not unread or self.lines.catch_up(_CAUGHT_UP_UNITS):
                return
        except (OSError, StoreReadError) as error:
            structlog.get_logger().error("lite_topics_not_followed", reason=str(error))
            return
        self._unread.clear()
        for consumer_group, parent, ready in unread:
            self._offer(consumer_group, parent, ready)

    # ---- positions ----

    def reset(
        self, consumer_group: str, parent: str, offsets: Mapping[str, Mapping[int, int]]
    ) -> asyncio.Future[None] | None:
        """Move the group to these offsets, and void its leases there.

        `offsets`: name → queue id → queue offset. Returns the future of
        LeaseJournal.write_until_durable; None if there are no offsets. Raises DiskFull,
        StoreReadOnly, without any change.
        """
        records = []
        for name, places in offsets.items():
            topic = lease_topic_of(parent, name)
            records += [
                ResetRecord(consumer_group, topic, queue_id, offset)
                for queue_id, offset in places.items()
            ]
        if not records:
            return None
        self.journal.check_open_to_appends()
        for _, topic, queue_id, offset in records:
            self.table.group(consumer_group, topic).queue(queue_id, fifo=True).reset(offset)
            self.positions.commit(consumer_group, topic, queue_id, offset)
            self.wake_pop(consumer_group, topic, queue_id)
        return self.journal.write_until_durable(records)

    # ---- steps ----

    def name_of(self, client: LiteClient, ready: ReadyLine) -> str | None:
        """Return the name of a line's lite topic; None if the client does not hold it.

        Raises the errors of a read.
        """
        if client.wildcard:
            return self.lines.name_of(client.parent, *ready)
        return client.names.get(ready.code)

    def again(self, consumer_group: str, parent: str, ready: ReadyLine) -> None:
        """Offer a line again that was taken but may still have messages."""
        self._offer(consumer_group, parent, ready)

    def _offer_all(self, consumer_group: str, parent: str, code: int) -> None:
        for queue_id in self.lines.queue_ids(parent, code):
            self._offer(consumer_group, parent, ReadyLine(queue_id, code))

    def _offer(self, consumer_group: str, parent: str, ready: ReadyLine) -> None:
        holders = self.subscriptions.holders(consumer_group, ready.code)
        if not holders:
            return
        first = next(iter(holders.values()))
        if first.parent != parent:
            return
        try:
            name = self.name_of(first, ready)
        except StoreReadError:
            self._unread[consumer_group, parent, ready] = None
            return
        if name is None:
            return
        if self._has_messages(consumer_group, lease_topic_of(parent, name), ready):
            self.ready.offer(consumer_group, ready, holders)

    def _has_messages(self, consumer_group: str, topic: str, ready: ReadyLine) -> bool:
        """Return whether a line has messages for a pop: not leased, and not all settled."""
        queue = self.table.in_use(consumer_group, topic, ready.queue_id)
        parent = line(topic).parent
        last = self.lines.last_offset(parent, ready.queue_id, ready.code)
        if queue is None:
            position = self.positions.position(consumer_group, parent, ready.queue_id, ready.code)
            return last >= (position or 0)
        if any(group.leased for group in queue.message_groups.values()):
            return False
        return bool(queue.in_flight) or last >= queue.cursor

    def _withdraw(self, client: LiteClient, code: int) -> None:
        group, parent = client.consumer_group, client.parent
        for queue_id in self.lines.queue_ids(parent, code):
            ready = ReadyLine(queue_id, code)
            if self.ready.withdraw(group, client.client_id, ready):
                self._offer(group, parent, ready)
