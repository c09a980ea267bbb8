"""Lite topics of a simulated group: a parent, a group that is bound to it, and a client of that
group, by single calls to whoever is master."""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import admin_pb2, lite_pb2, message_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_wire import rpcs
from aerobee_wire.properties import LITE_TOPIC
from support.lite.broker_client import GROUP, PARENT, LiteConsumer
from support.simulation.client import SimulatedClient

_RPCS = {
    rpc.method: rpc
    for rpc in (
        rpcs.SYNC_LITE_TOPICS,
        rpcs.LITE_POP,
        rpcs.ACK,
        rpcs.CHANGE_INVISIBLE_DURATION,
    )
}


class SimulatedLite(LiteConsumer):
    """`client_id`: of the subscriber; the calls are those of `client`."""

    def __init__(
        self,
        client: SimulatedClient,
        client_id: str = "c1",
        group: str = GROUP,
        parent: str = PARENT,
    ) -> None:
        self.client = client
        self.handlers = self._call
        self.client_id = client_id
        self.group = group
        self.parent = parent

    async def _call(self, method: str, request: Any) -> Any:
        return await self.client.call(_RPCS[method], request)

    async def put_parent(self, **attributes: str) -> None:
        """Of two queues."""
        given = {"message.type": "LITE", **{k.replace("_", "."): v for k, v in attributes.items()}}
        config = namesrv_pb2.TopicConfig(
            topic=self.parent,
            read_queue_count=2,
            write_queue_count=2,
            permission=6,
            attributes=given,
        )
        await self.client.call(rpcs.PUT_TOPIC, admin_pb2.PutTopicRequest(topic=config))

    async def bind(self, retries: int = 16, **attributes: str) -> None:
        """The group, to the parent."""
        given = {
            "lite.bind.topic": self.parent,
            **{k.replace("_", "."): v for k, v in attributes.items()},
        }
        config = admin_pb2.GroupConfig(
            consumer_group=self.group,
            consume_enable=True,
            consume_from_min_enable=True,
            retry_queue_count=1,
            retry_max_times=retries,
            attributes=given,
        )
        await self.client.call(rpcs.PUT_GROUP, admin_pb2.PutGroupRequest(group=config))

    async def send(
        self, name: str, *bodies: bytes, queue_id: int = 0
    ) -> list[message_pb2.SendResult]:
        return [
            await self.client.send(self.parent, body, queue_id, {LITE_TOPIC: name})
            for body in bodies
        ]

    async def listed(self) -> list[lite_pb2.LiteTopicInfo]:
        """The lite topics of the parent, with the lag of the group."""
        request = lite_pb2.ListLiteTopicsRequest(parent=self.parent, consumer_group=self.group)
        answer = await self.client.call(rpcs.LIST_LITE_TOPICS, request)
        return list(answer.lite_topics)
