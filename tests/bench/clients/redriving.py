"""A redrive of 100,000 dead letters of 1 KiB without a rate, against the ingest of such messages.

Real processes: namesrv and broker with synchronous flush.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
from pathlib import Path

import grpc
from aerobee.broker.v1 import message_pb2

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.letters import LetterJobSpec
from bench.measure import ROUND_S, ROUNDS, Result, rate
from bench.servers.echo import OPTIONS
from bench.throughput import IN_FLIGHT, QUEUES, TOPIC, ingest
from support.clock.polling import until
from support.processes.redriving import fill
from support.processes.service import namesrv_and_broker
from support.stubs import Stub

GROUP = "bench"
MESSAGES = 100_000
BODY_BYTES = 1_024
TARGET = 0.5


async def results() -> list[Result]:
    with (
        tempfile.TemporaryDirectory() as folder,
        namesrv_and_broker(Path(folder)) as (namesrv, broker),
    ):
        await asyncio.to_thread(fill, namesrv.address, GROUP, "origin", MESSAGES, BODY_BYTES)
        async with (
            AsyncAdminClient(namesrv.address) as admin,
            grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel,
        ):
            await admin.create_topic(TOPIC, queues=QUEUES)
            send = ingest(Stub(message_pb2, channel))
            await rate(send, IN_FLIGHT, ROUND_S / 2)
            pairs = [
                (await redriven(admin, f"job-{n}"), await rate(send, IN_FLIGHT))
                for n in range(ROUNDS)
            ]
    ours, sends = (statistics.median(column) for column in zip(*pairs, strict=True))
    note = f"{ROUNDS} runs of {MESSAGES // ROUNDS:,}, to origin, by the broker; baseline: "
    note += "ingest_batch_1k"
    return [Result("redrive_100k", "messages/s", ours, sends, ours / sends, TARGET, note)]


async def redriven(admin: AsyncAdminClient, job_id: str) -> float:
    """Messages a second of a redrive of the next dead letters, by the times of its job."""
    count = MESSAGES // ROUNDS
    (broker,) = await admin.broker_times_ms()
    spec = LetterJobSpec(consumer_group=GROUP, target="origin", limit=count)
    await admin.start_letter_job(broker, job_id, spec)

    async def ended() -> bool:
        (job,) = await admin.letter_jobs(job_id=job_id)
        return job.state == "done"

    await until(ended)
    (job,) = await admin.letter_jobs(job_id=job_id)
    assert job.sent == count
    return count / (job.ended_ms - job.started_ms) * 1_000
