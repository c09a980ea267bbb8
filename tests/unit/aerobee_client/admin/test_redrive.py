"""Redrive over a cluster in memory: what is sent, where to, at which pace."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_client import AsyncAdminClient, AsyncProducer, MqError
from aerobee_client.admin.dead_letters import DeadLetters, Target
from aerobee_client.admin.descriptions import ClientDescription
from aerobee_client.admin.redrive import Outcome, Pace, reads_retries, redrive
from aerobee_wire import properties as names
from aerobee_wire.status import Code
from support.client.dead_letters import GROUP, PROPERTIES, RETRY, add_dead_letter, read_all
from support.client.memory.cluster import MemoryBroker, MemoryCluster


async def run(
    admin: AsyncAdminClient, producer: AsyncProducer | None, target: Target = Target.RETRY
) -> list[Outcome]:
    dead_letters = DeadLetters(admin, GROUP).read()
    return [outcome async for outcome in redrive(dead_letters, producer, GROUP, target)]


@pytest.mark.parametrize(
    ("connected", "expected"),
    [
        ([], True),
        ([{"orders": "*"}], False),
        ([{"orders": "*"}, {"orders": "*", RETRY: "*"}], True),
        ([{"orders": "*", "%RETRY%other": "*"}], False),
    ],
)
def test_consumers_of_the_official_sdks_read_no_retry_topic(
    connected: list[dict[str, str]], expected: bool
) -> None:
    clients = [
        ClientDescription(
            client_id="c",
            address="",
            language="",
            version="",
            consumer_groups=(GROUP,),
            subscriptions=subscriptions,
        )
        for subscriptions in connected
    ]
    assert reads_retries(clients, GROUP) is expected


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
    cluster: MemoryCluster, brokers: list[MemoryBroker], admin: AsyncAdminClient
) -> None:
    add_dead_letter(brokers[0])
    (outcome,) = await run(admin, None)
    assert (outcome.status, outcome.topic) == ("would send", RETRY)
    assert not cluster.requests("Send")


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
