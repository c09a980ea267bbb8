"""Pause and resume against real processes, under load and while members come and go."""

from __future__ import annotations

import asyncio
from collections import Counter

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    Message,
    MessageQueue,
    ReceivedMessage,
)
from support.clock.polling import until


async def test_pauses_under_load_lose_nothing(namesrv: str) -> None:
    seen: Counter[bytes] = Counter()
    events: list[tuple[str, frozenset[MessageQueue]]] = []

    async def listen(message: ReceivedMessage) -> None:
        seen[message.body] += 1

    def member() -> AsyncPushConsumer:
        consumer = AsyncPushConsumer(
            "pausing-g",
            listen,
            namesrv=namesrv,
            pull_threshold_for_all=500,
            on_assigned=lambda queues: events.append(("assigned", queues)),
            on_revoked=lambda queues: events.append(("revoked", queues)),
        )
        consumer.subscribe("pausing")
        return consumer

    first, second = member(), member()
    sent: list[bytes] = []
    async with AsyncAdminClient(namesrv) as admin, AsyncProducer(namesrv=namesrv) as producer:
        await admin.create_topic("pausing", queues=4)
        async with first:
            for turn in range(20):
                bodies = [b"%d" % (len(sent) + n) for n in range(200)]
                await producer.send_batch([Message("pausing", body) for body in bodies])
                sent += bodies
                if turn == 10:
                    await second.start()
                first.pause("pausing")
                await asyncio.sleep(0.02)
                first.set_concurrency(1 + turn)
                first.resume("pausing")
            await until(lambda: len(seen) == len(sent))
            await second.close()
            first.pause()
            await asyncio.sleep(0.3)  # what is pulled now waits
            await producer.send(Message("pausing", b"last"))
            await asyncio.sleep(0.5)
            assert b"last" not in seen
            owners = await admin.consume_progress("pausing-g", "pausing")
            assert all(queue.client_id for queue in owners), "it keeps its queues"
            first.resume()
            await until(lambda: seen[b"last"] == 1)
    assert set(seen) == {*sent, b"last"}
    assert sum(seen.values()) - len(seen) <= 1_000, "only what a rebalance delivers again"
    assert {name for name, _ in events} == {"assigned", "revoked"}
