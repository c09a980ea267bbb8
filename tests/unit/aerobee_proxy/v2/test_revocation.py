"""Users of the access table at a proxy: until it arrives, and calls that last when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from aerobee.access.v1 import access_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import ClientType, Code

from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.rpc.pipeline import NotAdmitted
from support.clock.polling import until
from support.proxy.access import SECRET, signed
from support.proxy.harness import Cluster, FakeCall, Requests, streamed

TOPIC, GROUP = d.Resource(name="orders"), d.Resource(name="billing")
QUEUE = d.MessageQueue(topic=TOPIC, broker=d.Broker(name="broker-a"))
SUBSCRIPTION = d.Subscription(group=GROUP, subscriptions=[d.SubscriptionEntry(topic=TOPIC)])
SETTINGS = d.Settings(client_type=ClientType.SIMPLE_CONSUMER, subscription=SUBSCRIPTION)
RECEIVE = s.ReceiveMessageRequest(group=GROUP, message_queue=QUEUE, batch_size=16)
RECEIVE.invisible_duration.seconds = 15
RECEIVE.long_polling_timeout.seconds = 15
ROUTE = s.QueryRouteRequest(topic=TOPIC)


def user(
    time_ms: int, *secrets: str, enabled: bool = True, deleted: bool = False
) -> pb.TableRecord:
    kept = () if deleted else secrets or (SECRET,)
    return pb.TableRecord(
        version=pb.Version(time_ms=time_ms, node="n"),
        username="billing",
        user=pb.TableRecord.User(secrets=kept, enabled=enabled),
        deleted=deleted,
    )


def right(time_ms: int, resource: str, *, deleted: bool = False) -> pb.TableRecord:
    return pb.TableRecord(
        version=pb.Version(time_ms=time_ms, node="n"),
        username="billing",
        policy=pb.Policy(resource=resource, actions=["Sub"]),
        deleted=deleted,
    )


class TableCluster(Cluster):
    """A cluster whose name server sends the parts of `table`."""

    def __init__(self) -> None:
        super().__init__()
        self.table: asyncio.Queue[pb.TablePart] = asyncio.Queue()
        self.transport.answers["Watch"] = self._watch
        self.tasks: list[asyncio.Task[None]] = []

    async def _watch(self, address: str, request: Any) -> AsyncIterator[pb.TablePart]:
        while True:
            yield await self.table.get()

    def send(self, *records: pb.TableRecord, complete: bool = True) -> None:
        self.table.put_nowait(pb.TablePart(records=records, complete=complete))

    def guarded(self) -> Proxy:
        proxy = self.proxy(authentication_enabled=True, authorization_enabled=True)
        assert proxy.users is not None
        work: Any = proxy.users
        self.tasks = [asyncio.create_task(work.run()), asyncio.create_task(proxy.recheck_calls())]
        return proxy


@pytest.fixture
async def cluster() -> AsyncIterator[TableCluster]:
    cluster = TableCluster()
    yield cluster
    for task in cluster.tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def call() -> FakeCall:
    return FakeCall(signed())


async def served(cluster: TableCluster) -> Proxy:
    proxy = cluster.guarded()
    cluster.send(user(1), right(1, "Topic:orders"), right(1, "Group:billing"))

    async def code() -> int:
        return int((await proxy.rpcs.query_route(ROUTE, call())).status.code)

    await until(lambda: proxy.users is not None and proxy.users.complete, "the table")
    assert await code() != Code.UNAUTHORIZED
    return proxy


async def test_calls_fail_for_a_while_until_the_table_arrives(cluster: TableCluster) -> None:
    proxy = cluster.guarded()
    found = (await proxy.rpcs.query_route(ROUTE, call())).status
    assert found.code == Code.INTERNAL_SERVER_ERROR and "retry" in found.message
    cluster.send(complete=False)
    cluster.send()
    await until(lambda: proxy.users is not None and proxy.users.complete, "the table")
    found = (await proxy.rpcs.query_route(ROUTE, call())).status
    assert found.code == Code.UNAUTHORIZED


LOSSES = [
    user(2, enabled=False),
    user(2, deleted=True),
    user(2, "n3w"),
    right(2, "Group:billing", deleted=True),
]


@pytest.mark.parametrize(
    "loss", LOSSES, ids=["disabled", "deleted", "without the secret", "without the right"]
)
async def test_stream_and_receive_end_when_the_user_loses_the_right(
    cluster: TableCluster, loss: pb.TableRecord
) -> None:
    proxy, requests = await served(cluster), Requests()
    requests.put(s.TelemetryCommand(settings=SETTINGS))
    streaming, receiving = call(), call()
    stream = asyncio.create_task(proxy.rpcs.telemetry(aiter(requests), streaming))
    await until(lambda: streaming.written, "the answer to the settings")
    cluster.transport.gate.clear()  # brokers hold the receive
    receive = asyncio.create_task(streamed(proxy.rpcs.receive_message, RECEIVE, receiving))
    await asyncio.sleep(1)
    assert not stream.done() and not receive.done()
    cluster.send(loss)
    with pytest.raises(NotAdmitted):
        await stream
    await receive
    assert streaming.written[-1].status.code == Code.UNAUTHORIZED
    assert receiving.written[-1].status.code == Code.UNAUTHORIZED
    found = await proxy.rpcs.heartbeat(s.HeartbeatRequest(group=GROUP), call())
    assert found.status.code == Code.UNAUTHORIZED
    cluster.transport.gate.set()


async def test_other_changes_end_nothing(cluster: TableCluster) -> None:
    proxy, requests = await served(cluster), Requests()
    requests.put(s.TelemetryCommand(settings=SETTINGS))
    streaming = call()
    stream = asyncio.create_task(proxy.rpcs.telemetry(aiter(requests), streaming))
    await until(lambda: streaming.written, "the answer to the settings")
    cluster.send(right(2, "Topic:other"), user(2, "n3w", SECRET))
    await asyncio.sleep(1)
    assert not stream.done()
    requests.end()
    await stream
