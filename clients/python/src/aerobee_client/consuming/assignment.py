"""Rebalance, acquire and release the message queues that this member of a consumer group owns.

Every member fetches the same two lists: the queues of a topic, and the members of the group. It
calculates its share by the same strategy as the others. While a list cannot be fetched, the member
keeps its queues. A broadcasting member owns all queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from itertools import groupby

from aerobee.broker.v1 import client_pb2, offset_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consuming.offsets import OffsetTable, Taken
from aerobee_client.consuming.order.locked_queues import LockedQueues
from aerobee_client.consuming.process_queue import Allowance, ProcessQueue
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.assignment_callbacks import AssignmentCallbacks
from aerobee_client.options.consumer import ConsumeFromWhere, MessageModel, ReadingOptions
from aerobee_client.runtime.clock import Clock
from aerobee_wire import rpcs
from aerobee_wire.status import MqError
from aerobee_wire.topics import is_retry

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0
DEFAULT_TIMESTAMP_AGE_MS = 30 * 60 * 1000
WAIT_MS = 2_000  # for a queue that another member has not released yet


class Handovers:
    """Limits how long this member waits for queues that another member has not released yet.

    The previous owner commits its offset when it learns of the rebalance, within a second. If
    it hangs, or its version does not release queues, the wait ends after WAIT_MS.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_ms: dict[MessageQueue, int] = {}

    def awaits(self, queue: MessageQueue) -> bool:
        """Return whether to wait for the release of `queue`, up to WAIT_MS after the first call."""
        now_ms = self._clock.monotonic_ms()
        return now_ms - self._since_ms.setdefault(queue, now_ms) < WAIT_MS

    def end(self, queue: MessageQueue) -> None:
        self._since_ms.pop(queue, None)

    def end_others(self, topic: str, queues: Collection[MessageQueue]) -> None:
        """End the waits for queues of `topic` that are not in `queues`."""
        for queue in list(self._since_ms):
            if queue.topic == topic and queue not in queues:
                self.end(queue)


@dataclass(frozen=True, slots=True)
class _Owned:
    process_queue: ProcessQueue
    pulling: asyncio.Task[None]


class Assignment:
    """Acquires, pulls and releases the queues that this member of a consumer group owns.

    `pull(process_queue, queue_offset)` pulls messages into a process queue until that is dropped.
    `request_rebalance` is called when a queue was lost between two rebalances. If `locked_queues`
    is given, it locks each queue before the pull begins, and releases it afterwards.
    """

    def __init__(
        self,
        instance: ClientInstance,
        offsets: OffsetTable,
        consumer_group: str,
        options: ReadingOptions,
        *,
        pull: Callable[[ProcessQueue, int], Coroutine[None, None, None]],
        request_rebalance: Callable[[], None],
        locked_queues: LockedQueues | None = None,
        callbacks: AssignmentCallbacks | None = None,
    ) -> None:
        self._instance = instance
        self._offsets = offsets
        self._consumer_group = consumer_group
        self._options = options
        self._strategy = options.allocation()
        self._began_ms = instance.clock.now_ms()
        self._broadcasting = offsets.message_model is MessageModel.BROADCASTING
        # When the first rebalance ended; 0 if it has not.
        self._joined_ms = 0
        self._pull = pull
        self._request_rebalance = request_rebalance
        self._handovers = Handovers(instance.clock)
        self._locked_queues = locked_queues
        # Whether a broker, when last asked, did not list this client among the members.
        self.unregistered = False
        self._owned: dict[MessageQueue, _Owned] = {}
        self._paused: set[str | MessageQueue] = set()  # topics and queues
        self._callbacks = callbacks or AssignmentCallbacks()
        self._notifying: set[asyncio.Task[None]] = set()
        self._for_all = _allowance(
            options.pull_threshold_for_all, options.pull_threshold_size_for_all
        )
        self._for_topic: dict[str, list[Allowance]] = {}
        self._resubscribed: set[str] = set()  # topics whose subscription has changed

    def queues(self) -> frozenset[MessageQueue]:
        return frozenset(self._owned)

    def process_queues(self) -> list[ProcessQueue]:
        return [owned.process_queue for owned in self._owned.values()]

    def pause(self, targets: Iterable[str | MessageQueue]) -> None:
        """Pause topics and queues, including queues that are acquired later."""
        self._paused.update(targets)
        for owned in self._owned.values():
            if self._is_paused(owned.process_queue.queue):
                owned.process_queue.pause()

    def resume(self, targets: Iterable[str | MessageQueue]) -> list[ProcessQueue]:
        """End the pause of queues, and of topics with all their queues.

        Returns the process queues that this call resumed.
        """
        for target in targets:
            self._paused.discard(target)
            if isinstance(target, str):
                self._paused -= {
                    each
                    for each in self._paused
                    if isinstance(each, MessageQueue) and each.topic == target
                }
        resumed = [
            owned.process_queue
            for queue, owned in self._owned.items()
            if owned.process_queue.paused and not self._is_paused(queue)
        ]
        for process_queue in resumed:
            process_queue.resume()
        return resumed

    def _is_paused(self, queue: MessageQueue) -> bool:
        return bool(self._paused) and (queue in self._paused or queue.topic in self._paused)

    def process_queue(self, queue: MessageQueue) -> ProcessQueue | None:
        """Return the process queue of an owned queue; otherwise None."""
        owned = self._owned.get(queue)
        return None if owned is None else owned.process_queue

    async def rebalance(self, topics: Collection[str]) -> bool:
        """Acquire this member's share of `topics` and release the other queues.

        Return False if some queues of the share are not acquired yet, for example because a route
        or an offset could not be fetched. Then the caller rebalances again soon.
        """
        resubscribed, self._resubscribed = self._resubscribed, set()
        await self._release(
            queue
            for queue in self.queues()
            if queue.topic not in topics or queue.topic in resubscribed
        )
        self.unregistered = False
        complete = True
        members: dict[str, list[str]] = {}
        for topic in topics:
            try:
                share = await self._share(topic, members)
                if share is None:
                    complete = False
                    continue
                owned = {queue for queue in self._owned if queue.topic == topic}
                self._handovers.end_others(topic, share)
                await self._release(owned.difference(share))
                wanted = [queue for queue in share if queue not in owned]
                if self._locked_queues is not None:
                    locked = await self._locked_queues.lock(wanted)
                    complete = complete and len(locked) == len(wanted)
                    wanted = [queue for queue in wanted if queue in locked]
                complete = await self._acquire(wanted) and complete
            except MqError as error:
                log.info("topic %s not rebalanced: %s", topic, error)
                complete = False
                await self._instance.routes.refresh_soon(topic)
        self._joined_ms = self._joined_ms or self._instance.clock.now_ms()
        if self._locked_queues is not None:
            await self._locked_queues.unlock_others(self._owned)
        return complete

    def on_offset_moved(self, process_queue: ProcessQueue, queue_offset: int) -> None:
        """Drop the pulled messages of a queue, and pull it from `queue_offset` on.

        The broker answered a pull with OFFSET_MOVED: the requested messages are deleted, or the
        group's offset was reset.
        """
        queue = process_queue.queue
        if process_queue.dropped:
            return
        log.warning("the broker moves %s to offset %d", queue, queue_offset)
        process_queue.drop()
        self._offsets.set(queue, queue_offset)
        self._start_pulling(queue, queue_offset)

    async def own(self, queues: Collection[MessageQueue]) -> None:
        """Acquire `queues`, without regard to other readers, and release all other queues.

        Raises MqError if a queue could not be acquired; then the caller retries soon.
        """
        await self._release(self.queues().difference(queues))
        await self._acquire([queue for queue in queues if queue not in self._owned])

    def move(self, queue: MessageQueue, queue_offset: int) -> None:
        """Drop the pulled messages of `queue`, and pull it from `queue_offset` on.

        If the queue is not owned yet, it is acquired. The offset to commit does not change.
        """
        owned = self._owned.get(queue)
        if owned is not None:
            owned.process_queue.drop()
            owned.pulling.cancel()
        self._start_pulling(queue, queue_offset)

    def on_topic_deleted(self, queue: MessageQueue) -> None:
        """Release a queue whose topic and offset were deleted from its broker.

        If the topic is created again, a rebalance acquires the queue again and reads it from its
        start.
        """
        owned = self._owned.pop(queue, None)
        if owned is None:
            return
        log.warning("%s is lost: its topic was deleted from the broker", queue)
        owned.process_queue.drop()
        owned.pulling.cancel()
        self._offsets.discard(queue)
        self._notify_of_loss(queue)
        self._request_rebalance()

    def on_lock_lost(self, queue: MessageQueue) -> None:
        """Release a queue whose lock another member has.

        That member starts at the committed offset.
        """
        owned = self._owned.pop(queue, None)
        if owned is None:
            return
        owned.process_queue.drop()
        owned.pulling.cancel()
        self._offsets.forget(queue)
        self._notify_of_loss(queue)
        self._request_rebalance()

    def _notify_of_loss(self, queue: MessageQueue) -> None:
        notifying = asyncio.create_task(self._callbacks.revoked([queue]))
        self._notifying.add(notifying)
        notifying.add_done_callback(self._notifying.discard)

    async def on_lock_regained(self, queue: MessageQueue) -> None:
        """Continue with a queue whose lock was free for a while.

        If another member committed a higher offset in the meantime, pulling restarts from that
        offset. Raises MqError if the committed offset cannot be loaded.
        """
        stored = await self._offsets.load(queue.topic, queue.broker_name)
        committed, owned = stored.get(queue.queue_id, -1), self._owned.get(queue)
        known = self._offsets.get(queue)
        if owned is None or known is None:
            return
        if committed > known:
            owned.pulling.cancel()
            self.on_offset_moved(owned.process_queue, committed)
        else:
            self._offsets.set(queue, known)  # commit again: a broker that restarted may lack it

    def on_subscription_changed(self, topic: str) -> None:
        """Stop pulling `topic` at once.

        The next rebalance releases its queues and acquires them again, so that pulling resumes from
        the committed offsets with the new subscription.
        """
        self._resubscribed.add(topic)
        for queue, owned in self._owned.items():
            if queue.topic == topic:
                owned.pulling.cancel()

    async def stop_pulling(self) -> None:
        """Stop pulling. The queues stay owned because pulled messages may still be consumed."""
        tasks = [owned.pulling for owned in self._owned.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def release_all(self) -> None:
        await self._release(self.queues())
        if self._locked_queues is not None:
            await self._locked_queues.until_released()
        await self._offsets.commit()  # also for queues that a cancelled rebalance had released

    async def _share(
        self, topic: str, members_by_address: dict[str, list[str]]
    ) -> list[MessageQueue] | None:
        """Return the queues of `topic` that this member should own.

        Return None if this client is not among the members yet, or if the topic has no readable
        queue.
        """
        queues = await self._instance.routes.subscribe_queues(topic)
        if not queues:
            return None
        if self._broadcasting:
            return queues
        members = await self._members(queues, members_by_address)
        if self._instance.client_id not in members:
            self.unregistered = True
            return None
        return self._strategy(self._instance.client_id, queues, members)

    async def _members(
        self, queues: list[MessageQueue], members_by_address: dict[str, list[str]]
    ) -> list[str]:
        """Return the sorted client ids of the group.

        The list comes from the first broker of `queues` that answers. Every member asks the same
        broker. Raises MqError if none answers.
        """
        failure: MqError | None = None
        for broker_name in dict.fromkeys(queue.broker_name for queue in queues):
            try:
                address = self._instance.routes.address_of(broker_name)
                if address not in members_by_address:
                    members_by_address[address] = await self._list_members(address)
                return members_by_address[address]
            except MqError as error:
                failure = error
        assert failure is not None, "there is at least one queue"
        raise failure

    async def _list_members(self, address: str) -> list[str]:
        request = client_pb2.ListGroupMembersRequest(consumer_group=self._consumer_group)
        response = await self._instance.transport.call(
            address, rpcs.LIST_GROUP_MEMBERS, request, timeout_s=CALL_TIMEOUT_S
        )
        return sorted(response.client_ids)

    async def _release(self, queues: Iterable[MessageQueue]) -> None:
        released = [queue for queue in queues if queue in self._owned]
        if not released:
            return
        log.info("%s releases %s", self._consumer_group, ", ".join(map(str, released)))
        self._offsets.settle()
        for queue in released:
            owned = self._owned.pop(queue)
            owned.pulling.cancel()
            if self._locked_queues is not None:
                self._locked_queues.release(owned.process_queue)
            else:
                owned.process_queue.drop()
        await self._callbacks.revoked(released)
        if self._locked_queues is None:
            await self._offsets.release(released)

    async def _acquire(self, queues: list[MessageQueue]) -> bool:
        """Start to pull `queues`. Return False if another member still has some of them.

        In that case the caller acquires these queues again soon. Raises MqError if a broker does
        not answer or refuses a queue. The other queues are acquired first, so that one broker does
        not delay them.
        """
        away: set[str] = set()
        failure: MqError | None = None
        complete = True
        for (topic, broker_name), group in groupby(queues, key=lambda queue: queue[:2]):
            there = list(group)
            offsets: dict[MessageQueue, int] = {}
            taken = Taken({})
            try:
                if broker_name not in away:
                    ids = [queue.queue_id for queue in there]
                    taken = await self._offsets.take(topic, broker_name, ids)
            except MqError as error:
                failure = failure or error
                away.add(broker_name)
            for queue in there:
                if broker_name in away:
                    break
                if queue.queue_id in taken.held and self._handovers.awaits(queue):
                    complete = False
                    continue
                try:
                    offsets[queue] = await self._start_offset(queue, taken)
                except MqError as error:
                    failure = failure or error
                    if error.retryable:
                        away.add(broker_name)
            await self._callbacks.assigned(offsets)
            for queue, queue_offset in offsets.items():
                if queue in self._owned:  # moved to another offset in the meantime
                    continue
                log.info("%s owns %s from offset %d", self._consumer_group, queue, queue_offset)
                self._handovers.end(queue)
                self._start_pulling(queue, queue_offset)
                self._offsets.set(queue, queue_offset)
        if failure is not None:
            raise failure
        return complete

    async def _start_offset(self, queue: MessageQueue, taken: Taken) -> int:
        """Return the offset where the member starts to pull a queue. Raises MqError.

        This is the committed offset, or the offset that the options select if none is committed.
        """
        queue_offset = taken.offsets.get(queue.queue_id)
        return await self._initial_offset(queue) if queue_offset is None else queue_offset

    def _start_pulling(self, queue: MessageQueue, queue_offset: int) -> None:
        if queue.topic not in self._for_topic:
            options = self._options
            self._for_topic[queue.topic] = _allowance(
                options.pull_threshold_for_topic, options.pull_threshold_size_for_topic
            )
        process_queue = ProcessQueue(
            queue,
            self._options,
            queue_offset,
            paused=self._is_paused(queue),
            allowances=[*self._for_topic[queue.topic], *self._for_all],
        )
        pulling = asyncio.create_task(self._pull(process_queue, queue_offset), name=f"pull {queue}")
        self._owned[queue] = _Owned(process_queue, pulling)

    async def _initial_offset(self, queue: MessageQueue) -> int:
        """Return the start offset for a group that has no committed offset. Raises MqError."""
        where = self._options.consume_from_where
        if where is ConsumeFromWhere.TIMESTAMP and not is_retry(queue.topic):
            start_ms = self._options.consume_timestamp_ms
            if start_ms is None:
                start_ms = self._by_clock_of(queue, self._began_ms) - DEFAULT_TIMESTAMP_AGE_MS
            return await self._offset_at(queue, start_ms)
        if self._broadcasting and where is ConsumeFromWhere.LAST_OFFSET and self._joined_ms:
            # The queue was created after this member joined, which must not miss its messages.
            return await self._offset_at(queue, self._by_clock_of(queue, self._joined_ms))
        request = offset_pb2.GetQueueOffsetsRequest(topic=queue.topic, queue_ids=[queue.queue_id])
        response = await self._instance.ask_broker(
            queue.broker_name, rpcs.GET_QUEUE_OFFSETS, request, timeout_s=CALL_TIMEOUT_S
        )
        bounds = response.queues[0] if response.queues else offset_pb2.QueueBounds()
        if (
            where is ConsumeFromWhere.LAST_OFFSET
            and (bounds.min_offset > 0 or self._broadcasting)
            and not is_retry(queue.topic)
        ):
            return bounds.max_offset
        return bounds.min_offset

    def _by_clock_of(self, queue: MessageQueue, now_ms: int) -> int:
        """Convert a time of this client to the clock of the broker that stored the messages."""
        return now_ms + self._instance.clock_ahead_ms(queue.broker_name)

    async def _offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        request = offset_pb2.SearchOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms
        )
        response = await self._instance.ask_broker(
            queue.broker_name, rpcs.SEARCH_OFFSET, request, timeout_s=CALL_TIMEOUT_S
        )
        return response.queue_offset


def _allowance(max_messages: int | None, max_bytes: int | None) -> list[Allowance]:
    """Return a list of one allowance, or an empty list if there are no thresholds."""
    unbounded = max_messages is None and max_bytes is None
    return [] if unbounded else [Allowance(max_messages, max_bytes)]
