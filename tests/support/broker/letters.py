"""Dead letters of a broker in memory, and jobs over them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from aerobee_broker.delivery.letters.jobs import LetterJob
from aerobee_broker.delivery.letters.journal_records import Action, JobSpec
from aerobee_broker.delivery.letters.selection import Selection
from aerobee_broker.delivery.letters.states import LetterState
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from support.broker.harness import BrokerHarness

GROUP, ORIGIN = "billing", "orders"
DLQ = names.dead_letter_topic(GROUP)


def make_topics(harness: BrokerHarness) -> None:
    """The group, its topics and the origin topic, whether the broker has them or not."""
    if GROUP not in harness.tables.groups:
        harness.tables.groups.put(SubscriptionGroup(GROUP, retry_queue_count=1))
    for topic, queues in ((ORIGIN, 2), (DLQ, 1), (names.retry_topic(GROUP), 1)):
        if topic not in harness.tables.topics:
            harness.tables.topics.put(TopicConfig(topic, queues, queues))


def letter(number: int, body: bytes | None = None, **properties: str) -> NewMessage:
    given = {
        props.UNIQUE_KEY: f"ID{number}",
        props.TAGS: f"tag{number % 2}",
        props.DLQ_ORIGIN_TOPIC: ORIGIN,
        props.RETRY_TOPIC: ORIGIN,
        props.DLQ_REASON: "ValueError" if number % 3 else "Timeout",
        "colour": "red",
        **properties,
    }
    return NewMessage(DLQ, 0, body or b"%d" % number, props.encode(given))


async def fill(harness: BrokerHarness, count: int, *, body_bytes: int = 0) -> None:
    make_topics(harness)
    letters = [letter(number, (b"%d " % number).ljust(body_bytes, b".")) for number in range(count)]
    await harness.broker.log.put_accepted(letters)


def spec(
    action: Action = Action.REDRIVE, target: str = "origin", *, again: bool = False, **given: Any
) -> JobSpec:
    fields = {name: given.pop(name) for name in ("limit", "rate") if name in given}
    return JobSpec(
        consumer_group=GROUP,
        action=action,
        target=target if action is Action.REDRIVE else "",
        selection=Selection(**given),
        again=again,
        requested_by="alice",
        **fields,
    )


async def finished(harness: BrokerHarness, job_id: str) -> LetterJob:
    job = harness.broker.letters.get(job_id)
    while job.is_running:  # noqa: ASYNC110  # its end has no event
        await asyncio.sleep(0.01)  # of made-up time
    return job


async def run(harness: BrokerHarness, job_id: str, given: JobSpec) -> LetterJob:
    await harness.broker.letters.start_job(job_id, given)
    return await finished(harness, job_id)


async def sent_ids(harness: BrokerHarness, topic: str = ORIGIN) -> Counter[str]:
    """How often each message id is stored in a topic."""
    found: Counter[str] = Counter()
    for queue_id in harness.store.queues(topic):
        found.update(record.unique_message_id for record in await harness.read(topic, queue_id))
    return found


async def states(harness: BrokerHarness) -> dict[int, LetterState]:
    """The states of all letters that have one, by queue offset."""
    entries = await harness.broker.letters.states(GROUP, 0, 0, 4_096)
    return {entry.queue_offset: entry.state for entry in entries if entry.state}
