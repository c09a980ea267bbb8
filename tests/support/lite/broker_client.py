"""A parent topic, a group that is bound to it, and a client of that group, over the RPC handlers of
the broker of `harness.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee.broker.v1 import lite_pb2, pop_pb2

from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.queues.lite import lease_topic_of
from aerobee_wire.record import iter_records
from support.broker.handlers import Handlers
from support.broker.harness import BrokerHarness

PARENT, GROUP = "sessions", "agents"
ADD, REMOVE, REPLACE, LEAVE = range(4)


@dataclass(frozen=True)
class Got:
    lite_topic: str
    body: bytes
    attempt: int
    queue_offset: int
    lease: pop_pb2.Lease


async def make_parent(harness: BrokerHarness, *, queues: int = 2, **attributes: str) -> None:
    given = {"message.type": "LITE", **{k.replace("_", "."): v for k, v in attributes.items()}}
    await harness.broker.topics.put(TopicConfig(PARENT, queues, queues, attributes=given))


async def bind(harness: BrokerHarness, name: str = GROUP, **settings: Any) -> None:
    """`model`, `quota`, `wildcard`, and settings of the group."""
    attributes = {"lite.bind.topic": PARENT}
    for key, attribute in (
        ("model", "lite.sub.model"),
        ("quota", "lite.sub.client.quota"),
        ("wildcard", "lite.sub.wildcard"),
        ("resets_evicted", "lite.sub.reset.offset.exclusive"),
        ("resets_unsubscribed", "lite.sub.reset.offset.unsubscribe"),
    ):
        if key in settings:
            attributes[attribute] = str(settings.pop(key))
    await harness.group(name, attributes=attributes, **settings)


async def send_lite(harness: BrokerHarness, name: str, *bodies: bytes, queue_id: int = 0) -> None:
    properties = {"__LITE_TOPIC": name}
    await harness.send(PARENT, *bodies, queue_id=queue_id, properties=properties)


class LiteConsumer:
    def __init__(
        self,
        harness: BrokerHarness,
        client_id: str = "c1",
        group: str = GROUP,
        parent: str = PARENT,
    ) -> None:
        self.handlers: Callable[[str, Any], Awaitable[Any]] = Handlers(harness)
        self.client_id = client_id
        self.group = group
        self.parent = parent

    async def sync(self, action: int, *names: str, **fields: Any) -> list[str]:
        """The lite topics that it has lost. `fields`: where to begin, or `may_return`."""
        request = lite_pb2.SyncLiteTopicsRequest(
            consumer_group=self.group,
            parent=self.parent,
            client_id=self.client_id,
            action=lite_pb2.LiteSync.Name(action),
            lite_topics=names,
            **fields,
        )
        return list((await self.handlers("SyncLiteTopics", request)).lost)

    async def pop(self, count: int = 32, *, poll_ms: int = 0, **fields: Any) -> list[Got]:
        return (await self.pop_all(count, poll_ms=poll_ms, **fields))[0]

    async def pop_all(
        self, count: int = 32, *, poll_ms: int = 0, invisible_ms: int = 10_000, **fields: Any
    ) -> tuple[list[Got], list[str]]:
        """What it got, and the lite topics that it has lost."""
        request = lite_pb2.LitePopRequest(
            consumer_group=self.group,
            parent=self.parent,
            client_id=self.client_id,
            max_messages=count,
            invisible_duration_ms=invisible_ms,
            poll_duration_ms=poll_ms,
            **fields,
        )
        answer = await self.handlers("LitePop", request)
        got = [each for batch in answer.batches for each in self._messages(batch)]
        return got, list(answer.lost)

    def _messages(self, batch: lite_pb2.LiteMessages) -> list[Got]:
        popped = batch.messages
        records = list(iter_records(popped.records))
        assert len(records) == popped.message_count == len(popped.delivery_attempts)
        return [
            Got(
                batch.lite_topic,
                record.body,
                attempt,
                record.queue_offset,
                pop_pb2.Lease(
                    consumer_group=self.group,
                    topic=lease_topic_of(self.parent, batch.lite_topic),
                    queue_id=batch.queue_id,
                    queue_offset=record.queue_offset,
                    lease_id=popped.lease_id,
                    expires_timestamp_ms=popped.pop_time_ms + popped.invisible_duration_ms,
                ),
            )
            for record, attempt in zip(records, popped.delivery_attempts, strict=True)
        ]

    async def ack(self, got: Sequence[Got]) -> list[int]:
        """The code of each."""
        request = pop_pb2.AckRequest(leases=[each.lease for each in got])
        return [result.code for result in (await self.handlers("Ack", request)).results]

    async def change(self, got: Sequence[Got], ms: int, *, uncounted: bool = False) -> list[int]:
        changes = [
            pop_pb2.InvisibleChange(lease=each.lease, invisible_duration_ms=ms, uncounted=uncounted)
            for each in got
        ]
        request = pop_pb2.ChangeInvisibleDurationRequest(changes=changes)
        answer = await self.handlers("ChangeInvisibleDuration", request)
        return [result.code for result in answer.results]


def bodies(got: Sequence[Got]) -> list[bytes]:
    return [each.body for each in got]
