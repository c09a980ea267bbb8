"""A name server and brokers in this process, with as much of the contract as reading needs.

Real sockets and real records, no store: queues are lists, so that a test can make what a real
broker makes only after days or damage (expired messages, corrupt records, a broker that is gone).
Serves routes, browsing pulls, offset searches, topic and group lists. Not for testing producers or
consumers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from aerobee.broker.v1 import (
    admin_pb2,
    message_pb2,
    offset_pb2,
)
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire import message_id, properties
from aerobee_wire.route import READ_WRITE
from aerobee_wire.status import Code, MqError, grpc_status_of, trailers_of
from support import records
from support.stubs import add_handlers

HOST = "127.0.0.1"
LARGEST_MESSAGE = 64 * 1024 * 1024
BORN_HOST = message_id.pack_host("10.0.0.9:50000")


def refuse(context: grpc.ServicerContext, error: MqError) -> None:
    """Fails the call as our servers do."""
    context.set_trailing_metadata(trailers_of(error))
    context.abort(grpc.StatusCode[grpc_status_of(error.code)], error.message)


@dataclass
class FakeQueue:
    """Records by queue offset; those below `min_offset` are expired."""

    records: list[bytes] = field(default_factory=list)
    store_times_ms: list[int] = field(default_factory=list)
    min_offset: int = 0
    corrupt: set[int] = field(default_factory=set)

    @property
    def max_offset(self) -> int:
        return len(self.records)


class FakeBroker:
    """One broker: put messages with `put`, then let clients browse."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[tuple[str, int], FakeQueue] = {}
        self.groups: set[str] = set()
        self.pulls: list[message_pb2.PullRequest] = []
        # Topics whose bounds were asked for, one of each call.
        self.bounds_asked: list[str] = []
        # The limits of a response, whatever the request says.
        self.most_messages = 10_000
        # How many pulls to refuse with UNAVAILABLE.
        self.failures = 0
        # Called before each response to a pull, e.g. to expire messages.
        self.before_pull: Any = None
        self.next_physical_offset = 0
        # What GetBrokerStatus says of expiries: a file of the log, and when it goes, in ms.
        self.log_file_bytes = 1024**3
        self.now_ms = 1_760_000_100_000
        self.expiry_ms: Callable[[int], int] = lambda physical_offset: 0
        self.address = ""
        self._server: grpc.Server | None = None

    def start(self) -> None:
        self._server = new_server()
        add_handlers(self._server, message_pb2, _Messages(self))
        add_handlers(self._server, offset_pb2, _Offsets(self))
        add_handlers(self._server, admin_pb2, _Admin(self))
        self.address = f"{HOST}:{self._server.add_insecure_port(f'{HOST}:0')}"
        self._server.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def queue(self, topic: str, queue_id: int = 0) -> FakeQueue:
        """The queue, created when it does not exist."""
        return self.queues.setdefault((topic, queue_id), FakeQueue())

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        queue_id: int = 0,
        named: Mapping[str, str] | None = None,
        store_timestamp_ms: int = 1_760_000_001_000,
        **fields: Any,
    ) -> int:
        """Appends a message; `named` are its properties. Returns its queue offset."""
        queue = self.queue(topic, queue_id)
        given: dict[str, Any] = {
            "flag": 0,
            "sys_flag": 0,
            "born_timestamp_ms": store_timestamp_ms - 1000,
            "born_host": BORN_HOST,
            "properties": properties.encode(named or {}),
        } | fields
        encoded = records.encode(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue.max_offset,
            physical_offset=self.next_physical_offset,
            body=body,
            store_timestamp_ms=store_timestamp_ms,
            store_host=message_id.pack_host(self.address),
            **given,
        )
        self.next_physical_offset += len(encoded)
        queue.records.append(encoded)
        queue.store_times_ms.append(store_timestamp_ms)
        return queue.max_offset - 1

    def topics(self) -> dict[str, int]:
        """Name → number of queues."""
        counts: dict[str, int] = {}
        for topic, queue_id in self.queues:
            counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        return counts


class FakeCluster:
    """A name server and its brokers; `with FakeCluster("broker-a", "broker-b") as cluster: …`."""

    def __init__(self, *names: str) -> None:
        self.brokers = {name: FakeBroker(name) for name in names or ("broker-a",)}
        self.namesrv = ""
        self._server: grpc.Server | None = None

    def __enter__(self) -> Self:
        for broker in self.brokers.values():
            broker.start()
        self._server = new_server()
        add_handlers(self._server, namesrv_pb2, _Namesrv(self))
        self.namesrv = f"{HOST}:{self._server.add_insecure_port(f'{HOST}:0')}"
        self._server.start()
        return self

    def __exit__(self, *error: object) -> None:
        for broker in self.brokers.values():
            broker.stop()
        self.stop_namesrv()

    def stop_namesrv(self) -> None:
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None

    def __getitem__(self, name: str) -> FakeBroker:
        return self.brokers[name]

    @property
    def only(self) -> FakeBroker:
        """The broker, when there is one."""
        (broker,) = self.brokers.values()
        return broker


def new_server() -> grpc.Server:
    options = [("grpc.max_send_message_length", LARGEST_MESSAGE), ("grpc.so_reuseport", 0)]
    return grpc.server(ThreadPoolExecutor(8), options=options)


class _Namesrv:
    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster

    def GetTopicRoute(self, request: Any, context: grpc.ServicerContext) -> Any:
        serving = [b for b in self._cluster.brokers.values() if request.topic in b.topics()]
        if not serving:
            refuse(context, MqError(Code.TOPIC_NOT_EXIST, f"no broker serves {request.topic}"))
        route = namesrv_pb2.TopicRoute(
            queues=[
                namesrv_pb2.QueueData(
                    broker_name=broker.name,
                    read_queue_count=broker.topics()[request.topic],
                    write_queue_count=broker.topics()[request.topic],
                    permission=READ_WRITE,
                )
                for broker in serving
            ],
            brokers=[self._data(broker) for broker in serving],
        )
        return namesrv_pb2.GetTopicRouteResponse(route=route)

    def GetClusterInfo(self, request: Any, context: grpc.ServicerContext) -> Any:
        brokers = [self._data(broker) for broker in self._cluster.brokers.values()]
        return namesrv_pb2.GetClusterInfoResponse(brokers=brokers)

    def ListTopics(self, request: Any, context: grpc.ServicerContext) -> Any:
        scopes = namesrv_pb2.ListTopicsRequest
        names = {name for broker in self._cluster.brokers.values() for name in broker.topics()}
        return namesrv_pb2.ListTopicsResponse(topics=names if request.scope == scopes.ALL else ())

    @staticmethod
    def _data(broker: FakeBroker) -> namesrv_pb2.BrokerData:
        return namesrv_pb2.BrokerData(
            cluster="fake", broker_name=broker.name, addresses={0: broker.address}
        )


class _Messages:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def Pull(self, request: Any, context: grpc.ServicerContext) -> Any:
        broker = self._broker
        broker.pulls.append(request)
        if broker.before_pull is not None:
            broker.before_pull(request)
        if broker.failures:
            broker.failures -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        queue = broker.queues.get((request.topic, request.queue_id))
        if queue is None:
            refuse(context, MqError(Code.TOPIC_NOT_EXIST, f"no topic {request.topic} here"))
            raise AssertionError("abort raises")
        response = message_pb2.PullResponse(
            min_offset=queue.min_offset, max_offset=queue.max_offset
        )
        offset = request.queue_offset
        if not queue.min_offset <= offset <= queue.max_offset:
            response.status = message_pb2.OFFSET_MOVED
            response.next_begin_offset = min(max(offset, queue.min_offset), queue.max_offset)
            return response
        return self._fill(response, queue, offset, request)

    def _fill(self, response: Any, queue: FakeQueue, offset: int, request: Any) -> Any:
        most = min(request.max_messages or 32, self._broker.most_messages)
        most_bytes = request.max_bytes or 262_144
        taken: list[bytes] = []
        size = 0
        while offset < queue.max_offset and len(taken) < most:
            encoded = queue.records[offset]
            if taken and size + len(encoded) > most_bytes:
                break
            if offset in queue.corrupt:
                response.corrupted_count += 1
            else:
                taken.append(encoded)
                size += len(encoded)
            offset += 1
        response.status = message_pb2.FOUND if taken else message_pb2.NO_NEW_MESSAGE
        response.records = b"".join(taken)
        response.message_count = len(taken)
        response.next_begin_offset = offset
        return response


class _Offsets:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def GetQueueOffsets(self, request: Any, context: grpc.ServicerContext) -> Any:
        broker, topic = self._broker, request.topic
        broker.bounds_asked.append(topic)
        count = broker.topics().get(topic, 0)
        if not count:
            refuse(context, MqError(Code.TOPIC_NOT_EXIST, f"no topic {topic} here"))
        return offset_pb2.GetQueueOffsetsResponse(
            queues=[
                offset_pb2.QueueBounds(
                    queue_id=queue_id, min_offset=queue.min_offset, max_offset=queue.max_offset
                )
                for (name, queue_id), queue in sorted(broker.queues.items())
                if name == topic
            ],
            read_queue_count=count,
            permission=READ_WRITE,
        )

    def SearchOffset(self, request: Any, context: grpc.ServicerContext) -> Any:
        queue = self._broker.queues[request.topic, request.queue_id]
        found = (
            offset
            for offset in range(queue.min_offset, queue.max_offset)
            if queue.store_times_ms[offset] >= request.timestamp_ms
        )
        return offset_pb2.SearchOffsetResponse(queue_offset=next(found, queue.max_offset))


class _Admin:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def ListTopics(self, request: Any, context: grpc.ServicerContext) -> Any:
        topics = [
            namesrv_pb2.TopicConfig(
                topic=topic, read_queue_count=count, write_queue_count=count, permission=READ_WRITE
            )
            for topic, count in self._broker.topics().items()
        ]
        return admin_pb2.ListTopicsResponse(topics=topics)

    def ListGroups(self, request: Any, context: grpc.ServicerContext) -> Any:
        groups = [
            admin_pb2.GroupConfig(consumer_group=group) for group in sorted(self._broker.groups)
        ]
        return admin_pb2.ListGroupsResponse(groups=groups)

    def GetBrokerStatus(self, request: Any, context: grpc.ServicerContext) -> Any:
        broker = self._broker
        return admin_pb2.GetBrokerStatusResponse(
            broker_name=broker.name,
            broker_address=broker.address,
            now_timestamp_ms=broker.now_ms,
            disk_free_bytes=30,
            disk_total_bytes=100,
            disk_max_used_percent=75,
            file_reserved_time_ms=72 * 3_600_000,
            delete_when=[4],
            commit_log_file_bytes=broker.log_file_bytes,
            expiry_timestamps_ms=map(broker.expiry_ms, request.physical_offsets),
        )

    def GetGroup(self, request: Any, context: grpc.ServicerContext) -> Any:
        group = request.consumer_group
        if group not in self._broker.groups:
            error = MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"no consumer group {group} here")
            refuse(context, error)
        return admin_pb2.GetGroupResponse(
            group=admin_pb2.GroupConfig(
                consumer_group=group, retry_max_times=16, retry_delays_ms=[1000, 5000]
            )
        )
