"""Lite topics of a simulated group: a parent, a group that is bound to it, and a client of that
group, by single calls to whoever is master."""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import admin_pb2
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

    def __init__(self, client: SimulatedClient, client_id: str = "c1", group: str = GROUP) -> None:
        self.client = client
        self.handlers = self._call
        self.client_id = client_id
        self.group = group

    async def _call(self, method: str, request: Any) -> Any:
        return await self.client.call(_RPCS[method], request)

    async def put_parent(self, **attributes: str) -> None:
        """PARENT, of two queues."""
        given = {"message.type": "LITE", **{k.replace("_", "."): v for k, v in attributes.items()}}
        config = namesrv_pb2.TopicConfig(
            topic=PARENT, read_queue_count=2, write_queue_count=2, permission=6, attributes=given
        )
        await self.client.call(rpcs.PUT_TOPIC, admin_pb2.PutTopicRequest(topic=config))

    async def bind(self, **attributes: str) -> None:
        """The group, to PARENT."""
        given = {
            "lite.bind.topic": PARENT,
            **{k.replace("_", "."): v for k, v in attributes.items()},
        }
        config = admin_pb2.GroupConfig(
            consumer_group=self.group,
            consume_enable=True,
            consume_from_min_enable=True,
            retry_queue_count=1,
            retry_max_times=16,
            attributes={"lite.bind.topic": PARENT, **given},
        )
        await self.client.call(rpcs.PUT_GROUP, admin_pb2.PutGroupRequest(group=config))

    async def send(self, name: str, *bodies: bytes, queue_id: int = 0) -> None:
        for body in bodies:
            await self.client.send(PARENT, body, queue_id, {LITE_TOPIC: name})
