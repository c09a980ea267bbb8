"""Pull: reads a message queue for a consumer group, or without a group (browse).

Checks, their order, and the meaning of the answers are those of PULL_MESSAGE. An answer holds the
records byte for byte as they are in the commit log; the caller decodes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import InvalidParameter, NoPermission, SubscriptionNotExist
from aerobee_broker.filter.filter import Filter, matching_records
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.consumers import MessageModel
from aerobee_broker.registry.queue_locks import QueueLocks
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadResult, ReadStatus
from aerobee_wire import topics as names

DEFAULT_MESSAGES = 32
DEFAULT_BYTES = 262_144
MAX_BYTES = 16 * 1024 * 1024
MAX_SUSPEND_MS = 30_000
MASTER_ID = 0


@dataclass(slots=True)
class PullRequest:
    """`filter` None: the one that the group registered by heartbeat. `commit_offset` None: nothing
    to commit. `locked`: the client pulls as the holder of the queue's lock."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    store: MessageStore
    access: ReadAccess
    offsets: ConsumerOffsets
    clients: Clients
    locks: QueueLocks
    polls: LongPolls
    metrics: BrokerMetrics
    options: BrokerOptions

    async def pull(self, request: PullRequest) -> tuple[ReadResult, int]:
        """The result, and the id of the broker to pull from next time.

        Raises NoPermission, InvalidParameter, TopicNotExist, GroupNotExist, SubscriptionNotExist,
        QueueLockNotHeld, MqError SUBSCRIPTION_PARSE_FAILED, and what the store raises.
        """
        self.access.check_broker()
        group = None if request.browse else await self.access.group(request.consumer_group)
        topic = self._checked_topic(request)
        wanted = request.filter or (
            Filter("TAG", "*") if group is None else self._registered_filter(request)
        )
        self.access.check_filter(wanted)
        wanted = self.access.filter_in(topic, wanted)
        if group is not None:
            self._check_broadcast(group)
            self._check_lock(request)
            self.clients.note_pull(
                request.client_id, request.consumer_group, request.topic, request.queue_id
            )
            reset = self._commit_offset(request)
            if reset is not None:
                return reset, group.broker_id
        result = await self._read(request, wanted)
        if result.message_count and group is not None:
            self.metrics.delivered(
                request.topic, request.consumer_group, result.message_count, len(result.records)
            )
        return result, MASTER_ID if group is None else group.broker_id

    async def _read(self, request: PullRequest, wanted: Filter) -> ReadResult:
        result = self._read_once(request, wanted)
        suspend_ms = min(request.suspend_timeout_ms, MAX_SUSPEND_MS)
        if (
            result.status is ReadStatus.NO_NEW
            and suspend_ms > 0
            and self.options.long_polling_enable
        ):
            await self.polls.park_pull(
                request.topic,
                request.queue_id,
                request.queue_offset,
                wanted.tags_codes,
                suspend_ms / 1000,
            )
            # Also after a timeout: messages of other tags may have moved the end of the queue.
            if request.browse:
                return self._read_once(request, wanted)
            self._check_lock(request)  # another client may have locked the queue meanwhile
            return self._reset_answer(request) or self._read_once(request, wanted)
        return result

    def _read_once(self, request: PullRequest, wanted: Filter) -> ReadResult:
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
        # A retry matched at its first delivery, and its properties may be others now.
        return _matching(wanted, result)

    # ---- checks ----

    def _checked_topic(self, request: PullRequest) -> TopicConfig:
        topic = self.access.topic(request.topic, request.queue_id)
        if request.queue_offset < 0 or request.max_messages < 0 or request.max_bytes < 0:
            raise InvalidParameter("queue_offset, max_messages and max_bytes are not negative")
        return topic

    def _registered_filter(self, request: PullRequest) -> Filter:
        subscriptions = self.clients.subscriptions(request.consumer_group)
        if subscriptions is None:
            raise SubscriptionNotExist(
                f"group {request.consumer_group} has no live consumer here: "
                "send a heartbeat first, or give a subscription"
            )
        subscription = subscriptions.get(request.topic)
        if subscription is None:
            raise SubscriptionNotExist(
                f"group {request.consumer_group} has not subscribed to {request.topic}: "
                "subscribe by heartbeat, or give a subscription"
            )
        return subscription.filter

    def _check_broadcast(self, group: SubscriptionGroup) -> None:
        if group.consume_broadcast_enable:
            return
        consumers = self.clients.consumers(group.consumer_group)
        if any(consumer.message_model is MessageModel.BROADCASTING for consumer in consumers):
            raise NoPermission(
                f"group {group.consumer_group} may not broadcast (consumeBroadcastEnable is off)"
            )

    def _check_lock(self, request: PullRequest) -> None:
        self.locks.check(
            request.consumer_group,
            request.topic,
            request.queue_id,
            request.client_id,
            locked=request.locked,
        )

    # ---- the group's offset ----

    def _commit_offset(self, request: PullRequest) -> ReadResult | None:
        """Commits the offset that comes with the pull, unless the group was reset: then returns the
        answer that tells the consumer so."""
        reset = self._reset_answer(request)
        if reset is None and request.commit_offset is not None and request.commit_offset >= 0:
            self.offsets.commit(
                request.consumer_group, request.topic, request.queue_id, request.commit_offset
            )
        return reset

    def _reset_answer(self, request: PullRequest) -> ReadResult | None:
        """OFFSET_TOO_LARGE, with the offset of a reset that the consumer was not told of yet."""
        offset = self.offsets.take_reset(request.consumer_group, request.topic, request.queue_id)
        if offset is None:
            return None
        return ReadResult(
            ReadStatus.OFFSET_TOO_LARGE,
            offset,
            self.store.min_offset(request.topic, request.queue_id),
            self.store.max_offset(request.topic, request.queue_id),
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
