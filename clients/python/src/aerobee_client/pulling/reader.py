"""Run a pull consumer from start to close: find its queues, and seek, pause and commit.

The plain and the asyncio pull consumer use this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from functools import partial

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consuming.membership import Membership
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.consuming.pulled_queues import statistics_of
from aerobee_client.consuming.puller import TopicSubscription
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.hooks import notify
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.consumer import PullConsumerOptions
from aerobee_client.pulling.assigned import Assigned
from aerobee_client.pulling.offsets import PullOffsets, bounds
from aerobee_client.pulling.unread import UnreadMessages
from aerobee_wire.status import Code, MqError, illegal_operation, invalid_parameter


class Reader:
    """Implements a pull consumer. `consumer_group` is "" if there is no group."""

    def __init__(
        self, consumer_group: str, instance: ClientInstance, options: PullConsumerOptions
    ) -> None:
        self.instance = instance
        self.offsets = PullOffsets(
            instance,
            consumer_group,
            auto_commit=options.auto_commit,
            on_settle=self._settle,
        )
        self.unread = UnreadMessages(
            self.offsets,
            instance.clock,
            partial(notify, options.interceptors, "after_receive", consumer_group)
            if options.interceptors
            else None,
        )
        self._consumer_group = consumer_group
        self._options = options
        self._membership: Membership[UnreadMessages] | None = None
        self._assigned: Assigned | None = None

    @property
    def _source(self) -> Membership[UnreadMessages] | Assigned | None:
        return self._membership or self._assigned

    @property
    def started(self) -> bool:
        """True if the consumer has joined its group or reads assigned queues."""
        return self._source is not None

    async def join(self, subscriptions: Mapping[str, TopicSubscription]) -> None:
        """Join the consumer group.

        If it raises MqError, the caller must still call `close`.
        """
        self._membership = Membership(
            self._consumer_group,
            self.instance,
            subscriptions,
            self._options,
            offsets=self.offsets,
            consumption=self.unread,
            consume_type=client_pb2.PULL,
            on_failure=self._on_failure_of_member,
            statistics=self.statistics,
        )
        await self._membership.start(self._options.auto_commit_interval.total_seconds())

    def _settle(self) -> None:
        self.unread.settle()

    def statistics(self) -> ConsumerStatistics:
        source = self._source
        if source is None:
            return ConsumerStatistics()
        self.unread.settle()
        return statistics_of(self.unread.tally, source.pulled)

    async def find_routes(self, topics: Iterable[str]) -> None:
        """Fetch the routes of topics.

        Raises MqError with the code TOPIC_NOT_EXIST, or NamesrvUnreachable.
        """
        for topic in topics:
            await self.instance.routes.route(topic)

    def assign(
        self, chosen: Collection[MessageQueue], subscriptions: Mapping[str, TopicSubscription]
    ) -> None:
        """Read exactly the queues in `chosen` from now on.

        The caller may change `chosen` and `subscriptions`, and then calls this method again.
        """
        if self._assigned is not None:
            self._assigned.changed()
            return
        self._assigned = Assigned(
            self._consumer_group,
            self.instance,
            chosen,
            subscriptions,
            self._options,
            offsets=self.offsets,
            consumption=self.unread,
        )
        self._assigned.start()

    def subscriptions_changed(self, topic: str) -> None:
        """Continue to read after the subscription of `topic` was changed or removed.

        Assigned queues continue at their positions, and queues of a group member at the committed
        offsets.
        """
        if self._assigned is not None:
            assignment = self._assigned.assignment
            for queue in assignment.queues():
                process_queue = assignment.process_queue(queue)
                if queue.topic == topic and process_queue is not None:
                    assignment.move(queue, self.unread.position(process_queue))
        if self._membership is not None:
            self._membership.subscriptions_changed(topic)

    async def close(self) -> None:
        source = self._source
        if source is None:
            await self.unread.close(0)
            await self.instance.close()
        else:
            await source.close(0)

    def queues(self) -> frozenset[MessageQueue]:
        """Return the queues that are read now."""
        return frozenset() if self._source is None else self._source.assignment.queues()

    async def process_queue(self, queue: MessageQueue) -> ProcessQueue:
        """Return the process queue of a queue that is read. An assigned queue is acquired first.

        Raises MqError with the code ILLEGAL_OPERATION if this consumer does not read the queue.
        Raises another MqError if an assigned queue cannot be acquired.
        """
        source = self._source
        found = None if source is None else source.assignment.process_queue(queue)
        if found is None and self._assigned is not None and self._assigned.wants(queue):
            await self._assigned.acquire()
            found = self._assigned.assignment.process_queue(queue)
        if found is None:
            raise not_read(queue)
        return found

    async def seek_within_bounds(self, queue: MessageQueue, queue_offset: int) -> None:
        """Seek to an offset after a check that the queue has it.

        Raises MqError with the code INVALID_PARAMETER, whose text names the bounds of the queue.
        """
        self.check_read(queue)
        begin, end = (await bounds(self.instance, [queue]))[queue]
        if not begin <= queue_offset <= end:
            raise invalid_parameter(
                f"{queue} cannot be read from {queue_offset}: give {begin} to {end}"
            )
        self.seek({queue: queue_offset})

    def seek(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue to read queues at these offsets.

        If this consumer does not read one of the queues, no queue changes, and MqError with the
        code ILLEGAL_OPERATION is raised.
        """
        for queue in offsets:
            self.check_read(queue)
        source = self._source
        for queue, queue_offset in offsets.items():
            assert source is not None, "it reads the queue"
            self.offsets.sought(queue, queue_offset)
            source.assignment.move(queue, queue_offset)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Pause queues. They are not pulled, and their messages do not count for thresholds.

        If this consumer does not read one of the queues, no queue is paused, and MqError with the
        code ILLEGAL_OPERATION is raised.
        """
        for queue in queues:
            self.check_read(queue)
        self.unread.pause(queues)
        if source := self._source:
            source.assignment.pause(queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        self.unread.resume(queues)
        if source := self._source:
            source.assignment.resume(queues)

    def reads(self, queue: MessageQueue) -> bool:
        """Return whether this consumer reads the queue or will read it soon."""
        wanted = self._assigned is not None and self._assigned.wants(queue)
        return wanted or queue in self.queues()

    def check_read(self, queue: MessageQueue) -> None:
        if not self.reads(queue):
            raise not_read(queue)

    def left(self, ends: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the positions of the queues that are not yet read to their `ends`.

        Queues that this consumer does not read are left out. The position is -1 for a queue that is
        not acquired yet.
        """
        source = self._source
        left: dict[MessageQueue, int] = {}
        for queue, end in ends.items():
            if source is not None and self.reads(queue):
                found = source.assignment.process_queue(queue)
                position = -1 if found is None else self.unread.position(found)
                if position < end:
                    left[queue] = position
        return left

    async def lag(self, ends: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return the number of messages between the position and the end of each queue.

        Queues that this consumer does not read are left out.
        """
        lag: dict[MessageQueue, int] = {}
        for queue, end in ends.items():
            if self.reads(queue):
                lag[queue] = max(0, end - self.unread.position(await self.process_queue(queue)))
        return lag

    def stalled(self, queues: Collection[MessageQueue], timeout: timedelta) -> MqError:
        """Return the error for queues that could not be read to their ends within `timeout`."""
        first = min(queues)
        failure = self.unread.failure(first)
        why = "it is paused" if first in self.unread.paused else "its broker answers nothing more"
        return MqError(
            Code.REQUEST_TIMEOUT,
            f"nothing came for {timeout.total_seconds():g} s of {len(queues)} queues that are not "
            f"read to their ends, such as {first} ({failure or why}): retry, or allow more time",
        )

    async def committed(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int | None]:
        """Return the committed offset of each queue, or None if the group has not committed one."""
        self._check_group()
        stored: dict[tuple[str, str], dict[int, int]] = {}
        for topic, broker_name in {(queue.topic, queue.broker_name) for queue in queues}:
            await self.instance.routes.route(topic)
            stored[topic, broker_name] = await self.offsets.load(topic, broker_name)
        return {queue: stored[queue[:2]].get(queue.queue_id) for queue in queues}

    async def commit(self, offsets: Mapping[MessageQueue, int] | None) -> dict[MessageQueue, int]:
        """Commit offsets. If `offsets` is None, commit the positions of all queues.

        Raises MqError with the code INVALID_PARAMETER, whose text names the bounds of a queue.
        Raises also the errors of `process_queue`.
        """
        self._check_group()
        positions = {
            queue: self.unread.position(await self.process_queue(queue))
            for queue in (self.queues() if offsets is None else offsets)
        }
        chosen = positions if offsets is None else dict(offsets)
        for queue, queue_offset in chosen.items():
            if not 0 <= queue_offset <= positions[queue]:
                raise invalid_parameter(
                    f"{queue_offset} of {queue} cannot be committed: give 0 to its position, "
                    f"{positions[queue]}; seek first to go beyond"
                )
        await self.offsets.commit_now(chosen)
        return chosen

    def _check_group(self) -> None:
        if not self._consumer_group:
            raise illegal_operation(
                "offsets are committed for a consumer group: this consumer was made without one, "
                "so it only reads"
            )

    def _on_failure_of_member(self, queue: MessageQueue, error: MqError) -> None:
        # A topic that does not exist is read as soon as it exists.
        if error.code is not Code.TOPIC_NOT_EXIST:
            self.unread.failed(queue, error)


def not_read(queue: MessageQueue) -> MqError:
    return illegal_operation(
        f"{queue} is not assigned to this consumer: it never was, or a rebalance gave it to "
        "another member, which continues from the offset that was committed last; `queues` are "
        "those it has",
    )
