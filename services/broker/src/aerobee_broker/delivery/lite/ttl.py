"""Deletes the lite topics whose last message is older than the TTL of their parent topic.

A lite topic is deleted as a whole, including its unconsumed messages. Subscriptions stay, and
clients are not notified. One expiration record covers all lite topics of a queue that are deleted
at once. The record is stored in the lease journal and in `liteOffsets`. It takes effect before it
is durable, and is stored before all later messages.

The cleanup takes time proportional to the number of deleted lite topics, so it runs in slices and
yields to the event loop between them. The messages stay in the log until retention deletes them, so
clients that pull the parent topic can still read them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from aerobee_broker.delivery.lite.line_leases import LineLeases
from aerobee_broker.delivery.lite.lines import LiteLines, line
from aerobee_broker.delivery.lite.positions import LitePositions
from aerobee_broker.delivery.lite.ready import ReadyLine, ReadyLines
from aerobee_broker.delivery.pop.lease_journal import LeaseJournal
from aerobee_broker.delivery.pop.lease_journal_format import ExpireRecord, ResetRecord
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.store.lite.lite_queue import LiteQueue
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire.queues import lite
from aerobee_wire.status import MqError

SLICE = 200  # lite topics to clean up before yielding to the event loop: a few milliseconds
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class _Expired:
    """The lite topics of one queue that expire together.

    `lasts` maps the code of each lite topic to the queue offset of its last message. `unsettled`
    maps a consumer group to the number of expired messages that the group has not settled.
    """

    parent: str
    queue_id: int
    queue: LiteQueue
    lasts: Mapping[int, int]
    unsettled: Counter[str] = field(default_factory=Counter)

    def count(self, consumer_group: str, code: int, position: int) -> None:
        """Count the messages of a lite topic from a queue offset on as unsettled by a group.

        The number is only for metrics and logs. If the lite topic cannot be read, logs a warning
        and counts no messages.
        """
        try:
            self.unsettled[consumer_group] += self.queue.count_back(self.lasts[code], position)
        except (OSError, MqError) as error:
            structlog.get_logger().warning(
                "unsettled_lite_messages_not_counted", topic=self.parent, reason=str(error)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteTtl(Component):
    """Deletes lite topics by TTL. Compares the store times of messages with `clock`."""

    store: MessageStore
    lines: LiteLines
    ready: ReadyLines
    table: LineLeases
    positions: LitePositions
    journal: LeaseJournal
    topics: Topics
    groups: GroupRegistry
    metrics: BrokerMetrics
    clock: Clock

    async def start(self) -> None:
        """Delete expired lite topics before the broker serves clients.

        The messages of lite topics that expired while the broker was down are therefore not
        delivered.
        """
        await self.round()

    async def round(self) -> None:
        """Delete the expired lite topics of all parents. Called every 30 s.

        If this fails for a queue, logs an error. The next call retries.
        """
        for config in list(self.topics.all()):
            if config.message_type != lite.LITE:
                continue
            minutes = lite.ttl_minutes(config.attributes)
            if minutes is not None:
                before_ms = self.clock.now_ms() - minutes * MINUTE_MS
                for queue_id, queue in list(self.lines.lite_queues(config.topic)):
                    try:
                        await self._expire(config.topic, queue_id, queue, before_ms)
                    except (OSError, MqError) as error:
                        structlog.get_logger().error(
                            "lite_topics_not_expired", topic=config.topic, reason=str(error)
                        )

    async def _expire(self, parent: str, queue_id: int, queue: LiteQueue, before_ms: int) -> None:
        """Delete the expired lite topics of one queue, and wait until the deletion is durable.

        Raises DiskFull, StoreReadOnly or the error of a read before anything has changed. Also
        raises the error that prevented the deletion from becoming durable. The journal then writes
        the deletion again.
        """
        end = queue.end
        floor = min(end, self.store.search_offset(parent, queue_id, before_ms))
        if not queue.codes_below(floor):
            return
        self.journal.check_open_to_appends()
        lasts = dict(queue.expire(floor))
        if not lasts:
            return
        self.positions.note_change()
        expired = _Expired(parent, queue_id, queue, lasts)
        resets = self._void_leases(expired)
        # Write the resets first. Without them, a restored lease would contain deleted messages.
        expiration = ExpireRecord(parent, queue_id, end, floor)
        durable = self.journal.write_until_durable([*resets, expiration])
        await self._forget(expired)
        self.metrics.lite_topics_expired(parent, len(lasts), expired.unsettled)
        structlog.get_logger().info(
            "lite_topics_expired",
            topic=parent,
            queue=queue_id,
            lite_topics=len(lasts),
            unsettled=dict(expired.unsettled),
        )
        await asyncio.shield(durable)

    def _void_leases(self, expired: _Expired) -> list[ResetRecord]:
        """Settle the messages in flight of expired lite topics; return the journal records.

        Later acknowledgements of these messages then succeed.
        """
        records = []
        queue_id, end = expired.queue_id, expired.queue.end
        for consumer_group, topic in self.table.keys_of(topic=expired.parent):
            code = line(topic).code
            leases = self.table.in_use(consumer_group, topic, queue_id)
            if code in expired.lasts and leases is not None and leases.in_flight:
                expired.count(consumer_group, code, leases.committed_offset)
                leases.reset(end)
                self.positions.commit(consumer_group, topic, queue_id, end)
                records.append(ResetRecord(consumer_group, topic, queue_id, end))
        return records

    async def _forget(self, expired: _Expired) -> None:
        """Remove the remaining data of expired lite topics that have no new messages.

        These are the groups' positions, the entries in the queues of clients, and the data of the
        last message.
        """
        parent, queue_id, queue = expired.parent, expired.queue_id, expired.queue
        groups = [
            group.consumer_group
            for group in self.groups.table.all()
            if group.attributes.get(lite.BIND_ATTRIBUTE) == parent
        ]
        codes = list(expired.lasts)
        for begin in range(0, len(codes), SLICE):
            if begin:
                await asyncio.sleep(0)
            if dict(self.lines.lite_queues(parent)).get(queue_id) is not queue:
                return  # the parent was deleted in the meantime
            for code in codes[begin : begin + SLICE]:
                for group in groups:
                    position = self.positions.position(group, parent, queue_id, code) or 0
                    expired.count(group, code, position)
                if queue.last(code) is None:
                    self.positions.forget_code(parent, queue_id, code)
                    self.ready.discard(groups, ReadyLine(queue_id, code))
                    queue.forget_expired(code)
