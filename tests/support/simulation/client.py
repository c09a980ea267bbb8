"""A client of a simulated group: single calls to whoever is master, errors as MqError."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aerobee.broker.v1 import admin_pb2, message_pb2, pop_pb2, transaction_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire import rpcs
from aerobee_wire.record import Record, iter_records
from aerobee_wire.status import Code, MqError
from support.simulation.cluster import SimulatedCluster

TIMEOUT_S = 10.0
STRICT: Mapping[str, Any] = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}


class SimulatedClient:
    """Calls from the client's process. `address`: of the broker that is asked."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.address = ""

    async def call(self, rpc: Any, request: Any) -> Any:
        """Where the broker is no master, the next call goes to another one."""
        self.address = self.address or self._cluster.nodes[0].address
        try:
            calling = self._cluster.caller.call(self.address, rpc, request, timeout_s=TIMEOUT_S)
            return await self._cluster.client.spawn(calling)
        except MqError as error:
            if error.code in (Code.SERVICE_NOT_AVAILABLE, Code.BROKER_UNREACHABLE):
                others = [node.address for node in self._cluster.nodes]
                self.address = error.master_address or self._cluster.rng.choice(others)
            raise

    # ---- messages ----

    async def send(
        self,
        topic: str,
        body: bytes,
        queue_id: int = 0,
        properties: Mapping[str, str] | None = None,
    ) -> message_pb2.SendResult:
        message = message_pb2.Message(
            topic=topic, body=body, queue_id=queue_id, properties=properties or {}
        )
        request = message_pb2.SendRequest(producer_group="producers", messages=[message])
        answer: message_pb2.SendResponse = await self.call(rpcs.SEND, request)
        return answer.results[0]

    async def end_transaction(
        self, half: message_pb2.SendResult, resolution: transaction_pb2.Resolution
    ) -> Code:
        end = transaction_pb2.TransactionEnd(
            transaction_id=half.transaction_id,
            queue_offset=half.queue_offset,
            producer_group="producers",
            resolution=resolution,
        )
        request = transaction_pb2.EndTransactionRequest(ends=[end])
        return Code((await self.call(rpcs.END_TRANSACTION, request)).results[0].code)

    async def pop(
        self, topic: str, group: str, count: int, invisible_ms: int
    ) -> list[tuple[Record, pop_pb2.Lease]]:
        """Each with its lease."""
        request = pop_pb2.PopRequest(
            consumer_group=group,
            topic=topic,
            max_messages=count,
            invisible_duration_ms=invisible_ms,
            subscription=message_pb2.Subscription(topic=topic, expression="*"),
            start=pop_pb2.POP_START_EARLIEST,
            client_id="consumer",
        )
        answer = await self.call(rpcs.POP, request)
        return [
            (
                record,
                pop_pb2.Lease(
                    consumer_group=group,
                    topic=record.topic,
                    queue_id=record.queue_id,
                    queue_offset=record.queue_offset,
                    lease_id=answer.lease_id,
                    expires_timestamp_ms=answer.pop_time_ms + answer.invisible_duration_ms,
                ),
            )
            for record in iter_records(answer.records)
        ]

    async def ack(self, leases: Iterable[pop_pb2.Lease]) -> list[Code]:
        answer = await self.call(rpcs.ACK, pop_pb2.AckRequest(leases=leases))
        return [Code(result.code) for result in answer.results]

    # ---- tables ----

    async def put_topic(
        self, topic: str, message_type: str = "NORMAL", queues: int = 2, **attributes: str
    ) -> None:
        """Attributes by name, `_` for each dot."""
        dotted = {name.replace("_", "."): value for name, value in attributes.items()}
        config = namesrv_pb2.TopicConfig(
            topic=topic,
            read_queue_count=queues,
            write_queue_count=queues,
            permission=6,
            attributes={"message.type": message_type, **dotted},
        )
        await self.call(rpcs.PUT_TOPIC, admin_pb2.PutTopicRequest(topic=config))

    async def delete_topic(self, topic: str) -> None:
        await self.call(rpcs.DELETE_TOPIC, admin_pb2.DeleteTopicRequest(topic=topic))

    async def topics(self) -> set[str]:
        answer = await self.call(rpcs.LIST_TOPICS, admin_pb2.ListTopicsRequest())
        return {config.topic for config in answer.topics}

    async def put_group(self, group: str, retries: int = 16) -> None:
        config = admin_pb2.GroupConfig(
            consumer_group=group,
            consume_enable=True,
            consume_from_min_enable=True,
            consume_broadcast_enable=True,
            retry_queue_count=1,
            retry_max_times=retries,
        )
        await self.call(rpcs.PUT_GROUP, admin_pb2.PutGroupRequest(group=config))

    async def delete_group(self, group: str) -> None:
        await self.call(rpcs.DELETE_GROUP, admin_pb2.DeleteGroupRequest(consumer_group=group))

    async def groups(self) -> dict[str, int]:
        """Name → how many times it retries."""
        answer = await self.call(rpcs.LIST_GROUPS, admin_pb2.ListGroupsRequest())
        return {config.consumer_group: config.retry_max_times for config in answer.groups}


async def begun(
    cluster: SimulatedCluster, options: Mapping[str, Any] = STRICT, *, count: int = 3
) -> SimulatedClient:
    """Start replicas without etcd, and create the topic "orders" on them. Return a client."""
    await cluster.begin(count, options, elected=False)
    await cluster.settle()
    client = SimulatedClient(cluster)
    await client.put_topic("orders")
    await cluster.settle()
    return client
