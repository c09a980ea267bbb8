"""A listener in order that does not return, against real processes: what the others do."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    ReceivedMessage,
)
from aerobee_wire.topics import retry_topic
from support.client.orderly_member import calls, gaps, overlaps
from support.clock.polling import until
from support.processes.service import namesrv_and_broker

FIRST = ConsumeFromWhere.FIRST_OFFSET
PATIENT_S = 60.0


class Record:
    """What listeners begin and end. `hangs`: until it is set, a message "hang" does not end."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.hangs = threading.Event()

    def listen(self, member: str, message: ReceivedMessage) -> None:
        where = f"{message.queue_id} {message.queue_offset}"
        self.lines.append(f"begin {where} {time.monotonic()} {member}")
        if message.body == b"hang":
            self.hangs.wait()
        self.lines.append(f"end {where} {time.monotonic()} {member}")

    def begun(self, queue_id: int, member: str) -> int:
        """Calls of a queue that began in a member."""
        begin, end = f"begin {queue_id} ", f" {member}"
        return sum(line.startswith(begin) and line.endswith(end) for line in self.lines)


async def test_a_listener_that_hangs_keeps_its_queue_and_nothing_else(tmp_path: Path) -> None:
    """It is in the last queue, which a rebalance gives to another member: that one starts there
    when the listener has ended, however short the consume timeout is."""
    record, topic, queues = Record(), "hanging", 4
    begun = record.begun

    def member(name: str) -> AsyncPushConsumer:
        consumer = AsyncPushConsumer(
            "hangs",
            partial(record.listen, name),
            namesrv=namesrv.address,
            orderly=True,
            consume_from_where=FIRST,
            consume_timeout=timedelta(milliseconds=200),
        )
        consumer.subscribe(topic)
        return consumer

    with namesrv_and_broker(tmp_path) as (namesrv, _):
        async with (
            AsyncAdminClient(namesrv.address) as admin,
            AsyncProducer(namesrv=namesrv.address) as producer,
        ):
            await admin.create_topic(topic, queues=queues)
            last = MessageQueue(topic, "broker-a", queues - 1)
            await producer.send(Message(topic, b"hang"), queue=last)

            async def send_to_all() -> None:
                for queue_id in range(queues):
                    queue = MessageQueue(topic, "broker-a", queue_id)
                    await producer.send_batch([Message(topic, b"x")] * 5, queue=queue)

            try:
                async with member("first") as first:
                    await until(lambda: begun(3, "first") == 1)
                    await send_to_all()
                    await until(lambda: [begun(n, "first") for n in range(4)] == [5, 5, 5, 1])
                    async with member("second") as second:
                        await until(lambda: owned(second, topic) == {2}, timeout_s=PATIENT_S)
                        await send_to_all()
                        await until(lambda: begun(2, "second") == 5)
                        await until(lambda: [begun(n, "first") for n in range(2)] == [10, 10])
                        await asyncio.sleep(1)  # five consume timeouts
                        assert (begun(3, "first"), begun(3, "second")) == (1, 0)
                        assert first.statistics().sent_back == second.statistics().sent_back == 0
                        record.hangs.set()
                        await until(lambda: begun(3, "second") == 10)
                        assert owned(second, topic) == {2, 3}
                        assert begun(3, "first") == 1, "the message that hung was consumed once"
            finally:
                record.hangs.set()
            assert not await stored(admin, retry_topic("hangs"))
    by_queue = calls(record.lines)
    assert [pair for found in by_queue.values() for pair in overlaps(found, {})] == []
    assert [call for found in by_queue.values() for call in gaps(found)] == []


def owned(consumer: AsyncPushConsumer, topic: str) -> set[int]:
    return {queue.queue_id for queue in consumer.queues if queue.topic == topic}


async def stored(admin: AsyncAdminClient, topic: str) -> int:
    """Messages of a topic."""
    return sum(queue.max_offset - queue.min_offset for queue in await admin.topic_status(topic))
