"""Offers lite topics with deliverable messages to clients.

A lite topic may become ready for delivery when a message arrives or a client subscribes. The same
applies when the last lease on its messages ends, or the group's position is reset. Each of these
events calls this module. Only the writes to the journal are asynchronous. For wildcard groups, the
name of a lite topic is read from a message. Apart from that, this module does not read messages.
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

_CAUGHT_UP_UNITS = 4_096  # entries of a consume queue to read at once: about 40 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteDispatch:
    lines: LiteLines
    subscriptions: Subscriptions
    ready: ReadyLines
    table: LineLeases
    positions: LitePositions
    journal: LeaseJournal
    # (group, parent, lite topic in a queue) for lite topics whose state could not be read.
    _unread: dict[tuple[str, str, ReadyLine], None] = field(default_factory=dict, init=False)

    # ---- events that make a line ready ----

    def arrived(self, arrival: Arrival) -> None:
        """Offer the lite topics of newly visible messages of a parent topic to clients.

        After a failure, logs an error. The next arrival or `rescue` then processes the messages.
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
        """Offer a lite topic to clients again if it has messages to deliver.

        Called when a lease on its messages has ended, or messages are settled. If `queue_id` is
        None, all queues with messages of the lite topic are considered.
        """
        parent, _, code = line(topic)
        queue_ids = self.lines.queue_ids(parent, code) if queue_id is None else [queue_id]
        for each in queue_ids:
            self._offer(consumer_group, parent, ReadyLine(each, code))

    def wake_pops(self, topic: str) -> None:
        """Do nothing, because `reset` offers lite topics, and deleted ones have no messages."""

    def changed(self, change: Change) -> None:
        """Offer and withdraw lite topics after a client has changed its subscription."""
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
        """Offer the pending lite topics of a client that has left to the other clients."""
        for ready in self.ready.leave(client.consumer_group, client.client_id):
            self._offer(client.consumer_group, client.parent, ready)

    def rescue(self) -> None:
        """Move the pending lite topics of clients that do not receive to other subscribers.

        Also retries lite topics whose state could not be read. Called every 10 s.
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
        """Set a group's positions in lite topics, and end its leases in these lite topics.

        `offsets` maps the name of a lite topic to the queue offset for each queue id. Returns the
        future of LeaseJournal.write_until_durable, or None if there are no offsets. Raises DiskFull
        or StoreReadOnly, without any change.
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
        for _, topic, queue_id, offset, _ in records:
            self.table.group(consumer_group, topic).queue(queue_id, fifo=True).reset(offset)
            self.positions.commit(consumer_group, topic, queue_id, offset)
            self.wake_pop(consumer_group, topic, queue_id)
        return self.journal.write_until_durable(records)

    # ---- steps ----

    def name_of(self, client: LiteClient, ready: ReadyLine) -> str | None:
        """Return the name of a lite topic, or None if the client does not subscribe to it.

        Raises the errors of a read.
        """
        if client.wildcard:
            return self.lines.name_of(client.parent, *ready)
        return client.names.get(ready.code)

    def again(self, consumer_group: str, parent: str, ready: ReadyLine) -> None:
        """Offer a lite topic again after a receive, because it may have more messages."""
        self._offer(consumer_group, parent, ready)

    def again_later(self, consumer_group: str, parent: str, ready: ReadyLine) -> None:
        """Offer a lite topic again within 10 s, because its next message cannot be read now."""
        self._unread[consumer_group, parent, ready] = None

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
        """Return whether a pop would find messages of a lite topic in a queue.

        This is the case if no message is on lease, and not all messages are settled.
        """
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
