"""A name server and brokers in memory, behind the client's `Transport`: no sockets, no disk.

It keeps the promises of the contract that the client relies on (queues, offsets, members, long
polls, send-back to retry and dead-letter topics without delay) and nothing else. Tests break it on
purpose: `down` addresses, `answers` that replace an RPC's.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Container
from dataclasses import dataclass, field
from typing import Any

from aerobee.broker.v1 import admin_pb2, client_pb2, message_pb2, offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.errors import BrokerUnreachable
from aerobee_wire import message_id, properties, record
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import dead_letter_topic, retry_topic
from support import records

NAMESRV = "10.0.0.1:9876"
STORE_TIME_MS = 1_700_000_000_000

# Consumer group, topic, queue id.
LockedQueue = tuple[str, str, int]


class MemoryLocks:
    """The queue locks of a broker. They end by unlocking, or when a test breaks them.

    `broken`: locks that ended otherwise than by their holder, and the holder.
    """

    def __init__(self) -> None:
        self.held: dict[LockedQueue, tuple[str, int]] = {}  # client id, epoch
        self.broken: list[tuple[LockedQueue, str]] = []
        self._epoch = 0

    def lock(self, request: Any) -> list[client_pb2.QueueLock]:
        return [self._lock(key, request.client_id) for key in _keys(request)]

    def _lock(self, key: LockedQueue, client_id: str) -> client_pb2.QueueLock:
        if key not in self.held:
            self._epoch += 1
            self.held[key] = (client_id, self._epoch)
        holder, epoch = self.held[key]
        return client_pb2.QueueLock(client_id=holder, epoch=epoch if holder == client_id else 0)

    def unlock(self, request: Any) -> None:
        for key in _keys(request):
            if self.held.get(key, ("", 0))[0] == request.client_id:
                del self.held[key]

    def give(self, key: LockedQueue, client_id: str) -> None:
        """Another client takes the lock, whoever has it."""
        self.break_all()
        self._lock(key, client_id)

    def break_all(self, client_id: str | None = None) -> None:
        """Those of a client, or of all."""
        for key, (holder, _) in list(self.held.items()):
            if client_id in {None, holder}:
                self.broken.append((key, holder))
                del self.held[key]

    def check(self, request: Any, queue: Any) -> None:
        """Raises QUEUE_LOCK_NOT_HELD as a broker does."""
        holder, _ = self.held.get((request.consumer_group, queue.topic, queue.queue_id), ("", 0))
        if holder != request.client_id and (holder or request.locked):
            raise MqError(Code.QUEUE_LOCK_NOT_HELD, f"{holder or 'nobody'} holds the lock")


def _keys(request: Any) -> list[LockedQueue]:
    group = request.consumer_group
    return [(group, queue.topic, queue.queue_id) for queue in request.queues]


class MemoryHandovers:
    """Which client has which queue of a group, until it releases it or is gone."""

    def __init__(self) -> None:
        self._owners: dict[tuple[str, str, int], str] = {}

    def take(self, request: Any, clients: Container[str], response: Any) -> None:
        """As a broker answers QueryConsumerOffsets."""
        if request.client_id not in clients:
            return
        for queue_id in request.queue_ids:
            key = request.consumer_group, request.topic, queue_id
            owner = self._owners.get(key, request.client_id)
            if owner != request.client_id and owner in clients:
                response.held.add(queue_id=queue_id, client_id=owner)
            else:
                self._owners[key] = request.client_id

    def release(self, request: Any) -> None:
        """As a broker serves UpdateConsumerOffsets."""
        for queue in request.released:
            key = request.consumer_group, queue.topic, queue.queue_id
            if self._owners.get(key) == request.client_id:
                del self._owners[key]


@dataclass
class MemoryBroker:
    name: str
    address: str
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    moved: dict[tuple[str, str, int], int] = field(default_factory=dict)
    handovers: MemoryHandovers = field(default_factory=MemoryHandovers)
    min_offsets: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    clients: dict[str, client_pb2.HeartbeatRequest] = field(default_factory=dict)
    watchers: dict[str, asyncio.Queue[client_pb2.ClientNotice | None]] = field(default_factory=dict)
    locks: MemoryLocks = field(default_factory=MemoryLocks)
    max_reconsume_times: int = 16
    has_master: bool = True  # False: a replica is registered alone
    capabilities: tuple[client_pb2.Capability, ...] = (client_pb2.SEND_BACK_DELAY,)
    physical_offset: int = 0
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    def create(self, topic: str, queue_count: int) -> None:
        self.topics[topic] = queue_count
        for queue_id in range(queue_count):
            self.queues.setdefault((topic, queue_id), [])

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        encoded: bytes,
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_ms: int = STORE_TIME_MS,
        reconsume_times: int = 0,
    ) -> tuple[int, int]:
        """Returns queue offset and physical offset."""
        stored = self.queues[topic, queue_id]
        host = message_id.pack_host(self.address)
        at = self.physical_offset
        encoded_record = records.encode(
            topic=topic,
            queue_id=queue_id,
            queue_offset=len(stored),
            physical_offset=at,
            body=body,
            properties=encoded,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp_ms=born_ms,
            born_host=host,
            store_timestamp_ms=STORE_TIME_MS + at,
            store_host=host,
            reconsume_times=reconsume_times,
        )
        stored.append(encoded_record)
        self.physical_offset += len(encoded_record)
        return len(stored) - 1, at

    def messages(self, topic: str) -> list[record.Record]:
        """All messages of `topic`, queue by queue."""
        return [
            record.decode(encoded)
            for (name, _), stored in sorted(self.queues.items())
            if name == topic
            for encoded in stored
        ]

    async def wake(self) -> None:
        """Ends the long polls."""
        async with self.arrived:
            self.arrived.notify_all()

    def members(self, group: str) -> list[str]:
        return sorted(
            client_id
            for client_id, beat in self.clients.items()
            if any(consumer.consumer_group == group for consumer in beat.consumers)
        )


class MemoryCluster:
    """`Transport` of any number of clients. `calls`: each unary call: (address, RPC, request)."""

    def __init__(self, *brokers: MemoryBroker, namesrvs: tuple[str, ...] = (NAMESRV,)) -> None:
        self.brokers = {broker.address: broker for broker in brokers}
        self.namesrvs = namesrvs
        self.auto_create = True
        self.types: dict[str, str] = {}  # message types of topics
        self.down: set[str] = set()
        # RPC name → what answers instead: an error, or a function of (address, request).
        self.answers: dict[str, MqError | Callable[[str, Any], Any]] = {}
        self.calls: list[tuple[str, str, Any]] = []
        self.dropped: list[str] = []  # addresses whose connections a client closed
        self.expected: dict[str, str] = {}  # address → broker name
        # Name server → what it tells the client that watches brokers there.
        self.reported: dict[str, asyncio.Queue[namesrv_pb2.WatchBrokersResponse]] = {}

    # ---- Transport ----

    async def call(
        self, address: str, rpc: Rpc[Any, Any], request: Any, *, timeout_s: float
    ) -> Any:
        name = rpc.method
        kind = message_pb2.SendRequest if name == "Send" else rpc.request
        sent = kind.FromString(request.SerializeToString())  # as over a wire
        self.calls.append((address, name, sent))
        await asyncio.sleep(0)
        self._check_up(address)
        if name in self.answers:
            given = self.answers[name]
            if isinstance(given, MqError):
                raise given
            answer = given(address, sent)
            if answer is not None:
                return await answer if asyncio.iscoroutine(answer) else answer
        if address in self.namesrvs:
            return getattr(self, f"_namesrv_{name}")(sent)
        answer = getattr(self, f"_{name}")(self.brokers[address], sent)
        return await answer if asyncio.iscoroutine(answer) else answer

    async def stream(
        self, address: str, rpc: Rpc[Any, Any], request: Any
    ) -> AsyncGenerator[Any, None]:
        self._check_up(address)
        if rpc.method in self.answers:
            self.calls.append((address, rpc.method, request))
            async for answer in self.answers[rpc.method](address, request):  # type: ignore[operator]
                yield answer
            return
        if address in self.namesrvs:
            reported = self.reported[address] = asyncio.Queue()
            while True:
                yield await reported.get()
        broker = self.brokers[address]
        notices: asyncio.Queue[client_pb2.ClientNotice | None] = asyncio.Queue()
        broker.watchers[request.client_id] = notices
        try:
            yield client_pb2.ClientNotice(watching=client_pb2.Watching())
            while (notice := await notices.get()) is not None:
                yield notice
            raise BrokerUnreachable(address, "the broker of this test went down")
        finally:
            broker.watchers.pop(request.client_id, None)
            self._forget(broker, request.client_id)

    def expect(self, address: str, broker_name: str) -> None:
        self.expected[address] = broker_name

    async def drop(self, address: str) -> None:
        self.dropped.append(address)

    async def close(self) -> None:
        """The cluster outlives its clients."""

    # ---- for tests ----

    def requests(self, name: str) -> list[Any]:
        return [request for _, called, request in self.calls if called == name]

    def refuse(self, name: str, address: str, code: Code) -> None:
        """The broker or name server at this address answers the RPC with an error."""

        def answer(asked: str, request: Any) -> None:
            if asked == address:
                raise MqError(code, "refused by this test")

        self.answers[name] = answer

    async def kill(self, broker: MemoryBroker) -> None:
        """Breaks the calls and streams of its clients."""
        self.down.add(broker.address)
        for notices in list(broker.watchers.values()):
            notices.put_nowait(None)
        broker.clients.clear()
        broker.locks.break_all()
        await broker.wake()

    def revive(self, broker: MemoryBroker) -> None:
        self.down.discard(broker.address)

    def _check_up(self, address: str) -> None:
        if address in self.down or not (address in self.namesrvs or address in self.brokers):
            raise BrokerUnreachable(address, "it is down in this test")

    def _forget(self, broker: MemoryBroker, client_id: str) -> None:
        beat = broker.clients.pop(client_id, None)
        if beat is not None:
            broker.locks.break_all(client_id)
            self._notify_members(broker, beat)

    def _notify_members(self, broker: MemoryBroker, beat: client_pb2.HeartbeatRequest) -> None:
        for consumer in beat.consumers:
            self.notify_group(broker, consumer.consumer_group)

    def notify_group(self, broker: MemoryBroker, consumer_group: str) -> None:
        changed = client_pb2.GroupMembersChanged(consumer_group=consumer_group)
        for notices in broker.watchers.values():
            notices.put_nowait(client_pb2.ClientNotice(group_members_changed=changed))

    # ---- name server ----

    def _namesrv_GetTopicRoute(self, request: Any) -> Any:
        route = namesrv_pb2.TopicRoute()
        for broker in self.brokers.values():
            if request.topic in broker.topics and broker.address not in self.down:
                count = broker.topics[request.topic]
                route.queues.add(
                    broker_name=broker.name,
                    read_queue_count=count,
                    write_queue_count=count,
                    permission=6,
                    attributes={"message.type": self.types.get(request.topic, "NORMAL")},
                )
                broker_id = 0 if broker.has_master else 1
                route.brokers.add(broker_name=broker.name, addresses={broker_id: broker.address})
        if not route.queues:
            raise MqError(Code.TOPIC_NOT_EXIST, f"no route of {request.topic}")
        return namesrv_pb2.GetTopicRouteResponse(route=route)

    def _namesrv_GetClusterInfo(self, request: Any) -> Any:
        response = namesrv_pb2.GetClusterInfoResponse()
        for broker in self.brokers.values():
            response.brokers.add(
                cluster="c", broker_name=broker.name, addresses={0: broker.address}
            )
        return response

    def _namesrv_DeleteTopic(self, request: Any) -> Any:
        return namesrv_pb2.DeleteTopicResponse()

    def _ListTopics(self, broker: MemoryBroker, request: Any) -> Any:
        return admin_pb2.ListTopicsResponse(
            topics=[namesrv_pb2.TopicConfig(topic=topic) for topic in broker.topics]
        )

    # ---- broker: messages ----

    async def _Send(self, broker: MemoryBroker, request: Any) -> Any:
        topic = request.batch.topic or request.messages[0].topic
        if topic not in broker.topics:
            if not self.auto_create:
                raise MqError(Code.TOPIC_NOT_EXIST, f"no topic {topic}")
            broker.create(topic, request.default_queue_count)
        chosen = [request.batch.queue_id, *(message.queue_id for message in request.messages)]
        if max(chosen) >= broker.topics[topic]:
            raise MqError(Code.QUEUE_NOT_EXIST, f"{topic} has {broker.topics[topic]} queues here")
        response = message_pb2.SendResponse(broker_name=broker.name, store_host=broker.address)
        if request.HasField("batch"):
            self._append_batch(broker, request.batch, response)
        for message in request.messages:
            encoded = properties.encode(dict(message.properties))
            offset, at = broker.append(
                topic,
                message.queue_id,
                message.body,
                encoded,
                sys_flag=message.sys_flag,
                reconsume_times=message.reconsume_times,
            )
            response.results.add(queue_id=message.queue_id, queue_offset=offset, physical_offset=at)
        await broker.wake()
        return response

    def _append_batch(self, broker: MemoryBroker, batch: Any, response: Any) -> None:
        body_at = properties_at = 0
        for index, size in enumerate(batch.body_sizes):
            length = batch.properties_sizes[index]
            offset, at = broker.append(
                batch.topic,
                batch.queue_id,
                batch.bodies[body_at : body_at + size],
                batch.properties[properties_at : properties_at + length],
                flag=batch.flags[index] if batch.flags else 0,
                born_ms=batch.born_timestamp_ms,
            )
            body_at += size
            properties_at += length
            if not index:
                response.batch_result.first_queue_offset = offset
                response.batch_result.queue_id = batch.queue_id
            response.batch_result.physical_offsets.append(at)
        assert body_at == len(batch.bodies) and properties_at == len(batch.properties)

    async def _Pull(self, broker: MemoryBroker, request: Any) -> Any:
        check_topic(broker, request.topic)
        broker.locks.check(request, request)
        if request.HasField("commit_offset"):
            key = (request.consumer_group, request.topic, request.queue_id)
            broker.offsets[key] = request.commit_offset
        while True:
            response = self._read(broker, request)
            if response.status != message_pb2.NO_NEW_MESSAGE or not request.suspend_timeout_ms:
                return response
            async with broker.arrived:
                await broker.arrived.wait()
            self._check_up(broker.address)
            broker.locks.check(request, request)

    def _read(self, broker: MemoryBroker, request: Any) -> Any:
        key = (request.consumer_group, request.topic, request.queue_id)
        if (request.topic, request.queue_id) not in broker.queues:
            raise MqError(Code.TOPIC_NOT_EXIST, f"no topic {request.topic}")
        stored = broker.queues[request.topic, request.queue_id]
        response = message_pb2.PullResponse(
            max_offset=len(stored), next_begin_offset=request.queue_offset
        )
        if key in broker.moved:
            response.status = message_pb2.OFFSET_MOVED
            response.next_begin_offset = broker.moved.pop(key)
        elif request.queue_offset > len(stored):
            response.status = message_pb2.OFFSET_MOVED
            response.next_begin_offset = len(stored)
        else:
            found = stored[request.queue_offset : request.queue_offset + request.max_messages]
            response.status = message_pb2.FOUND if found else message_pb2.NO_NEW_MESSAGE
            response.records = b"".join(found)
            response.message_count = len(found)
            response.next_begin_offset = request.queue_offset + len(found)
        return response

    async def _SendBack(self, broker: MemoryBroker, request: Any) -> Any:
        response = message_pb2.SendBackResponse()
        by_offset = {
            record.decode(encoded).physical_offset: record.decode(encoded)
            for stored in broker.queues.values()
            for encoded in stored
        }
        for entry in request.entries:
            old = by_offset.get(entry.physical_offset)
            if old is None:
                response.results.add(code=int(Code.SYSTEM_ERROR), message="no such record")
                continue
            last = old.reconsume_times >= broker.max_reconsume_times and not entry.uncounted
            dead = last or entry.delay_level < 0
            name = dead_letter_topic if dead else retry_topic
            topic = name(request.consumer_group)
            broker.create(topic, 1)
            kept = {
                **old.properties,
                properties.RETRY_TOPIC: old.properties.get(properties.RETRY_TOPIC, old.topic),
                properties.DLQ_REASON: entry.failure.reason,
                properties.DLQ_REASON_DESCRIPTION: entry.failure.description,
            }
            broker.append(
                topic,
                0,
                old.body,
                properties.encode({name: value for name, value in kept.items() if value}),
                reconsume_times=max(
                    old.reconsume_times + (not entry.uncounted), entry.reconsume_times
                ),
            )
            response.results.add(dead_lettered=dead)
        await broker.wake()
        return response

    # ---- broker: clients ----

    def _Heartbeat(self, broker: MemoryBroker, request: Any) -> Any:
        known = broker.clients.get(request.client_id)
        broker.clients[request.client_id] = request
        for consumer in request.consumers:
            if retry_topic(consumer.consumer_group) not in broker.topics:
                broker.create(retry_topic(consumer.consumer_group), 1)
        if known is None or known.consumers != request.consumers:
            self._notify_members(broker, request)
        return client_pb2.HeartbeatResponse(capabilities=broker.capabilities)

    def _UnregisterClient(self, broker: MemoryBroker, request: Any) -> Any:
        self._forget(broker, request.client_id)
        return client_pb2.UnregisterClientResponse()

    def _ListGroupMembers(self, broker: MemoryBroker, request: Any) -> Any:
        members = broker.members(request.consumer_group)
        return client_pb2.ListGroupMembersResponse(client_ids=members)

    # ---- broker: offsets ----

    def _QueryConsumerOffsets(self, broker: MemoryBroker, request: Any) -> Any:
        response = offset_pb2.QueryConsumerOffsetsResponse()
        for (group, topic, queue_id), offset in broker.offsets.items():
            if group == request.consumer_group and request.topic in ("", topic):
                response.offsets.add(topic=topic, queue_id=queue_id, queue_offset=offset)
        broker.handovers.take(request, broker.clients, response)
        return response

    def _UpdateConsumerOffsets(self, broker: MemoryBroker, request: Any) -> Any:
        for offset in request.offsets:
            check_topic(broker, offset.topic)
            broker.locks.check(request, offset)
        for offset in request.offsets:
            broker.offsets[request.consumer_group, offset.topic, offset.queue_id] = (
                offset.queue_offset
            )
        broker.handovers.release(request)
        if request.released:
            self.notify_group(broker, request.consumer_group)
        return offset_pb2.UpdateConsumerOffsetsResponse()

    def _GetQueueOffsets(self, broker: MemoryBroker, request: Any) -> Any:
        check_topic(broker, request.topic)
        response = offset_pb2.GetQueueOffsetsResponse(
            read_queue_count=broker.topics[request.topic], permission=6
        )
        for (topic, queue_id), stored in broker.queues.items():
            if topic == request.topic and (not request.queue_ids or queue_id in request.queue_ids):
                response.queues.add(
                    queue_id=queue_id,
                    min_offset=broker.min_offsets[topic, queue_id],
                    max_offset=len(stored),
                )
        return response

    def _SearchOffset(self, broker: MemoryBroker, request: Any) -> Any:
        times = [
            record.decode(encoded).store_timestamp_ms
            for encoded in broker.queues[request.topic, request.queue_id]
        ]
        older = sum(time_ms < request.timestamp_ms for time_ms in times)
        return offset_pb2.SearchOffsetResponse(queue_offset=older)

    # ---- broker: topics and locks ----

    def _PutTopic(self, broker: MemoryBroker, request: Any) -> Any:
        created = request.topic.topic not in broker.topics
        if created or not request.only_new:
            broker.create(request.topic.topic, request.topic.write_queue_count)
        return admin_pb2.PutTopicResponse(created=created)

    def _GetTopic(self, broker: MemoryBroker, request: Any) -> Any:
        check_topic(broker, request.topic)
        count = broker.topics[request.topic]
        config = namesrv_pb2.TopicConfig(
            topic=request.topic, read_queue_count=count, write_queue_count=count, permission=6
        )
        return admin_pb2.GetTopicResponse(topic=config)

    def _GetGroup(self, broker: MemoryBroker, request: Any) -> Any:
        raise MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"no group {request.consumer_group}")

    def _DeleteTopic(self, broker: MemoryBroker, request: Any) -> Any:
        return admin_pb2.DeleteTopicResponse(
            deleted=broker.topics.pop(request.topic, None) is not None
        )

    def _LockQueues(self, broker: MemoryBroker, request: Any) -> Any:
        if request.client_id not in broker.members(request.consumer_group):
            raise MqError(Code.CONSUMER_NOT_ONLINE, f"{request.client_id} is no member")
        return client_pb2.LockQueuesResponse(
            locks=broker.locks.lock(request), max_reconsume_times=broker.max_reconsume_times
        )

    def _UnlockQueues(self, broker: MemoryBroker, request: Any) -> Any:
        broker.locks.unlock(request)
        self.notify_group(broker, request.consumer_group)
        return client_pb2.UnlockQueuesResponse()


def check_topic(broker: MemoryBroker, topic: str) -> None:
    if topic not in broker.topics:
        raise MqError(Code.TOPIC_NOT_EXIST, f"no topic {topic}")
