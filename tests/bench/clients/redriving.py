"""A redrive of 100,000 dead letters of 1 KiB, with a journal, against single sends of the same size
that its producer does without reading or keeping anything. Real processes: namesrv and broker with
synchronous flush. During a redrive the collector is set as `aerobee dlq redrive` sets it.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

from aerobee_cli.redriving import fewer_looks_for_cycles
from aerobee_client import AsyncAdminClient, AsyncProducer
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_client.admin.redriving.journal import Journal
from aerobee_client.admin.redriving.message_ids import MessageIds
from aerobee_client.admin.redriving.outcome import Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.run import Redrive, Settings
from aerobee_client.runtime.clock import SystemClock
from bench.clients.producers import QUEUES, TOPIC, single
from bench.measure import ROUND_S, ROUNDS, Result, rate
from support.processes.redriving import fill
from support.processes.service import namesrv_and_broker

GROUP = "bench"
MESSAGES = 100_000
BODY_BYTES = 1_024
IN_FLIGHT = 1_024
TARGET = 0.4


async def results() -> list[Result]:
    with (
        tempfile.TemporaryDirectory() as folder,
        namesrv_and_broker(Path(folder)) as (namesrv, _),
    ):
        await asyncio.to_thread(fill, namesrv.address, GROUP, "origin", MESSAGES, BODY_BYTES)
        async with (
            AsyncAdminClient(namesrv.address) as admin,
            AsyncProducer(namesrv=namesrv.address) as producer,
        ):
            await admin.create_topic(TOPIC, queues=QUEUES)
            await rate(single(producer), IN_FLIGHT, ROUND_S / 2)
            letters = DeadLetters(admin, GROUP)
            pairs = [
                (
                    await redriven(letters, producer, Path(folder, f"journal-{n}")),
                    await rate(single(producer), IN_FLIGHT),
                )
                for n in range(ROUNDS)
            ]
    ours, sends = (statistics.median(column) for column in zip(*pairs, strict=True))
    note = f"{ROUNDS} runs of {MESSAGES // ROUNDS:,}, to origin, with a journal; baseline: "
    note += "client_single_send_1k"
    return [Result("redrive_100k", "messages/s", ours, sends, ours / sends, TARGET, note)]


async def redriven(letters: DeadLetters, producer: AsyncProducer, path: Path) -> float:
    """Messages a second of a redrive of the next dead letters."""
    ids = MessageIds()
    journal = Journal.open(path, GROUP, Target.ORIGIN, ids)
    count = MESSAGES // ROUNDS
    settings = Settings(consumer_group=GROUP, target=Target.ORIGIN, limit=count)
    redrive = Redrive(settings, producer, clock=SystemClock(), ids=ids, journal=journal)
    with fewer_looks_for_cycles():
        began = time.perf_counter()
        async with aclosing(letters.pages()) as reading:
            async for _ in redrive.run(reading):
                pass
        elapsed_s = time.perf_counter() - began
    journal.close()
    ids.close()
    assert redrive.tally.by_status == {Status.SENT: count}
    return count / elapsed_s
