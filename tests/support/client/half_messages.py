"""What the brokers of a cluster in memory do with transactions: half messages wait apart, an end
makes them visible or forgets them, and a test has the brokers ask about them.
"""

from __future__ import annotations

from typing import Any

from aerobee.broker.v1 import client_pb2, message_pb2, transaction_pb2

from aerobee_wire import properties
from aerobee_wire.status import Code
from support.client.memory import MemoryBroker, MemoryCluster


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
