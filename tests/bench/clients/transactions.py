"""Transactions, and requests with their replies, of the Python client, 1 KiB each, against single
sends. Real processes: namesrv and broker with synchronous flush.
"""

from __future__ import annotations

import statistics
import tempfile

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    Message,
    ReceivedMessage,
    TransactionResolution,
)
from bench.measure import ROUNDS, Result, compare, median_ms
from bench.startup import started, up

TOPIC, REQUESTS, QUEUES = "bench", "requests", 4
BODY = bytes(range(256)) * 4  # 1 KiB
IN_FLIGHT = 64
REQUESTS_A_ROUND = 300


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with started("-m", "aerobee_cli", *up(data)) as (_, line):
            namesrv = dict(item.split("=") for item in line.split()[1:])["namesrv"]
            async with AsyncAdminClient(namesrv) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES)
                await admin.create_topic(REQUESTS, queues=QUEUES)
            return [await transactions(namesrv), await request_reply(namesrv)]


def unknown(message: ReceivedMessage) -> TransactionResolution:
    return TransactionResolution.UNKNOWN


async def transactions(namesrv: str) -> Result:
    async with AsyncTransactionProducer("bench", unknown, namesrv=namesrv) as producer:

        async def transact() -> int:
            async with producer.transaction(Message(TOPIC, BODY, tag="bench")):
                return 1

        async def send() -> int:
            await producer.send(Message(TOPIC, BODY, tag="bench"), accumulate=False)
            return 1

        return await compare(
            "client_transaction_1k",
            transact,
            send,
            in_flight=IN_FLIGHT,
            target=0.4,
            note=f"{IN_FLIGHT} committed at a time, against as many sends, accumulation off",
        )


async def request_reply(namesrv: str) -> Result:
    """Milliseconds of one request after the other; medians of the rounds' medians."""
    consumer: AsyncPushConsumer

    async def listen(message: ReceivedMessage) -> None:
        await consumer.reply(message, message.body)

    consumer = AsyncPushConsumer("bench", listen, namesrv=namesrv)
    consumer.subscribe(REQUESTS)
    async with consumer, AsyncProducer(namesrv=namesrv) as producer:

        async def request() -> object:
            return await producer.request(Message(REQUESTS, BODY, tag="bench"))

        async def send() -> object:
            return await producer.send(Message(TOPIC, BODY, tag="bench"))

        await median_ms(request, REQUESTS_A_ROUND // 3)
        rounds = [
            (await median_ms(request, REQUESTS_A_ROUND), await median_ms(send, REQUESTS_A_ROUND))
            for _ in range(ROUNDS)
        ]
    ours, sends = (statistics.median(times) for times in zip(*rounds, strict=True))
    note = "p50 of one request after the other, against that of a send; at most 4"
    return Result("client_request_reply", "ms", ours, sends, ours / sends, 4.0, note)
