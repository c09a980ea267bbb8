"""What brokers in memory do with sends, half messages and replies beyond storing them."""

from __future__ import annotations

import asyncio
from typing import Any

from aerobee.broker.v1 import client_pb2, message_pb2, transaction_pb2

from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryBroker, MemoryCluster
from support.clock.polling import until

# ---- gate ----
#
# Sends that a broker in memory holds back until the test lets them through.


class Gate:
    """Holds each Send until it is let through. `sizes`: messages of each Send that has come."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.held: list[asyncio.Future[None]] = []
        self.sizes: list[int] = []
        self.addresses: list[str] = []
        cluster.answers["Send"] = self._send

    async def _send(self, address: str, request: Any) -> Any:
        held = asyncio.get_running_loop().create_future()
        self.held.append(held)
        self.sizes.append(len(request.batch.body_sizes) or len(request.messages))
        self.addresses.append(address)
        await held
        return await self._cluster._Send(self._cluster.brokers[address], request)

    async def come(self, count: int) -> None:
        await until(lambda: len(self.held) >= count)

    def open(self) -> None:
        self._cluster.answers.pop("Send", None)
        for held in self.held:
            if not held.done():
                held.set_result(None)


# ---- half messages ----
#
# What the brokers of a cluster in memory do with transactions: half messages wait apart, an end
# makes them visible or forgets them, and a test has the brokers ask about them.


class HalfMessages:
    """`open`: (broker name, queue offset) → message, of the transactions that have not ended."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.open: dict[tuple[str, int], message_pb2.Message] = {}
        self._stored = 0
        cluster.answers["Send"] = self.send
        cluster.answers["EndTransaction"] = self.end

    def send(self, address: str, request: Any) -> Any:
        """None: no half message is among them, so that the broker stores them as others."""
        if not any("TRAN_MSG" in message.properties for message in request.messages):
            return None
        broker = self._cluster.brokers[address]
        response = message_pb2.SendResponse(broker_name=broker.name, store_host=address)
        for message in request.messages:
            assert message.properties["TRAN_MSG"] == "true" and request.producer_group
            self.open[broker.name, self._stored] = message
            response.results.add(
                queue_id=message.queue_id,
                queue_offset=self._stored,
                physical_offset=self._stored,
                transaction_id=message.properties["UNIQ_KEY"],
            )
            self._stored += 1
        return response

    def end(self, address: str, request: Any) -> transaction_pb2.EndTransactionResponse:
        broker = self._cluster.brokers[address]
        response = transaction_pb2.EndTransactionResponse()
        for end in request.ends:
            message = self.open.get((broker.name, end.queue_offset))
            if message is None or message.properties["UNIQ_KEY"] != end.transaction_id:
                response.results.add(code=int(Code.INVALID_TRANSACTION_ID), message="not open")
                continue
            del self.open[broker.name, end.queue_offset]
            if end.resolution == transaction_pb2.COMMIT:
                encoded = properties.encode(dict(message.properties))
                broker.append(message.topic, message.queue_id, message.body, encoded)
            response.results.add()
        return response

    def ask(self, broker: MemoryBroker) -> None:
        """Asks the clients of `broker` that watch it about every open transaction."""
        for (name, queue_offset), message in self.open.items():
            if name != broker.name:
                continue
            check = client_pb2.TransactionCheck(
                transaction_id=message.properties["UNIQ_KEY"],
                queue_offset=queue_offset,
                message=message_pb2.StoredMessage(
                    topic=message.topic, body=message.body, properties=dict(message.properties)
                ),
                check_number=1,
            )
            for notices in broker.watchers.values():
                notices.put_nowait(client_pb2.ClientNotice(transaction_check=check))


# ---- passed replies ----
#
# What the brokers of a cluster in memory do with replies: they pass them on to the clients that
# watch them.


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
