"""Pull: reads a message queue for a consumer group, or without a group (browse).

The checks, their order, and the meaning of the responses are those of RocketMQ's PULL_MESSAGE. A
response contains the records byte for byte as in the commit log. The caller decodes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.offsets import OnCommit
from aerobee_broker.delivery.pull.reading import PullRequest, QueueReading, SlowReaders
from aerobee_broker.errors import InvalidParameter, NoPermission, SubscriptionNotExist
from aerobee_broker.filter.filter import Filter
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.offset_history import COMMIT, Mover
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup, SubscriptionGroups
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.consumers import MessageModel
from aerobee_broker.registry.queue_locks import QueueLocks
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import ReadResult, ReadStatus
from aerobee_wire.route import MASTER_ID

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    store: MessageStore
    reading: QueueReading
    slow_readers: SlowReaders
    access: ReadAccess
    offsets: ConsumerOffsets
    clients: Clients
    locks: QueueLocks
    metrics: BrokerMetrics
    on_commit: OnCommit
    traces: BrokerTraces | None = None

    async def pull(self, request: PullRequest) -> tuple[ReadResult, int]:
        """Return the messages that were read, and the id of the broker to pull from next time.

        If there are no messages, the call may wait for new ones first.

        Raises NoPermission, InvalidParameter, TopicNotExist, GroupNotExist, SubscriptionNotExist,
        QueueLockNotHeld, TooMuchInFlight, MqError with the code SUBSCRIPTION_PARSE_FAILED, and the
        errors of the store.
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
            self.offsets.begin(
                request.consumer_group,
                request.topic,
                request.queue_id,
                request.queue_offset,
                request.client_id,
            )
            reset = self._commit_offset(request, wanted)
            if reset is not None:
                return reset, MASTER_ID
        result = await self._read(request, wanted)
        if result.status is ReadStatus.OFFSET_TOO_LARGE and group is not None:
            result = self._back_to_group(request, result)
        if result.message_count and group is not None:
            self.metrics.delivered(
                request.topic, request.consumer_group, result.message_count, len(result.records)
            )
            if self.traces is not None:
                self.traces.delivered(request.consumer_group, result.records)
            self.clients.pulled(
                request.consumer_group, request.topic, request.queue_id, result.next_begin_offset
            )
        return result, self.slow_readers.suggested(request, result, group)

    async def _read(self, request: PullRequest, wanted: Filter) -> ReadResult:
        await self.access.room()
        result = self.reading.read(request, wanted)
        if result.status is ReadStatus.NO_NEW and self.reading.suspends(request):
            await self.reading.park(request, wanted)
            await self.access.room()
            if request.browse:
                return self.reading.read(request, wanted)
            self.access.check_group(request.consumer_group)
            self._check_lock(request)  # another client may have locked the queue in the meantime
            return self._reset_answer(request) or self.reading.read(request, wanted)
        return result

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

    def _commit_offset(self, request: PullRequest, wanted: Filter) -> ReadResult | None:
        """Commit the offset that the pull contains, if any, and return None.

        If the group's offset was reset, commits nothing, and returns a response that contains the
        new offset.
        """
        reset = self._reset_answer(request)
        group, topic, queue_id = request.consumer_group, request.topic, request.queue_id
        offset = -1 if request.commit_offset is None else request.commit_offset
        if reset is None and 0 <= offset <= self.store.max_offset(topic, queue_id):
            mover = Mover(request.client_id, COMMIT, wanted.text)
            self.offsets.commit(group, topic, queue_id, offset, mover)
            self.on_commit(group, topic, queue_id)
        return reset

    def _back_to_group(self, request: PullRequest, result: ReadResult) -> ReadResult:
        """Return `result` with the group's offset as the next one, if that offset is lower.

        This is for a consumer whose offset is beyond the end of the queue, because it has read
        messages that an unclean election lost. At the end of the queue, the consumer would skip the
        messages that arrived since the election.
        """
        offset = self.offsets.get(request.consumer_group, request.topic, request.queue_id)
        if offset is None or offset >= result.next_begin_offset:
            return result
        return replace(result, next_begin_offset=max(offset, result.min_offset))

    def _reset_answer(self, request: PullRequest) -> ReadResult | None:
        """Return a response that reports a reset of the group's offset to the consumer.

        The response has the status OFFSET_TOO_LARGE and the new offset. Returns None if there was
        no reset, or the consumer already got its offset.
        """
        offset = self.offsets.take_reset(request.consumer_group, request.topic, request.queue_id)
        if offset is None:
            return None
        return ReadResult(
            ReadStatus.OFFSET_TOO_LARGE,
            offset,
            self.store.min_offset(request.topic, request.queue_id),
            self.store.max_offset(request.topic, request.queue_id),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlavePull:
    """Serves pulls on a slave, which returns only messages that are visible on this slave.

    The slave does not create groups, accept offsets or check locks, because only the master does.
    The slave may lag behind the master. For an offset outside the bounds of its queue, it therefore
    returns the status NO_NEW. For an unknown group, it refers the client to the master.

    `check` raises NotServed while this slave does not serve reads. `refuse` returns that error for
    requests that the master must answer. `has_master` returns whether this slave follows a master.
    If it does, a pull without messages does not wait, because the master may have messages.
    """

    reading: QueueReading
    slow_readers: SlowReaders
    access: ReadAccess
    groups: SubscriptionGroups
    metrics: BrokerMetrics
    check: Callable[[], None]
    refuse: Callable[[], Exception]
    has_master: Callable[[], bool]

    async def pull(self, request: PullRequest) -> tuple[ReadResult, int]:
        """Return the messages that were read, and the id of the broker to pull from next time.

        Raises NotServed, NoPermission, InvalidParameter, TopicNotExist, SubscriptionNotExist,
        TooMuchInFlight, MqError with the code SUBSCRIPTION_PARSE_FAILED, and the errors of the
        store.
        """
        self.check()
        if request.locked:  # only the master knows whether the caller holds the lock
            raise self.refuse()
        self.access.check_broker()
        group = None if request.browse else self._group(request.consumer_group)
        wanted = self._wanted(request)
        await self.access.room()
        result = self._read(request, wanted)
        if (
            result.status is ReadStatus.NO_NEW
            and not self.has_master()
            and self.reading.suspends(request)
        ):
            await self.reading.park(request, wanted)
            await self.access.room()
            self.check()
            result = self._read(request, wanted)
        if result.message_count and group is not None:
            self.metrics.delivered(
                request.topic, request.consumer_group, result.message_count, len(result.records)
            )
        return result, self.slow_readers.suggested(request, result, group)

    def _group(self, consumer_group: str) -> SubscriptionGroup:
        group = self.groups.get(consumer_group)
        if group is None:
            raise self.refuse()
        if not group.consume_enable:
            raise NoPermission(f"group {consumer_group} may not consume (consumeEnable is off)")
        return group

    def _wanted(self, request: PullRequest) -> Filter:
        topic = self.access.topic(request.topic, request.queue_id)
        if request.filter is None and not request.browse:
            raise SubscriptionNotExist(
                "a slave does not accept heartbeats, so it knows no subscriptions: give one "
                "with the pull"
            )
        wanted = request.filter or Filter("TAG", "*")
        self.access.check_filter(wanted)
        return self.access.filter_in(topic, wanted)

    def _read(self, request: PullRequest, wanted: Filter) -> ReadResult:
        result = self.reading.read(request, wanted)
        moved = result.status in (ReadStatus.OFFSET_TOO_SMALL, ReadStatus.OFFSET_TOO_LARGE)
        # The master may have the messages that are damaged here.
        if moved or result.corrupted_count:
            return replace(
                result,
                status=ReadStatus.NO_NEW,
                next_begin_offset=request.queue_offset,
                records=b"",
                message_count=0,
                corrupted_count=0,
            )
        return result
