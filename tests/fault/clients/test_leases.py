"""Simple consumers while brokers and consumers are killed: every message is settled, and what was
settled never comes again.

Real processes: two brokers, three consumers (`lease_agent.py`). A run prints its seed, which
chooses who is killed when.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import AsyncAdminClient, AsyncProducer, Message
from aerobee_client.errors import MqError
from aerobee_wire.topics import dead_letter_topic
from fault.agents import Agent
from fault.conftest import Campaign
from fault.groups.leases import SETTLED, check_settled, in_doubt
from support.clock.polling import until
from support.processes.service import ServiceProcess, namesrv_and_brokers

pytestmark = pytest.mark.slow

AGENT = "fault.lease_agent"
TOPIC, GROUP = "tasks", "runners"
AGENTS = 3
SHORT_KILLS, LONG_KILLS = 4, 60
MOST_AHEAD = 500  # sends that are not settled yet


class Run:
    """`sent`: bodies whose send was acknowledged."""

    def __init__(self, namesrv: str, brokers: list[ServiceProcess], chance: random.Random) -> None:
        self.namesrv = namesrv
        self.brokers = brokers
        self.chance = chance
        self.agents: list[Agent] = []
        self.ended: list[Agent] = []
        self.sent: set[str] = set()

    @property
    def reported(self) -> list[dict[str, Any]]:
        return [one for agent in (*self.agents, *self.ended) for one in agent.reported]

    def settled(self) -> set[str]:
        return {one["body"] for one in self.reported if one["event"] in SETTLED}

    def in_doubt(self) -> set[str]:
        consumers = (agent.reported for agent in (*self.agents, *self.ended))
        return {one["body"] for one in in_doubt(consumers)}

    def has_settled_all(self) -> bool:
        """Whether each send is settled, or may be. Raises with the story of one that is not."""
        missing = self.sent - self.settled() - self.in_doubt()
        if missing:
            story = [one for one in self.reported if one.get("body") == min(missing)]
            raise AssertionError(f"{len(missing)} are not settled, such as {story or missing}")
        return True

    async def start_agent(self) -> None:
        seed = str(self.chance.randrange(1 << 30))
        self.agents.append(await Agent.start(AGENT, self.namesrv, TOPIC, GROUP, seed))

    async def fault(self) -> str:
        """Kills or stops somebody, and starts it again."""
        kind = self.chance.choice(("broker", "broker", "both brokers", "consumer", "consumer"))
        if kind == "consumer":
            agent = self.agents.pop(self.chance.randrange(len(self.agents)))
            self.ended.append(agent)
            await agent.end(killed=self.chance.random() < 0.8)
            await self.start_agent()
            return kind
        chosen = self.brokers if kind == "both brokers" else [self.chance.choice(self.brokers)]
        for broker in chosen:
            end = broker.kill if self.chance.random() < 0.7 else broker.stop
            await asyncio.to_thread(end)
        await asyncio.sleep(self.chance.uniform(0, 2))
        for broker in chosen:
            await asyncio.to_thread(broker.start)
        return kind

    async def produce(self) -> None:
        number = 0
        async with AsyncProducer(namesrv=self.namesrv) as producer:
            while True:
                if len(self.sent) - len(self.settled()) > MOST_AHEAD:
                    await asyncio.sleep(0.1)
                    continue
                bodies = [f"{number + index}" for index in range(20)]
                number += len(bodies)
                sends = (producer.send(Message(TOPIC, body.encode())) for body in bodies)
                outcomes = await asyncio.gather(*sends, return_exceptions=True)
                for body, outcome in zip(bodies, outcomes, strict=True):
                    if not isinstance(outcome, BaseException):
                        self.sent.add(body)
                    elif not isinstance(outcome, MqError):
                        raise outcome
                await asyncio.sleep(0.1)

    def check(self) -> Counter[str]:
        """That nothing settled came again. Returns figures."""
        figures: Counter[str] = Counter(one["event"] for one in self.reported)
        figures["redelivered"] = check_settled(self.reported)
        figures.update(
            f"failed: {one['code']}" for one in self.reported if one["event"] == "failed"
        )
        return figures


async def test_whatever_is_killed_each_message_is_settled_and_stays_so(
    tmp_path: Path, campaign: Campaign
) -> None:
    for seed in campaign.seeds(1, 5):
        print(f"seed {seed}")
        data = tmp_path / str(seed)
        data.mkdir()
        with namesrv_and_brokers(data) as (namesrv, brokers):
            run = Run(namesrv.address, list(brokers.values()), random.Random(seed))
            await tried(run, campaign)


async def tried(run: Run, campaign: Campaign) -> None:
    began = time.monotonic()
    async with AsyncAdminClient(run.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=4)
        await admin.create_group(GROUP, max_attempts=1_000)
    for _ in range(AGENTS):
        await run.start_agent()
    producing = asyncio.create_task(run.produce())
    kinds: Counter[str] = Counter()
    for _ in range(LONG_KILLS if campaign.long else SHORT_KILLS):
        before = len(run.settled())
        await until(lambda before=before: len(run.settled()) > before + 50, timeout_s=60)  # type: ignore[misc]
        kinds[await run.fault()] += 1
    producing.cancel()
    outcome = (await asyncio.gather(producing, return_exceptions=True))[0]
    assert isinstance(outcome, asyncio.CancelledError), outcome
    await until(run.has_settled_all, timeout_s=90)
    await until(lambda: all_settled(run.namesrv), timeout_s=90)
    for agent in run.agents:
        await agent.end(killed=False)
    figures = run.check()
    await check_dead_letters(run)
    campaign.report(
        f"{len(run.sent)} sends, faults {dict(kinds)}, {dict(figures)}, "
        f"{time.monotonic() - began:.0f} s"
    )


async def all_settled(namesrv: str) -> bool:
    """By the account of the brokers."""
    async with AsyncAdminClient(namesrv) as admin:
        return not sum(queue.lag for queue in await admin.consume_progress(GROUP, TOPIC))


async def check_dead_letters(run: Run) -> None:
    """Each that a consumer was told of is there, with its reason."""
    reported = {one["body"] for one in run.reported if one["event"] == "dead-lettered"}
    found = set()
    async with AsyncAdminClient(run.namesrv) as admin:
        topic = dead_letter_topic(GROUP)
        for queue in await admin.topic_status(topic) if reported else ():
            browsed = await admin.browse(
                topic, queue.broker_name, queue.queue_id, queue.min_offset, max_messages=1_000
            )
            found |= {
                letter.failure_description
                for letter in browsed.messages()
                if letter.failure_reason == "CHANCE"
            }
    assert reported <= found
