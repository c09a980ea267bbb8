"""Dead letters that travel in runs: what leaves together, and what each of a run is told."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from aerobee_client import AsyncAdminClient, AsyncProducer, MqError
from aerobee_client.admin.redriving.journal import Journal
from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.outcome import Outcome, Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.sends import MIN_RUN
from aerobee_wire import properties as names
from aerobee_wire import record
from aerobee_wire.status import Code
from support.client.dead_letters import GROUP, add_dead_letter
from support.client.gate import Gate
from support.client.memory import NAMESRV, MemoryBroker, MemoryCluster
from support.client.redriving import all_of, claims, redrive_of

COUNT = 2 * MIN_RUN
REFUSED = f"ID{MIN_RUN}"


async def redriven(
    admin: AsyncAdminClient, producer: AsyncProducer, target: Target, path: Path
) -> list[Outcome]:
    ids = MessageIds()
    journal = Journal.open(path, GROUP, target, ids)
    outcomes = await all_of(redrive_of(producer, ids, target, journal), admin)
    journal.close()
    ids.close()
    return outcomes


def stored(brokers: list[MemoryBroker], topic: str) -> list[str]:
    return [message.unique_message_id for broker in brokers for message in broker.messages(topic)]


async def test_of_a_refused_run_only_what_is_refused_itself_fails(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    tmp_path: Path,
) -> None:
    for n in range(COUNT):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    refused = f"{names.UNIQUE_KEY}\x01{REFUSED}\x02".encode()

    def answer(_: str, request: Any) -> None:
        if refused in request.batch.properties:
            raise MqError(Code.MESSAGE_ILLEGAL, "not this one")

    cluster.answers["Send"] = answer
    outcomes = await redriven(admin, producer, Target.ORIGIN, tmp_path / "journal")
    assert [outcome.message_id for outcome in outcomes] == [f"ID{n}" for n in range(COUNT)]
    failed = [outcome for outcome in outcomes if outcome.status is not Status.SENT]
    assert [(o.message_id, o.status, o.outcome_unknown) for o in failed] == [
        (REFUSED, Status.FAILED, False)
    ]
    assert Counter(stored(brokers, "orders")) == Counter(
        f"ID{n}" for n in range(COUNT) if f"ID{n}" != REFUSED
    )
    assert claims(tmp_path / "journal", Target.ORIGIN) == {Claim.SENT: COUNT - 1, Claim.UNKNOWN: 0}


async def test_a_body_that_is_too_large_fails_alone_and_its_error_names_no_batch(
    brokers: list[MemoryBroker], cluster: MemoryCluster, admin: AsyncAdminClient, tmp_path: Path
) -> None:
    for n in range(COUNT):
        body = b"x" * (101 if f"ID{n}" == REFUSED else 100)
        add_dead_letter(brokers[0], body, UNIQ_KEY=f"ID{n}")
    async with AsyncProducer(namesrv=NAMESRV, transport=cluster, max_message_size=100) as producer:
        outcomes = await redriven(admin, producer, Target.ORIGIN, tmp_path / "journal")
    (failed,) = [outcome for outcome in outcomes if outcome.status is not Status.SENT]
    assert (failed.message_id, failed.outcome_unknown) == (REFUSED, False)
    assert "of the batch" not in failed.error
    assert len(stored(brokers, "orders")) == COUNT - 1


async def test_of_a_topic_of_the_system_no_error_names_a_batch(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer, tmp_path: Path
) -> None:
    for n in range(COUNT):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}", DLQ_ORIGIN_TOPIC="SCHEDULE_TOPIC_XXXX")
    outcomes = await redriven(admin, producer, Target.ORIGIN, tmp_path / "journal")
    assert [outcome.status for outcome in outcomes] == [Status.FAILED] * COUNT
    assert not any("of the batch" in outcome.error for outcome in outcomes)


async def test_of_a_run_that_may_have_been_stored_each_is_unknown(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    tmp_path: Path,
) -> None:
    for n in range(COUNT):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")

    def answer(_: str, request: Any) -> None:
        raise MqError(Code.SYSTEM_ERROR, "who knows", retryable=False)

    cluster.answers["Send"] = answer
    path = tmp_path / "journal"
    outcomes = await redriven(admin, producer, Target.RETRY, path)
    assert {(o.status, o.error, o.outcome_unknown) for o in outcomes} == {
        (Status.FAILED, "who knows", True)
    }
    assert claims(path, Target.RETRY) == {Claim.SENT: 0, Claim.UNKNOWN: COUNT}
    del cluster.answers["Send"]
    outcomes = await redriven(admin, producer, Target.RETRY, path)
    assert {(o.status, o.perhaps_twice) for o in outcomes} == {(Status.SENT, True)}


async def test_a_message_group_keeps_its_order_beside_a_run(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer, tmp_path: Path
) -> None:
    for n in range(COUNT):
        group = {names.SHARDING_KEY: "g"} if n % 3 == 0 else {}
        add_dead_letter(brokers[0], b"{}", UNIQ_KEY=f"ID{n}", **group)
    outcomes = await redriven(admin, producer, Target.ORIGIN, tmp_path / "journal")
    assert {outcome.status for outcome in outcomes} == {Status.SENT}
    queues = [
        [record.decode(encoded).unique_message_id for encoded in queue]
        for broker in brokers
        for (topic, _), queue in broker.queues.items()
        if topic == "orders"
    ]
    grouped = [f"ID{n}" for n in range(0, COUNT, 3)]
    found = [[each for each in queue if each in set(grouped)] for queue in queues]
    assert [queue for queue in found if queue] == [grouped]


async def test_cancelled_it_waits_for_the_answers_of_a_run(
    *,
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    tmp_path: Path,
) -> None:
    for n in range(COUNT):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    gate, path = Gate(cluster), tmp_path / "journal"
    task = asyncio.create_task(redriven(admin, producer, Target.ORIGIN, path))
    await gate.come(1)
    assert gate.sizes == [COUNT]
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    gate.open()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert claims(path, Target.ORIGIN) == {Claim.SENT: COUNT, Claim.UNKNOWN: 0}
