"""Calls to a broker over real gRPC: sends and pulls of decoded messages, with errors as MqError."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self, cast

import grpc
from aerobee.broker.v1 import (
    admin_pb2,
    client_pb2,
    message_pb2,
    offset_pb2,
    pop_pb2,
    transaction_pb2,
)
from aerobee.namesrv.v1 import namesrv_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aerobee_wire.status import Code, error_from
from support.stubs import Stub

TIMEOUT_S = 30.0
OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class BrokerCaller:
    """`async with BrokerCaller(address) as broker: await broker.send("t", b"a")`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self.messages = Stub(message_pb2, self._channel)
        self.offsets = Stub(offset_pb2, self._channel)
        self.clients = Stub(client_pb2, self._channel)
        self.pops = Stub(pop_pb2, self._channel)
        self.transactions = Stub(transaction_pb2, self._channel)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)
        self.admin = Stub(admin_pb2, self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.close(None)

    async def call(self, method: Any, request: Any) -> Any:
        """The answer; raises MqError where the broker did."""
        try:
            return await method(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
            answered = error_from(error.details() or "", trailers)
            if answered is None:
                raise
            raise answered from error

    async def serves(self) -> bool:
        """As the health service says."""
        answer = await self._health.Check(health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def send(
        self, topic: str, *bodies: bytes, queue_id: int | None = 0, **fields: Any
    ) -> list[message_pb2.SendResult]:
        messages = [
            message_pb2.Message(topic=topic, body=body, queue_id=queue_id, **fields)
            for body in bodies
        ]
        request = message_pb2.SendRequest(messages=messages)
        return list((await self.call(self.messages.Send, request)).results)

    async def send_batch(self, topic: str, bodies: list[bytes], queue_id: int = 0) -> Any:
        batch = message_pb2.MessageBatch(
            topic=topic, queue_id=queue_id, body_sizes=map(len, bodies), bodies=b"".join(bodies)
        )
        request = message_pb2.SendRequest(batch=batch)
        return (await self.call(self.messages.Send, request)).batch_result

    async def send_half(self, topic: str, body: bytes) -> message_pb2.SendResult:
        properties = {"TRAN_MSG": "true", "PGROUP": "producers"}
        return (await self.send(topic, body, properties=properties))[0]

    async def end_transactions(
        self, resolution: transaction_pb2.Resolution, *halves: tuple[str, int]
    ) -> list[Code]:
        """Each: (transaction id, queue offset)."""
        ends = [
            transaction_pb2.TransactionEnd(
                transaction_id=name, queue_offset=offset, resolution=resolution
            )
            for name, offset in halves
        ]
        request = transaction_pb2.EndTransactionRequest(ends=ends)
        answer = await self.call(self.transactions.EndTransaction, request)
        return [Code(result.code) for result in answer.results]

    async def read(self, topic: str, queue_id: int = 0) -> list[message_pb2.StoredMessage]:
        """Every message of a queue, without a group."""
        found: list[message_pb2.StoredMessage] = []
        offset = 0
        while True:
            request = message_pb2.PullRequest(
                topic=topic,
                queue_id=queue_id,
                queue_offset=offset,
                max_messages=4_096,
                max_bytes=16 << 20,
                plain=True,
                browse=True,
            )
            answer = await self.call(self.messages.Pull, request)
            if answer.status == message_pb2.NO_NEW_MESSAGE:
                return found
            found += answer.messages
            offset = answer.next_begin_offset

    async def pull(self, group: str, topic: str, **fields: Any) -> message_pb2.PullResponse:
        subscription = message_pb2.Subscription(topic=topic, expression="*")
        request = message_pb2.PullRequest(
            consumer_group=group, topic=topic, subscription=subscription, plain=True, **fields
        )
        return cast(message_pb2.PullResponse, await self.call(self.messages.Pull, request))

    async def give_back(
        self, group: str, *places: int, reason: str = "", description: str = ""
    ) -> list[message_pb2.SendBackResult]:
        failure = message_pb2.Failure(reason=reason, description=description)
        entries = [
            message_pb2.SendBackEntry(physical_offset=place, failure=failure) for place in places
        ]
        request = message_pb2.SendBackRequest(consumer_group=group, entries=entries)
        return list((await self.call(self.messages.SendBack, request)).results)

    async def put_topic(
        self, topic: str, queues: int = 1, message_type: str = "NORMAL"
    ) -> admin_pb2.PutTopicResponse:
        config = namesrv_pb2.TopicConfig(
            topic=topic,
            read_queue_count=queues,
            write_queue_count=queues,
            permission=6,
            attributes={"message.type": message_type},
        )
        request = admin_pb2.PutTopicRequest(topic=config)
        return cast(admin_pb2.PutTopicResponse, await self.call(self.admin.PutTopic, request))

    async def put_group(
        self, group: str, *, attempts: int = 17, delays_ms: Iterable[int] = ()
    ) -> None:
        config = admin_pb2.GroupConfig(
            consumer_group=group,
            consume_enable=True,
            consume_from_min_enable=True,
            consume_broadcast_enable=True,
            notify_consumer_ids_changed_enable=True,
            retry_queue_count=1,
            retry_max_times=attempts - 1,
            retry_delays_ms=delays_ms,
        )
        await self.call(self.admin.PutGroup, admin_pb2.PutGroupRequest(group=config))

    async def status(self) -> admin_pb2.GetBrokerStatusResponse:
        request = admin_pb2.GetBrokerStatusRequest()
        return cast(
            admin_pb2.GetBrokerStatusResponse, await self.call(self.admin.GetBrokerStatus, request)
        )
