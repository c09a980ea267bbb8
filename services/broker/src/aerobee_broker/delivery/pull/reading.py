"""Reads of a message queue: the request of a pull, the read, and the wait for more messages.

The same on a master and on a slave. Groups, offsets and locks are handled in `pull.py` and
`slave_pull.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.filter.filter import Filter, matching_records
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadResult, ReadStatus
from aerobee_wire import topics as names

DEFAULT_MESSAGES = 32
DEFAULT_BYTES = 262_144
MAX_BYTES = 16 * 1024 * 1024
MAX_SUSPEND_MS = 30_000


@dataclass(slots=True)
class PullRequest:
    """A pull.

    `filter`: None for the one that the group registered by heartbeat. `commit_offset`: None if the
    pull commits no offset. `locked`: the client pulls as the holder of the queue's lock.
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


@dataclass(frozen=True, slots=True)
class QueueReading:
    store: MessageStore
    polls: LongPolls
    options: BrokerOptions

    def read(self, request: PullRequest, wanted: Filter) -> ReadResult:
        """Read the available messages. Raises the errors of the store."""
        result = self.store.read(
            request.topic,
            request.queue_id,
            request.queue_offset,
            max_messages=min(
                request.max_messages or DEFAULT_MESSAGES, self.options.pull_batch_max_message_count
            ),
            max_bytes=min(request.max_bytes or DEFAULT_BYTES, MAX_BYTES),
            tags=wanted.tags_codes,
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

        The caller must read again in both cases: messages with other tags may have moved the
        queue's end.
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
