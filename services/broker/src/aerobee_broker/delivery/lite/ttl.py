"""Delete the lite topics of a parent whose last message is older than the parent's TTL.

A lite topic is deleted as a whole, including its unconsumed messages. Subscriptions stay, and
clients are not notified. One expiration record covers all lite topics deleted at once; it is kept
in the journal and in `liteOffsets`. It takes effect before it is durable, and precedes all later
messages in the log. The cleanup takes time proportional to the number of deleted lite topics, so it
runs in slices and yields to the event loop between them. The messages stay in the log until
retention deletes them; clients that pull the parent can still read them.
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

SLICE = 200  # lite topics between two turns of the event loop: a few milliseconds
MINUTE_MS = 60_000


@dataclass(frozen=True, slots=True)
class _Expired:
    """Lite topics of one queue that expire together.

    `lasts`: code → queue offset of its last message. `unsettled`: consumer group → number of their
    messages that the group has not settled.
    """

    parent: str
    queue_id: int
    queue: LiteQueue
    lasts: Mapping[int, int]
    unsettled: Counter[str] = field(default_factory=Counter)

    def count(self, consumer_group: str, code: int, position: int) -> None:
        """Count the unsettled messages from this queue offset on.

        The number is informative only. If it cannot be read, the failure is logged and nothing is
        counted.
        """
        try:
            self.unsettled[consumer_group] += self.queue.count_back(self.lasts[code], position)
        except (OSError, MqError) as error:
            structlog.get_logger().warning(
                "unsettled_lite_messages_not_counted", topic=self.parent, reason=str(error)
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteTtl(Component):
    """Expire lite topics by TTL. `clock`: the clock of the messages' store timestamps."""

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
        """Expire lite topics before the broker serves clients.

        Lite topics that expired while the broker was down are not delivered.
        """
        await self.round()

    async def round(self) -> None:
        """Expire lite topics; called every 30 s.

        A failure is logged, and the next round retries.
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
        """Expire the lite topics of one queue.

        Raises DiskFull, StoreReadOnly or the error of a read; nothing has changed then. Also raises
        the error that kept the expiration from becoming durable; the journal writes it again.
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
        # Write the resets first: without them, a lease would wait for deleted messages.
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
        """Settle the in-flight messages of these lite topics, so that acknowledgements succeed."""
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
        """Forget heads, positions and ready lines, except of lite topics with new messages."""
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
