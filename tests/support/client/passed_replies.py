"""What the brokers of a cluster in memory do with replies: they pass them on to the clients that
watch them.
"""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import client_pb2, message_pb2

from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryCluster


class PassedReplies:
    """`copies`: how often each reply reaches its client."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.copies = 1
        cluster.answers["SendReply"] = self.send_reply
        for broker in cluster.brokers.values():
            broker.capabilities = (client_pb2.REPLIES,)

    def send_reply(self, address: str, request: Any) -> message_pb2.SendReplyResponse:
        notices = self._cluster.brokers[address].watchers.get(request.client_id)
        if notices is None:
            raise MqError(Code.CONSUMER_NOT_ONLINE, "it does not watch", retryable=False)
        reply = client_pb2.Reply(
            correlation_id=request.correlation_id, body=request.body, properties=request.properties
        )
        for _ in range(self.copies):
            notices.put_nowait(client_pb2.ClientNotice(reply=reply))
        return message_pb2.SendReplyResponse()
