"""Reads of a message queue: the request of a pull, the read, and the wait for more messages.

A master and a slave use the same code. Groups, offsets and locks are handled in `pull.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import RepairPending
from aerobee_broker.filter.filter import Filter, matching_records
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadResult, ReadStatus
from aerobee_wire import topics as names
from aerobee_wire.route import MASTER_ID

DEFAULT_MESSAGES = 32
DEFAULT_BYTES = 262_144
MAX_BYTES = 16 * 1024 * 1024
MAX_SUSPEND_MS = 30_000
WHEN_SLOW_ID = 1  # for a reader without a group: RocketMQ's default of whichBrokerWhenConsumeSlowly
# A function that returns the ids of the readable slaves that have the log up to a physical offset.
SlavesAt = Callable[[int], Collection[int]]


@dataclass(slots=True)
class PullRequest:
    """A request to read messages of one queue.

    If `filter` is None, the broker uses the filter that the group registered by heartbeat. If
    `commit_offset` is None, the pull commits no offset. `browse` reads without a consumer group. If
    `locked` is true, the pull is rejected unless the client holds the queue's lock.
    """

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_messages: int = 0
    max_bytes: int = 0
    commit_offset: int | None = None
    suspend_timeout_ms: int = 0
    filter: Filter | None = None
    browse: bool = False
    client_id: str = ""
    locked: bool = False


@dataclass(slots=True)
class QueueReading:
    store: MessageStore
    polls: LongPolls
    options: BrokerOptions

    def use(self, options: BrokerOptions) -> None:
        """Use the limits of `options`."""
        self.options = options

    def read(self, request: PullRequest, wanted: Filter) -> ReadResult:
        """Read the messages that are available, without waiting. Raises the errors of the store.

        A damaged record that may be repaired counts as one that has not arrived.
        """
        topic, queue_id = request.topic, request.queue_id
        try:
            result = self.store.read(
                topic,
                queue_id,
                request.queue_offset,
                max_messages=min(
                    request.max_messages or DEFAULT_MESSAGES,
                    self.options.pull_batch_max_message_count,
                ),
                max_bytes=min(request.max_bytes or DEFAULT_BYTES, MAX_BYTES),
                tags=wanted.tags_codes,
            )
        except RepairPending:
            return ReadResult(
                ReadStatus.NO_NEW,
                request.queue_offset,
                self.store.min_offset(topic, queue_id),
                self.store.max_offset(topic, queue_id),
            )
        if wanted.condition is None or names.is_retry(request.topic):
            return result
        # A retry matched at its first delivery, and its properties may have changed since.
        return _matching(wanted, result)

    def suspends(self, request: PullRequest) -> bool:
        """Return whether the pull waits if there is nothing to read."""
        return request.suspend_timeout_ms > 0 and self.options.long_polling_enable

    async def park(self, request: PullRequest, wanted: Filter) -> None:
        """Wait until a matching message arrives, or until the timeout.

        The caller must read again in both cases, because other messages may have arrived, which
        change the offset to read from next.
        """
        await self.polls.park_pull(
            request.topic,
            request.queue_id,
            request.queue_offset,
            wanted.tags_codes,
            min(request.suspend_timeout_ms, MAX_SUSPEND_MS) / 1000,
        )


def _matching(wanted: Filter, result: ReadResult) -> ReadResult:
    if result.status is not ReadStatus.FOUND:
        return result
    records = matching_records(wanted, result.records)
    return replace(
        result,
        status=ReadStatus.FOUND if records else ReadStatus.NO_MATCHED,
        records=b"".join(records),
        message_count=len(records),
    )


@dataclass(frozen=True, slots=True)
class SlowReaders:
    """Suggests the replica that a reader should read from.

    The messages of a reader that is far behind are read from disk. If a slave has them, the reader
    should use that slave, so that the master's page cache keeps the end of the log.

    `slaves` is None if slaves do not serve reads. A reader is slow if it is more than `limit_bytes`
    bytes of the log behind.
    """

    store: MessageStore
    slaves: SlavesAt | None
    limit_bytes: int

    def suggested(
        self, request: PullRequest, result: ReadResult, group: SubscriptionGroup | None
    ) -> int:
        """Return the id of the broker to pull from next time.

        This is the broker in the group's settings if it has the messages. Otherwise, for a slow
        reader, it is the slave with the lowest id that has the messages, and else the master.
        """
        if self.slaves is None or result.status is not ReadStatus.FOUND:
            return MASTER_ID
        last = self.store.units(request.topic, request.queue_id, result.next_begin_offset - 1, 1)
        end = sum(last[0][:2]) if last else self.store.confirmed_offset
        slaves = self.slaves(end)
        is_slow = self.store.confirmed_offset - end > self.limit_bytes
        usual, when_slow = MASTER_ID, WHEN_SLOW_ID
        if group is not None:
            usual, when_slow = group.broker_id, group.which_broker_when_consume_slowly
        chosen = when_slow if is_slow else usual
        if chosen in slaves:
            return chosen
        return min(slaves) if is_slow and slaves else MASTER_ID
