"""The queues that this member of a group owns: dividing them, winning them and letting them go.

Every member asks for the same two lists, the queues of a topic and the members of the group, and
takes its share by the same strategy. While the lists cannot be had, everything stays as it is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass

from aerobee.broker.v1 import client_pb2, offset_pb2

from aerobee_client.cluster import rpcs
from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consumer_options import ConsumeFromWhere, FlowLimits
from aerobee_client.consuming.offset_store import OffsetStore
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message_queue import MessageQueue
from aerobee_client.rebalance import Strategy
from aerobee_wire.status import MqError
from aerobee_wire.topics import is_retry

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class StartRule:
    where: ConsumeFromWhere
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _Owned:
    process_queue: ProcessQueue
    pulling: asyncio.Task[None]


class Assignment:
    """`pull(process_queue, queue_offset)` fills a process queue until it is dropped. `on_lost` is
    called when a queue is gone before anybody divided anew."""

    def __init__(
        self,
        instance: ClientInstance,
        offsets: OffsetStore,
        consumer_group: str,
        *,
        strategy: Strategy,
        limits: FlowLimits,
        start_rule: StartRule,
        pull: Callable[[ProcessQueue, int], Coroutine[None, None, None]],
        on_lost: Callable[[], None],
    ) -> None:
        self._instance = instance
        self._offsets = offsets
        self._consumer_group = consumer_group
        self._strategy = strategy
        self._limits = limits
        self._start_rule = start_rule
        self._pull = pull
        self._on_lost = on_lost
        offsets.on_gone = self.lose
        # Whether a broker, when last asked, did not name this client among the members.
        self.forgotten = False
        self._owned: dict[MessageQueue, _Owned] = {}
        self._halted: set[str] = set()  # topics

    def queues(self) -> frozenset[MessageQueue]:
        return frozenset(self._owned)

    async def rebalance(self, topics: Collection[str]) -> bool:
        """Takes this member's share of `topics` and lets go of the rest. False: something could not
        be had, so it should be done again soon."""
        halted, self._halted = self._halted, set()
        await self._release(
            queue for queue in self.queues() if queue.topic not in topics or queue.topic in halted
        )
        self.forgotten = False
        complete = True
        members: dict[str, list[str]] = {}
        for topic in topics:
            try:
                share = await self._share(topic, members)
                if share is None:
                    complete = False
                    continue
                owned = {queue for queue in self._owned if queue.topic == topic}
                await self._release(owned.difference(share))
                await self._win([queue for queue in share if queue not in owned])
            except MqError as error:
                log.info("topic %s not rebalanced: %s", topic, error)
                complete = False
                await self._instance.routes.refresh_soon(topic)
        return complete

    def move(self, process_queue: ProcessQueue, queue_offset: int) -> None:
        """The broker wants the queue to go on at `queue_offset`: its messages are gone, or the
        group was reset."""
        queue = process_queue.queue
        if process_queue.dropped:
            return
        log.warning("%s goes on at offset %d, as its broker wants", queue, queue_offset)
        process_queue.drop()
        self._offsets.set(queue, queue_offset)
        self._begin(queue, queue_offset)

    def lose(self, queue: MessageQueue) -> None:
        """Its topic was deleted there, and the group's offset with it. Should it be made again, the
        queue is won like any other, and is read from its own first message on."""
        owned = self._owned.pop(queue, None)
        if owned is None:
            return
        log.warning("%s is gone: its topic was deleted there", queue)
        owned.process_queue.drop()
        owned.pulling.cancel()
        self._offsets.forget(queue)
        self._on_lost()

    def halt(self, topic: str) -> None:
        """Pulls no more of a topic at once. The next rebalance lets go of its queues and wins them
        again, so that they go on from what is committed."""
        self._halted.add(topic)
        for queue, owned in self._owned.items():
            if queue.topic == topic:
                owned.pulling.cancel()

    async def stop_pulling(self) -> None:
        """The queues stay owned: what was pulled may still be consumed."""
        tasks = [owned.pulling for owned in self._owned.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def release_all(self) -> None:
        await self._release(self.queues())
        await self._offsets.commit()  # of what a rebalance that was cancelled had let go

    async def _share(
        self, topic: str, members_by_address: dict[str, list[str]]
    ) -> list[MessageQueue] | None:
        """None: this client is not among the members yet, or the topic has no readable queue."""
        queues = await self._instance.routes.subscribe_queues(topic)
        if not queues:
            return None
        members = await self._members(queues, members_by_address)
        if self._instance.client_id not in members:
            self.forgotten = True
            return None
        return self._strategy(self._instance.client_id, queues, members)

    async def _members(
        self, queues: list[MessageQueue], members_by_address: dict[str, list[str]]
    ) -> list[str]:
        """Of the first broker of these queues that answers: all members look at the same one."""
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
        lost = [queue for queue in queues if queue in self._owned]
        if not lost:
            return
        log.info("%s lets go of %s", self._consumer_group, ", ".join(map(str, lost)))
        for queue in lost:
            owned = self._owned.pop(queue)
            owned.process_queue.drop()
            owned.pulling.cancel()
        await self._offsets.commit(lost)
        for queue in lost:
            self._offsets.forget(queue)

    async def _win(self, queues: list[MessageQueue]) -> None:
        """Raises MqError when a broker could not be asked, after the queues of the others were won:
        one that hangs must not keep them from being consumed."""
        stored: dict[str, dict[int, int]] = {}
        failed: dict[str, MqError] = {}
        for queue in queues:
            if queue.broker_name in failed:
                continue
            try:
                queue_offset = await self._offset_of(queue, stored)
            except MqError as error:
                failed[queue.broker_name] = error
                continue
            log.info("%s owns %s from offset %d", self._consumer_group, queue, queue_offset)
            self._begin(queue, queue_offset)
            self._offsets.set(queue, queue_offset)
        for failure in failed.values():
            raise failure

    async def _offset_of(self, queue: MessageQueue, stored: dict[str, dict[int, int]]) -> int:
        """Where the group goes on; `stored` keeps what was asked. Raises MqError."""
        if queue.broker_name not in stored:
            stored[queue.broker_name] = await self._offsets.load(queue.topic, queue.broker_name)
        queue_offset = stored[queue.broker_name].get(queue.queue_id)
        return await self._first_offset(queue) if queue_offset is None else queue_offset

    def _begin(self, queue: MessageQueue, queue_offset: int) -> None:
        process_queue = ProcessQueue(queue, self._limits)
        pulling = asyncio.create_task(self._pull(process_queue, queue_offset), name=f"pull {queue}")
        self._owned[queue] = _Owned(process_queue, pulling)

    async def _first_offset(self, queue: MessageQueue) -> int:
        """Where a group without an offset begins. Raises MqError."""
        if self._start_rule.where is ConsumeFromWhere.TIMESTAMP and not is_retry(queue.topic):
            return await self._offset_at(queue, self._start_rule.timestamp_ms)
        request = offset_pb2.GetQueueOffsetsRequest(topic=queue.topic, queue_ids=[queue.queue_id])
        response = await self._instance.transport.call(
            self._instance.routes.address_of(queue.broker_name),
            rpcs.GET_QUEUE_OFFSETS,
            request,
            timeout_s=CALL_TIMEOUT_S,
        )
        bounds = response.queues[0] if response.queues else offset_pb2.QueueBounds()
        from_last = self._start_rule.where is ConsumeFromWhere.LAST_OFFSET
        if from_last and bounds.min_offset > 0 and not is_retry(queue.topic):
            return bounds.max_offset
        return bounds.min_offset

    async def _offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        request = offset_pb2.SearchOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms
        )
        response = await self._instance.transport.call(
            self._instance.routes.address_of(queue.broker_name),
            rpcs.SEARCH_OFFSET,
            request,
            timeout_s=CALL_TIMEOUT_S,
        )
        return response.queue_offset
