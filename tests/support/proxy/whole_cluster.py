"""A proxy over real brokers and a name server of a few lines, in one loop: no sockets, no threads.

For what needs both sides: leases, acks, transactions, tables that must not grow. Runs on a loop
with virtual time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerobee.namesrv.v1.namesrv_pb2 import BrokerData
from aerobee_foreign.apache.rocketmq.v2 import service_pb2
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_chassis.rpc.services import Method, bind
from aerobee_proxy.config import ProxyOptions
from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.rpc.pipeline import NotAdmitted
from support.broker.harness import BrokerHarness
from support.broker.in_process import InProcess
from support.clock.virtual_loop import LoopClock
from support.proxy.harness import CLIENT_ID, FakeCall, Requests, streamed

BROKER = BrokerData(broker_name="broker-a", addresses={0: "broker-a"})  # the first one
SERVICE = service_pb2.DESCRIPTOR.services_by_name["MessagingService"]


class WholeCluster:
    """Begin with `await WholeCluster.begin(path)`. `options` are the proxy's. `broker`: the first
    one."""

    def __init__(self, brokers: Mapping[str, BrokerHarness], options: dict[str, Any]) -> None:
        self.brokers = brokers
        self.broker = next(iter(brokers.values()))
        self.transport = InProcess(brokers)
        self.clock = LoopClock()
        given = ProxyOptions(namesrv_addr="10.0.0.9:9876", **options)
        self.proxy: Proxy = Proxy(given, self.transport, self.clock, listen_port=lambda: 8081)
        self.methods: dict[str, Method] = {
            method.name: method for method in bind(SERVICE, self.proxy.rpcs).methods
        }

    @classmethod
    async def begin(
        cls,
        path: Path,
        names: Sequence[str] = (BROKER.broker_name,),
        *,
        broker_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> WholeCluster:
        brokers = {
            name: await BrokerHarness.begin(path / name, brokerName=name, **(broker_options or {}))
            for name in names
        }
        return cls(brokers, options)

    def another_proxy(self, **options: Any) -> WholeCluster:
        """A second proxy of the same brokers; end only the first."""
        return WholeCluster(self.brokers, options)

    async def end(self) -> None:
        await self.proxy.close()
        for broker in self.brokers.values():
            await broker.end()

    def topic(self, name: str, message_type: str = "NORMAL", queues: int = 1) -> None:
        attributes = {"message.type": message_type}
        for broker in self.brokers.values():
            broker.tables.topics.put(TopicConfig(name, queues, queues, attributes=attributes))

    async def ask(
        self,
        rpc: str,
        request: Message,
        *,
        metadata: Mapping[str, str] | None = None,
        time_remaining_s: float | None = None,
    ) -> list[Any]:
        """Every message of the answer. A client stream consists of this one request."""
        method = self.methods[rpc]
        parsed = method.request.FromString(request.SerializeToString())
        call = FakeCall(
            {"x-mq-client-id": CLIENT_ID} if metadata is None else metadata,
            time_remaining_s,
            GetMessageClass(SERVICE.methods_by_name[rpc].output_type),
        )
        if method.client_streams:
            requests = Requests()
            requests.put(parsed)
            task = asyncio.create_task(method.handler(aiter(requests), call))
            await asyncio.sleep(0.1)  # for answers that come later
            requests.end()
            with suppress(NotAdmitted):  # whose status is among the answers
                await task
            return call.written
        if method.server_streams:
            return await streamed(method.handler, parsed, call)
        return [await method.handler(parsed, call)]
