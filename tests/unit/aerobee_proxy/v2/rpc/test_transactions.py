"""Transactions through the public protocol: one proxy or two over a real broker, no sockets."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest
from aerobee.namesrv.v1.namesrv_pb2 import GetClusterInfoResponse
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    Code,
    TransactionResolution,
    TransactionSource,
)

from aerobee_proxy.v2.sessions import Session, Sessions
from aerobee_wire.handles import transaction_id
from support.proxy.harness import FakeCall, Requests
from support.proxy.whole_cluster import BROKER, WholeCluster

COMMIT, ROLLBACK = TransactionResolution.COMMIT, TransactionResolution.ROLLBACK
NAMESPACE = "space"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[WholeCluster]:
    """With the background work of broker and proxy."""
    cluster = await WholeCluster.begin(tmp_path)
    cluster.topic("orders", "TRANSACTION")
    cluster.topic(f"{NAMESPACE}%orders", "TRANSACTION")
    tasks = [
        asyncio.create_task(every_second(cluster)),
        asyncio.create_task(cluster.proxy.transaction_checks.run()),
    ]
    yield cluster
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await cluster.end()
    assert cluster.transport.defects == []


async def every_second(cluster: WholeCluster) -> None:
    while True:
        await cluster.broker.broker.transaction_checks.round()
        await cluster.broker.broker.transaction_upkeep.round()
        await asyncio.sleep(1)


class Producer:
    """A client with a telemetry stream, open while in `async with`. Answers nothing by itself."""

    def __init__(self, cluster: WholeCluster, name: str, *topics: str, namespace: str = "") -> None:
        self.cluster = cluster
        self.metadata = {"x-mq-client-id": name}
        self.namespace = namespace
        self.topics = [self.resource(topic) for topic in topics]
        self._requests = Requests()
        self._call = FakeCall(self.metadata)

    def resource(self, topic: str) -> d.Resource:
        return d.Resource(name=topic, resource_namespace=self.namespace)

    async def __aenter__(self) -> Self:
        settings = d.Settings(
            client_type=d.ClientType.PRODUCER, publishing=d.Publishing(topics=self.topics)
        )
        self._requests.put(s.TelemetryCommand(settings=settings))
        handler = self.cluster.methods["Telemetry"].handler
        self._task = asyncio.ensure_future(handler(aiter(self._requests), self._call))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._requests.end()
        await self._task

    @property
    def asked(self) -> list[s.RecoverOrphanedTransactionCommand]:
        return [
            command.recover_orphaned_transaction_command
            for command in self._call.written
            if command.HasField("recover_orphaned_transaction_command")
        ]

    async def send(self, body: bytes, topic: str = "orders", **system: Any) -> str:
        """Sends a half message; returns its transaction id."""
        given = {
            "message_id": body.hex().upper(),
            "message_type": d.MessageType.TRANSACTION,
            **system,
        }
        message = d.Message(
            topic=self.resource(topic),
            body=body,
            user_properties={"color": "red"},
            system_properties=d.SystemProperties(**given),
        )
        request = s.SendMessageRequest(messages=[message])
        (answer,) = await self.cluster.ask("SendMessage", request, metadata=self.metadata)
        assert answer.status.code == Code.OK, answer.status
        return str(answer.entries[0].transaction_id)

    async def end(self, text: str, resolution: Any = COMMIT, topic: str = "orders") -> int:
        request = s.EndTransactionRequest(
            topic=self.resource(topic), transaction_id=text, resolution=resolution
        )
        (answer,) = await self.cluster.ask("EndTransaction", request, metadata=self.metadata)
        assert answer.status.message
        return int(answer.status.code)


async def visible(cluster: WholeCluster, topic: str = "orders") -> list[bytes]:
    return await cluster.broker.bodies(topic)


async def test_half_message_is_visible_after_its_commit_only(cluster: WholeCluster) -> None:
    producer = Producer(cluster, "p", "orders")
    kept, dropped = await producer.send(b"kept"), await producer.send(b"dropped")
    assert await visible(cluster) == []
    assert await producer.end(dropped, ROLLBACK) == Code.OK
    assert await producer.end(kept) == Code.OK
    assert await visible(cluster) == [b"kept"]
    for text in (kept, dropped):
        for resolution in (COMMIT, ROLLBACK):
            assert await producer.end(text, resolution) == Code.INVALID_TRANSACTION_ID
    assert await visible(cluster) == [b"kept"]


async def test_transaction_needs_its_id_and_topic(cluster: WholeCluster) -> None:
    cluster.topic("others", "TRANSACTION")
    producer = Producer(cluster, "p", "orders")
    text = await producer.send(b"a")
    transaction = transaction_id.decode(text)
    for wrong in ("", " ", "t", text[:-1], text.swapcase(), text + "=", "A" * 5_000):
        assert await producer.end(wrong) == Code.INVALID_TRANSACTION_ID
    assert await producer.end(text, topic="others") == Code.INVALID_TRANSACTION_ID
    made_up = transaction_id.TransactionId(transaction.broker_name, "orders", "01AB", 7)
    assert await producer.end(transaction_id.encode(made_up)) == Code.INVALID_TRANSACTION_ID
    stolen = transaction_id.TransactionId(
        transaction.broker_name, "others", transaction.transaction_id, transaction.queue_offset
    )
    code = await producer.end(transaction_id.encode(stolen), topic="others")
    assert code == Code.INVALID_TRANSACTION_ID, "the broker compares the producer group"
    assert await producer.end(text, TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED) == (
        Code.OK
    )
    assert await visible(cluster) == []
    assert await producer.end(text) == Code.OK


async def test_transaction_ends_through_another_proxy(cluster: WholeCluster) -> None:
    text = await Producer(cluster, "p", "orders").send(b"a")
    other = cluster.another_proxy()
    assert await Producer(other, "p2").end(text) == Code.OK
    assert await visible(cluster) == [b"a"]
    await other.proxy.close()


@pytest.mark.parametrize("namespace", ["", NAMESPACE])
async def test_check_goes_to_one_producer(cluster: WholeCluster, namespace: str) -> None:
    async with (
        Producer(cluster, "p1", "orders", namespace=namespace) as one,
        Producer(cluster, "p2", "orders", namespace=namespace) as two,
        Producer(cluster, "q", "payments") as other,
    ):
        text = await one.send(b"a", tag="t", keys=["k"], message_id="01AB")
        await asyncio.sleep(5.5)
        assert one.asked + two.asked == []
        await asyncio.sleep(2)
        (command,) = one.asked + two.asked
        assert other.asked == []
        assert command.transaction_id == text
        message = command.message
        system = message.system_properties
        assert message.topic == d.Resource(name="orders", resource_namespace=namespace)
        assert (message.body, dict(message.user_properties)) == (b"a", {"color": "red"})
        assert (system.message_id, system.tag, list(system.keys)) == ("01AB", "t", ["k"])
        assert system.message_type == d.MessageType.TRANSACTION
        assert system.body_encoding == d.Encoding.IDENTITY
        digest = hashlib.md5(b"a", usedforsecurity=False).hexdigest().upper()
        assert system.body_digest == d.Digest(type=d.DigestType.MD5, checksum=digest)
        assert system.HasField("born_timestamp") and system.delivery_attempt == 1
        await asyncio.sleep(30)
        assert len(one.asked) == len(two.asked) == 1, "the other one, the next time"
        assert await two.end(text) == Code.OK
        await asyncio.sleep(60)
        assert len(one.asked) == len(two.asked) == 1
        stored = f"{NAMESPACE}%orders" if namespace else "orders"
        assert await visible(cluster, stored) == [b"a"]


async def test_source_of_an_answer_is_optional(cluster: WholeCluster) -> None:
    """Go, C++ and C# leave the source out; an answer after the recovery time counts."""
    async with Producer(cluster, "p", "orders") as producer:
        message_ids = {}
        for source in TransactionSource.values():
            system: dict[str, Any] = {"orphaned_transaction_recovery_duration": {"seconds": 2}}
            message_ids[await producer.send(b"%d" % source, **system)] = source
        await asyncio.sleep(4)
        assert {command.transaction_id for command in producer.asked} == set(message_ids)
        for text, source in message_ids.items():
            request = s.EndTransactionRequest(
                topic=producer.resource("orders"),
                transaction_id=text,
                resolution=COMMIT,
                source=TransactionSource.Name(source),
            )
            (answer,) = await cluster.ask("EndTransaction", request)
            assert answer.status.code == Code.OK
        assert await visible(cluster) == [b"0", b"1", b"2"]


async def test_check_goes_to_the_sender_of_a_half_message(cluster: WholeCluster) -> None:
    async with Producer(cluster, "p") as producer:
        text = await producer.send(b"a")
        await asyncio.sleep(10)
        assert [command.transaction_id for command in producer.asked] == [text]


async def test_check_waits_for_a_producer(cluster: WholeCluster) -> None:
    async with Producer(cluster, "p", "orders") as first:
        text = await first.send(b"a")
    await asyncio.sleep(1_000)
    transaction = cluster.broker.broker.transactions.get(0)
    assert transaction is not None and transaction.half.checks == 0
    async with Producer(cluster, "p2", "orders") as second:
        await asyncio.sleep(4)
        assert [command.transaction_id for command in second.asked] == [text]


async def test_check_goes_to_a_producer_of_another_proxy(cluster: WholeCluster) -> None:
    other = cluster.another_proxy()
    task = asyncio.create_task(other.proxy.transaction_checks.run())
    text = await Producer(cluster, "p").send(b"a")
    async with Producer(other, "p2", "orders") as producer:
        await asyncio.sleep(10)
        assert [command.transaction_id for command in producer.asked] == [text]
        assert await producer.end(text) == Code.OK
    assert await visible(cluster) == [b"a"]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await other.proxy.close()


async def test_broken_link_is_opened_again(cluster: WholeCluster) -> None:
    async with Producer(cluster, "p", "orders") as producer:
        await asyncio.sleep(3)
        clients = cluster.broker.broker.clients

        def groups() -> list[
            frozenset[str]
        ]:  # without the producer itself, which the proxy announces
            return [client.producer_groups for client in clients.all() if client.client_id != "p"]

        assert groups() == [frozenset({"orders"})]
        clients.close()  # as a broker that stops
        await asyncio.sleep(0.1)
        assert groups() == []
        await producer.send(b"a")
        await asyncio.sleep(10)
        assert len(producer.asked) == 1
    await asyncio.sleep(3)
    assert groups() == [frozenset()]


async def test_link_to_a_broker_that_comes_back(
    cluster: WholeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[Any] = []
    monkeypatch.setattr(
        cluster.transport, "_namesrv", lambda *_: GetClusterInfoResponse(brokers=listed)
    )
    clients = cluster.broker.broker.clients
    async with Producer(cluster, "p", "orders"):
        for there in (False, True, False, True):
            listed[:] = [BROKER] if there else []
            await asyncio.sleep(8)
            assert [client.producer_groups for client in clients.all()] == (
                [frozenset({"orders"})] if there else []
            )


async def test_checks_that_come_together_look_for_producers_once(
    cluster: WholeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look visits the sessions of all clients."""
    looks = []
    producers_of = Sessions.producers_of

    def counted(sessions: Sessions, topic: str) -> list[Session]:
        looks.append(topic)
        return producers_of(sessions, topic)

    monkeypatch.setattr(Sessions, "producers_of", counted)
    async with Producer(cluster, "p1", "orders") as one:
        for number in range(40):
            await one.send(b"%d" % number)
        async with Producer(cluster, "p2", "orders") as two:
            await asyncio.sleep(8)
            assert len(one.asked) == len(two.asked) == 20
            assert looks == ["orders"]
        await asyncio.sleep(40)
        assert len(one.asked) == 60, "the other one has left"
