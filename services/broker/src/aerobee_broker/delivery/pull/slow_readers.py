"""Choose the replica that a reader should read from.

The messages of a reader that is far behind are read from disk. If a slave has them, the reader
should use that slave, so that the master's page cache keeps the end of the log.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadResult, ReadStatus

MASTER_ID = 0
WHEN_SLOW_ID = 1  # for a reader without a group: RocketMQ's default of whichBrokerWhenConsumeSlowly


# Returns the ids of the readable slaves that have the log at a physical offset.
SlavesAt = Callable[[int], Collection[int]]


@dataclass(frozen=True, slots=True)
class SlowReaders:
    """Suggests replicas to readers.

    `slaves`: None if slaves do not serve reads. `limit_bytes`: a reader further behind is slow.
    """

    store: MessageStore
    slaves: SlavesAt | None
    limit_bytes: int

    def suggested(
        self, request: PullRequest, result: ReadResult, group: SubscriptionGroup | None
    ) -> int:
        """Return the id of the broker to pull from next time.

        It is the one in the group's settings if it has the messages. Otherwise, for a slow reader,
        it is the lowest id that has them.
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
