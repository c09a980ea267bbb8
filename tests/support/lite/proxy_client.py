"""A client of lite topics at the proxy of `whole_cluster.py`, by the public protocol: its stream
stays open, and what the proxy tells it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_broker.metadata.topics import TopicConfig
from support.proxy.harness import FakeCall, Requests
from support.proxy.whole_cluster import WholeCluster

PARENT, GROUP = "sessions", "agents"
TOPIC, OF_GROUP = d.Resource(name=PARENT), d.Resource(name=GROUP)


async def make_lite(cluster: WholeCluster, **attributes: str) -> None:
    """The parent and a group that is bound to it, at every broker."""
    for broker in cluster.brokers.values():
        parent = TopicConfig(PARENT, 4, 4, attributes={"message.type": "LITE"})
        await broker.broker.topics.put(parent)
        bound = {"lite.bind.topic": PARENT, **attributes}
        await broker.group(GROUP, attributes=bound, retry_max_times=1)


def lite_message(name: str, body: bytes, **system: Any) -> d.Message:
    fields = d.SystemProperties(message_id=f"ID-{name}-{body.decode()}", lite_topic=name, **system)
    return d.Message(topic=TOPIC, body=body, system_properties=fields)


async def send(cluster: WholeCluster, *messages: d.Message) -> s.SendMessageResponse:
    (answer,) = await cluster.ask("SendMessage", s.SendMessageRequest(messages=messages))
    return answer  # type: ignore[no-any-return]


def lite_settings(kind: str = "LITE_PUSH_CONSUMER", topic: d.Resource = TOPIC) -> d.Settings:
    entry = d.SubscriptionEntry(
        topic=topic, expression=d.FilterExpression(type=d.FilterType.TAG, expression="*")
    )
    subscription = d.Subscription(group=OF_GROUP, subscriptions=[entry])
    return d.Settings(client_type=kind, subscription=subscription)


class LiteClient:
    def __init__(self, cluster: WholeCluster, client_id: str = "c1") -> None:
        self.cluster = cluster
        self.metadata = {"x-mq-client-id": client_id}
        self.call = FakeCall(self.metadata, answer=s.TelemetryCommand)
        self._requests = Requests()
        self._stream: asyncio.Task[Any] | None = None

    async def open(self, settings: d.Settings | None = None) -> d.Settings:
        """Opens the stream; returns the settings that the proxy answers."""
        handler: Any = self.cluster.methods["Telemetry"].handler
        self._stream = asyncio.create_task(handler(aiter(self._requests), self.call))
        self._requests.put(s.TelemetryCommand(settings=settings or lite_settings()))
        await asyncio.sleep(0.1)
        if self._stream.done():
            self._stream.result()
        return self.call.written[0].settings  # type: ignore[no-any-return]

    async def cut(self) -> None:
        assert self._stream is not None
        self._stream.cancel()
        with suppress(asyncio.CancelledError):
            await self._stream
        await asyncio.sleep(0.1)

    def lost(self) -> list[str]:
        """The lite topics that it was told it lost."""
        return [
            command.notify_unsubscribe_lite_command.lite_topic
            for command in self.call.written
            if command.HasField("notify_unsubscribe_lite_command")
        ]

    async def ask(self, rpc: str, request: Any) -> list[Any]:
        return await self.cluster.ask(rpc, request, metadata=self.metadata)

    async def sync(
        self, action: str, names: Sequence[str] = (), *, topic: d.Resource = TOPIC, **option: Any
    ) -> int:
        request = s.SyncLiteSubscriptionRequest(
            action=action,
            topic=topic,
            group=OF_GROUP,
            lite_topic_set=names,
            offset_option=d.OffsetOption(**option) if option else None,
        )
        (answer,) = await self.ask("SyncLiteSubscription", request)
        return int(answer.status.code)

    async def receive(self, poll_s: int = 0, count: int = 32, **fields: Any) -> list[d.Message]:
        """Its messages; that the status says the same is checked here."""
        broker = next(iter(self.cluster.brokers))
        request = s.ReceiveMessageRequest(
            group=OF_GROUP,
            message_queue=d.MessageQueue(topic=TOPIC, id=-1, broker=d.Broker(name=broker)),
            batch_size=count,
            **{"invisible_duration": {"seconds": 10}, **fields},
        )
        request.long_polling_timeout.FromSeconds(poll_s)
        answers = await self.ask("ReceiveMessage", request)
        messages = [a.message for a in answers if a.HasField("message")]
        wanted = d.Code.OK if messages else d.Code.MESSAGE_NOT_FOUND
        self.code = int(answers[0].status.code)
        assert messages == [] or self.code == wanted
        return messages

    async def ack(self, *messages: d.Message) -> int:
        """Without naming the lite topic."""
        entries = [
            s.AckMessageEntry(
                message_id=message.system_properties.message_id,
                receipt_handle=message.system_properties.receipt_handle,
            )
            for message in messages
        ]
        request = s.AckMessageRequest(group=OF_GROUP, topic=TOPIC, entries=entries)
        (answer,) = await self.ask("AckMessage", request)
        return int(answer.status.code)

    async def change(self, message: d.Message, seconds: int, *, suspend: bool) -> int:
        """Its invisible duration; without naming the lite topic."""
        request = s.ChangeInvisibleDurationRequest(
            group=OF_GROUP,
            topic=TOPIC,
            receipt_handle=message.system_properties.receipt_handle,
            suspend=suspend,
        )
        request.invisible_duration.FromSeconds(seconds)
        (answer,) = await self.ask("ChangeInvisibleDuration", request)
        return int(answer.status.code)


def reported(messages: Sequence[d.Message]) -> list[tuple[str, bytes, int]]:
    return [
        (m.system_properties.lite_topic, m.body, m.system_properties.delivery_attempt)
        for m in messages
    ]
