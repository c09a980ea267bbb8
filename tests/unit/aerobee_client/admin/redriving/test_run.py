"""Redrive over a cluster in memory: what is sent, where to, at which pace."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from aerobee_client import AsyncAdminClient, AsyncProducer, MqError
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_client.admin.redriving.message_ids import MessageIds
from aerobee_client.admin.redriving.outcome import Outcome, Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.run import (
    MAX_FAILED_IN_A_ROW,
    MAX_WINDOW,
    WINDOWS,
    Pace,
    Settings,
)
from aerobee_client.options.producer import ProducerOptions
from aerobee_wire import properties as names
from aerobee_wire.status import Code
from support.client.dead_letters import GROUP, PROPERTIES, RETRY, add_dead_letter, read_all
from support.client.memory import MemoryBroker, MemoryCluster
from support.client.redriving import NOW_MS, all_of, redrive_of
from support.codes import raises_code


async def run(
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    target: Target = Target.RETRY,
    **settings: Any,
) -> list[Outcome]:
    ids = MessageIds()
    try:
        return await all_of(redrive_of(producer, ids, target, **settings), admin)
    finally:
        ids.close()


async def test_a_redriven_message_is_what_its_producer_sent(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
) -> None:
    add_dead_letter(brokers[0], b"the body")
    (outcome,) = await run(admin, producer)
    assert (outcome.status, outcome.topic, outcome.error) == ("sent", RETRY, "")
    (again,) = [*brokers[0].messages(RETRY), *brokers[1].messages(RETRY)]
    assert (again.body, again.reconsume_times) == (b"the body", 0)
    (request,) = cluster.requests("Send")
    assert request.messages[0].flag == 5
    assert again.properties == {
        names.UNIQUE_KEY: PROPERTIES[names.UNIQUE_KEY],
        names.TAGS: "paid",
        names.KEYS: "order-7 customer-3",
        "currency": "EUR",
        names.RETRY_TOPIC: "orders",
        names.ORIGIN_MESSAGE_ID: PROPERTIES[names.ORIGIN_MESSAGE_ID],
        names.REDRIVE_TIMES: "1",
        names.REDRIVE_TIMESTAMP: str(NOW_MS),
    }
    assert not any(broker.messages("orders") for broker in brokers), "other groups see it"
    assert len(await read_all(admin)) == 1, "the dead letter stays in its topic"


async def test_the_origin_topic_is_the_other_target(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    add_dead_letter(brokers[0])
    await run(admin, producer, Target.ORIGIN)
    (again,) = [*brokers[0].messages("orders"), *brokers[1].messages("orders")]
    assert names.RETRY_TOPIC not in again.properties
    assert again.properties[names.UNIQUE_KEY] == PROPERTIES[names.UNIQUE_KEY]
    assert not any(broker.messages(RETRY) for broker in brokers)


async def test_a_dry_run_sends_nothing(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
) -> None:
    add_dead_letter(brokers[0])
    (outcome,) = await run(admin, producer, dry_run=True)
    assert (outcome.status, outcome.topic) == ("would send", RETRY)
    assert not cluster.requests("Send")


@pytest.mark.parametrize("case", list(product(["topic:absent", "origin"], [False, True])))
async def test_a_dry_run_fails_where_the_redrive_would(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    case: tuple[str, bool],
) -> None:
    """The topic to send to does not exist, and no broker creates topics."""
    target, dry_run = case
    cluster.auto_create = False
    add_dead_letter(brokers[0], DLQ_ORIGIN_TOPIC="gone")
    (outcome,) = await run(admin, producer, Target.parse(target), dry_run=dry_run)
    assert outcome.status == "failed"
    assert "does not exist" in outcome.error
    assert not outcome.outcome_unknown
    assert not cluster.requests("Send")


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_dry_run_refuses_a_message_that_the_redrive_would(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer, dry_run: bool
) -> None:
    add_dead_letter(brokers[0], b"x" * (ProducerOptions().max_message_size + 1))
    (outcome,) = await run(admin, producer, dry_run=dry_run)
    assert outcome.status == "failed"
    assert "over the limit" in outcome.error


async def test_a_failed_send_has_its_error_and_the_others_go_on(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
) -> None:
    for body in (b"good", b"bad", b"good too"):
        add_dead_letter(brokers[0], body, UNIQ_KEY=body.decode())

    def refuse(_: str, request: Any) -> None:
        if any(message.body == b"bad" for message in request.messages):
            raise MqError(Code.MESSAGE_ILLEGAL, "not this one")

    cluster.answers["Send"] = refuse
    outcomes = await run(admin, producer)
    results = [(outcome.status, outcome.error) for outcome in outcomes]
    assert results == [("sent", ""), ("failed", "not this one"), ("sent", "")]
    stored = [message.body for broker in brokers for message in broker.messages(RETRY)]
    assert sorted(stored) == [b"good", b"good too"]


async def test_a_message_dead_lettered_twice_is_sent_once(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    """After a redrive, or because a broker died."""
    add_dead_letter(brokers[0], b"x")
    add_dead_letter(brokers[0], b"other", UNIQ_KEY="B")
    add_dead_letter(brokers[1], b"x")
    outcomes = await run(admin, producer)
    assert [outcome.status for outcome in outcomes] == ["sent", "sent", "skipped"]
    assert outcomes[2].error
    bodies = [record.body for broker in brokers for record in broker.messages(RETRY)]
    assert sorted(bodies) == [b"other", b"x"]


async def test_more_than_a_window_is_sent(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    for n in range(150):
        add_dead_letter(brokers[0], b"%d" % n, UNIQ_KEY=f"ID{n}")
    outcomes = await run(admin, producer)
    assert [outcome.status for outcome in outcomes] == ["sent"] * 150
    stored = {message.body for broker in brokers for message in broker.messages(RETRY)}
    assert stored == {b"%d" % n for n in range(150)}


async def test_a_window_is_in_flight_at_once_and_no_more(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
) -> None:
    for n in range(2 * MAX_WINDOW + 7):
        add_dead_letter(brokers[0], b"%d" % n, UNIQ_KEY=f"ID{n}")
    windows = [
        len(window)
        async for window in redrive_of(producer, ids).run(DeadLetters(admin, GROUP).pages())
    ]
    assert windows == [MAX_WINDOW, MAX_WINDOW, 7]
    assert len(cluster.requests("Send")) < 20, "sends travel together"


async def test_large_bodies_make_small_windows(
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("aerobee_client.admin.redriving.run.WINDOW_BYTES", 3_000)
    for n in range(10):
        add_dead_letter(brokers[0], bytes(1_000), UNIQ_KEY=f"ID{n}")
    windows = redrive_of(producer, ids).run(DeadLetters(admin, GROUP).pages())
    assert [len(window) async for window in windows] == [3, 3, 3, 1]


@pytest.mark.parametrize(
    ("rate", "window"), [(None, MAX_WINDOW), (0.5, 1), (400, 33), (1e6, MAX_WINDOW)]
)
def test_with_a_rate_all_windows_are_a_quarter_of_a_second(rate: float | None, window: int) -> None:
    assert Settings(consumer_group=GROUP, target=Target.RETRY, rate=rate).window == window


async def test_a_limit_counts_what_is_sent(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer, ids: MessageIds
) -> None:
    for message_id in ("A", "A", "B", "C", "D"):
        add_dead_letter(brokers[0], UNIQ_KEY=message_id)
    outcomes = await all_of(redrive_of(producer, ids, limit=3), admin)
    assert [outcome.status for outcome in outcomes] == ["sent", "skipped", "sent", "sent"]


@pytest.mark.parametrize("key", [names.SHARDING_KEY, names.LITE_TOPIC])
async def test_a_message_keeps_the_queue_of_its_message_group_or_lite_topic(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer, key: str
) -> None:
    for n in range(60):
        properties: dict[str, Any] = {"UNIQ_KEY": f"ID{n}", key: f"line-{n % 3}"}
        add_dead_letter(brokers[n % 2], **properties)
    outcomes = await run(admin, producer, Target.ORIGIN)
    assert {outcome.status for outcome in outcomes} == {"sent"}
    queues: dict[str, set[tuple[str, int]]] = {}
    for broker in brokers:
        for record in broker.messages("orders"):
            group = record.properties[key]
            queues.setdefault(group, set()).add((broker.name, record.queue_id))
    assert [len(queues[f"line-{n}"]) for n in range(3)] == [1, 1, 1]


async def test_redriven_twice_is_counted_twice(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    add_dead_letter(brokers[0], REDRIVE_TIMES="1", REDRIVE_TIMESTAMP="5")
    await run(admin, producer, Target.ORIGIN)
    (again,) = [*brokers[0].messages("orders"), *brokers[1].messages("orders")]
    assert again.properties[names.REDRIVE_TIMES] == "2"
    assert again.properties[names.REDRIVE_TIMESTAMP] == str(NOW_MS)


async def test_sends_that_all_fail_end_the_redrive(
    cluster: MemoryCluster,
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
    ids: MessageIds,
) -> None:
    for n in range(3 * MAX_FAILED_IN_A_ROW):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    cluster.answers["Send"] = MqError(Code.NO_PERMISSION, "closed", retryable=False)
    redrive = redrive_of(producer, ids)
    with raises_code(Code.SYSTEM_ERROR):
        await all_of(redrive, admin)
    failed = redrive.tally.by_status[Status.FAILED]
    assert redrive.tally.by_status == {Status.FAILED: failed}
    assert MAX_FAILED_IN_A_ROW <= failed <= MAX_FAILED_IN_A_ROW + (WINDOWS - 1) * MAX_WINDOW


async def test_a_dry_run_goes_on_between_sends_that_would_fail(
    brokers: list[MemoryBroker], admin: AsyncAdminClient, producer: AsyncProducer
) -> None:
    """As the redrive does: only failures in a row end it."""
    for n in range(MAX_FAILED_IN_A_ROW + 1):
        add_dead_letter(brokers[0], b"", UNIQ_KEY=f"bad{n}")
        add_dead_letter(brokers[0], UNIQ_KEY=f"good{n}")
    outcomes = await run(admin, producer, dry_run=True)
    assert [outcome.status for outcome in outcomes[:2]] == ["failed", "would send"]
    assert len(outcomes) == 2 * (MAX_FAILED_IN_A_ROW + 1)


async def test_a_redrive_knows_that_its_limit_ended_it(
    brokers: list[MemoryBroker],
    admin: AsyncAdminClient,
    producer: AsyncProducer,
) -> None:
    for n in range(3):
        add_dead_letter(brokers[0], UNIQ_KEY=f"ID{n}")
    for limit, reached in ((0, False), (2, True), (4, False)):
        ids = MessageIds()
        redrive = redrive_of(producer, ids, limit=limit)
        await all_of(redrive, admin)
        ids.close()
        assert redrive.limit_is_reached is reached


def test_pace_keeps_the_rate() -> None:
    pace = Pace(10, 100.0)
    assert pace.next_wait(100.0) == 0
    assert pace.next_wait(100.0) == pytest.approx(0.1)
    assert pace.next_wait(100.15) == pytest.approx(0.05)


def test_pace_does_not_catch_up_after_a_pause() -> None:
    pace = Pace(10, 100.0)
    assert pace.next_wait(105.0) == 0
    assert pace.next_wait(105.0) == pytest.approx(0.1)


def test_pace_without_a_rate_never_waits() -> None:
    pace = Pace(None, 100.0)
    assert [pace.next_wait(100.0) for _ in range(3)] == [0, 0, 0]
