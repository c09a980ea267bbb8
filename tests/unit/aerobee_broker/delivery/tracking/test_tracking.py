"""Where a message is in each group: each state, from its evidence, also after a crash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.pull.reading import PullRequest
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.delivery.tracking.state import GroupState, Place, State
from aerobee_broker.filter.filter import compile_filter
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_broker.registry.clients import Client
from aerobee_broker.registry.consumers import Consumer, MessageModel, Subscription
from aerobee_wire.status import Code
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import GROUP, TOPIC, PopConsumer
from support.codes import raises_code


@pytest.fixture
async def harness(begin: Begin) -> BrokerHarness:
    harness = await begin()
    await harness.broker.topics.put(TopicConfig(TOPIC, 1, 1))
    await harness.group(GROUP, retry_max_times=1)
    return harness


@pytest.fixture
def consumer(harness: BrokerHarness) -> PopConsumer:
    return PopConsumer(harness)


async def put(harness: BrokerHarness, *ids: str, **properties: str) -> None:
    for message_id in ids:
        await harness.send(
            TOPIC, message_id.encode(), properties={"UNIQ_KEY": message_id, **properties}
        )


async def state_of(harness: BrokerHarness, message_id: str, group: str = GROUP) -> GroupState:
    [tracked] = await harness.broker.consuming.tracking.by_id(message_id, [group])
    [state] = tracked.groups
    return state


# ---- groups that pop ----


async def test_a_message_that_no_pop_reached_is_not_yet_or_ready(consumer: PopConsumer) -> None:
    await put(consumer.harness, "a", "b", "c")
    await consumer.pop(1)
    ready, later = [await state_of(consumer.harness, each) for each in "bc"]
    assert (ready.state, ready.ahead) == (State.READY, 0)
    assert (later.state, later.ahead) == (State.NOT_YET, 1)


async def test_a_lease_names_its_client_and_its_end(consumer: PopConsumer) -> None:
    await put(consumer.harness, "a")
    now_ms = consumer.harness.clock.now_ms()
    await consumer.pop(client_id="client-1", invisible_ms=20_000)
    state = await state_of(consumer.harness, "a")
    assert (state.state, state.client_id, state.attempt) == (State.ON_LEASE, "client-1", 1)
    assert (state.at_ms, state.until_ms) == (now_ms, now_ms + 20_000)


async def test_a_message_is_consumed_by_the_client_of_its_last_lease(
    consumer: PopConsumer,
) -> None:
    await put(consumer.harness, "a", "b")
    await consumer.pop(client_id="client-1", invisible_ms=1_000)
    await asyncio.sleep(2)
    state = await state_of(consumer.harness, "a")
    assert (state.state, state.client_id, state.attempt) == (State.RETRYING, "client-1", 2)
    again = await consumer.pop(client_id="client-2")
    now_ms = consumer.harness.clock.now_ms()
    await consumer.ack(*again)
    state = await state_of(consumer.harness, "a")
    assert (state.state, state.client_id, state.attempt) == (State.CONSUMED, "client-2", 2)
    assert state.at_ms == now_ms


async def test_what_was_consumed_is_known_after_a_restart(
    consumer: PopConsumer, begin: Begin
) -> None:
    await put(consumer.harness, "a")
    await consumer.ack(*await consumer.pop(client_id="client-1"))
    harness = await begin()
    state = await state_of(harness, "a")
    assert (state.state, state.client_id) == (State.CONSUMED, "client-1")


async def test_a_message_that_the_filter_excludes_is_filtered(consumer: PopConsumer) -> None:
    await put(consumer.harness, "a", TAGS="x")
    await put(consumer.harness, "b", TAGS="y")
    await put(consumer.harness, "c", TAGS="x")
    await consumer.pop(1, wanted="y")
    assert (await state_of(consumer.harness, "a")).state is State.FILTERED
    await consumer.pop(wanted="y")  # passes "c" without a record
    assert (await state_of(consumer.harness, "c")).state is State.FILTERED


async def test_a_reset_skips_a_message_and_names_the_operator(consumer: PopConsumer) -> None:
    await put(consumer.harness, "a", "b", "c")
    await consumer.pop(1, client_id="client-1")
    now_ms = consumer.harness.clock.now_ms()
    await consumer.harness.broker.consuming.offset_queries.reset(
        GROUP, TOPIC, [], queue_offset=2, requested_by="ops@host"
    )
    for message_id in "ab":
        state = await state_of(consumer.harness, message_id)
        assert (state.state, state.client_id) == (State.SKIPPED, "ops@host")
        assert state.at_ms == now_ms
    assert (await state_of(consumer.harness, "c")).state is State.READY


async def test_a_group_that_begins_at_the_end_skips_earlier_messages(
    consumer: PopConsumer,
) -> None:
    await put(consumer.harness, "a")
    await consumer.pop(start="latest")
    state = await state_of(consumer.harness, "a")
    assert (state.state, state.reason) == (State.SKIPPED, "the group began after it")


async def test_a_dead_letter_says_why_and_where(consumer: PopConsumer) -> None:
    await put(consumer.harness, "a")
    [got] = await consumer.pop(client_id="client-1")
    await consumer.dead_letter(got, "bad address")
    state = await state_of(consumer.harness, "a")
    assert (state.state, state.failure.reason) == (State.DEAD_LETTERED, "bad address")
    assert state.place == Place(f"%DLQ%{GROUP}", 0, 0)


async def test_used_up_attempts_name_the_client_as_the_reason(consumer: PopConsumer) -> None:
    await put(consumer.harness, "a")
    for client_id in ("client-1", "client-2"):
        await consumer.pop(client_id=client_id, invisible_ms=1_000)
        await asyncio.sleep(2)
    state = await state_of(consumer.harness, "a")
    assert state.state is State.DEAD_LETTERED and state.attempt == 2
    assert state.failure.reason == "InvisibleDurationExpired"
    assert "client-2" in state.failure.description


async def test_a_dead_letter_that_is_deleted_is_still_no_consumption(
    consumer: PopConsumer,
) -> None:
    await put(consumer.harness, "a")
    [got] = await consumer.pop(client_id="client-1")
    await consumer.dead_letter(got)
    await consumer.harness.broker.administration.delete_topic(f"%DLQ%{GROUP}")
    state = await state_of(consumer.harness, "a")
    assert (state.state, state.place, state.client_id) == (State.DEAD_LETTERED, None, "client-1")


async def test_members_that_pulled_before_are_no_skip(consumer: PopConsumer) -> None:
    """A group commits an offset, and pops from there on."""
    await put(consumer.harness, "a", "b")
    member(consumer.harness, "client-1")
    await pull(consumer.harness, 0)
    await pull(consumer.harness, 1, commit_offset=1)
    await consumer.pop(client_id="client-2")
    state = await state_of(consumer.harness, "a")
    assert (state.state, state.client_id) == (State.CONSUMED, "client-1")


# ---- groups that commit offsets ----


def member(harness: BrokerHarness, client_id: str, expression: str = "*", **fields: Any) -> None:
    subscription = Subscription(TOPIC, compile_filter("TAG", expression))
    consumer = Consumer(subscriptions={TOPIC: subscription}, **fields)
    harness.broker.clients.heartbeat(Client(client_id, consumers={GROUP: consumer}))


async def pull(harness: BrokerHarness, queue_offset: int, **fields: Any) -> None:
    request = {"consumer_group": GROUP, "topic": TOPIC, "queue_id": 0, "client_id": "client-1"}
    await harness.broker.consuming.pull.pull(
        PullRequest(**{**request, "queue_offset": queue_offset, **fields})
    )


def commit(harness: BrokerHarness, queue_offset: int, client_id: str = "client-1") -> None:
    harness.broker.consuming.offset_queries.update(
        GROUP, [QueueOffset(TOPIC, 0, queue_offset)], client_id=client_id
    )


async def test_a_commit_consumes_and_names_the_client(harness: BrokerHarness) -> None:
    await put(harness, "a", "b", "c")
    member(harness, "client-1")
    await pull(harness, 0)
    assert (await state_of(harness, "a")).state is State.NOT_YET
    commit(harness, 1)
    state = await state_of(harness, "a")
    assert (state.state, state.client_id) == (State.CONSUMED, "client-1")
    assert state.since_ms == state.at_ms == harness.clock.now_ms()
    ready, later = [await state_of(harness, each) for each in "bc"]
    assert (ready.state, ready.client_id) == (State.READY, "client-1")
    assert (later.state, later.ahead) == (State.NOT_YET, 1)


async def test_a_commit_is_known_after_a_restart(harness: BrokerHarness, begin: Begin) -> None:
    await put(harness, "a")
    member(harness, "client-1")
    await pull(harness, 0)
    commit(harness, 1)
    state = await state_of(await begin(), "a")
    assert (state.state, state.client_id) == (State.CONSUMED, "client-1")


async def test_a_subscription_that_excludes_the_message_filtered_it(
    harness: BrokerHarness,
) -> None:
    await put(harness, "a", TAGS="x")
    await put(harness, "b", TAGS="y")
    member(harness, "client-1", "y")
    await pull(harness, 0)
    commit(harness, 2)
    assert (await state_of(harness, "a")).state is State.FILTERED
    assert (await state_of(harness, "b")).state is State.CONSUMED


async def test_a_group_that_pulls_from_the_end_began_after_the_message(
    harness: BrokerHarness,
) -> None:
    await put(harness, "a", "b")
    member(harness, "client-1")
    await pull(harness, 1)
    commit(harness, 2)
    assert (await state_of(harness, "a")).state is State.SKIPPED
    assert (await state_of(harness, "b")).state is State.CONSUMED


async def test_a_reset_of_a_group_that_commits_names_the_operator(harness: BrokerHarness) -> None:
    await put(harness, "a", "b")
    commit(harness, 0)
    await harness.broker.consuming.offset_queries.reset(
        GROUP, TOPIC, [], timestamp_ms=-1, requested_by="ops@host"
    )
    state = await state_of(harness, "a")
    assert (state.state, state.client_id) == (State.SKIPPED, "ops@host")


async def test_a_passage_without_evidence_is_unknown(harness: BrokerHarness) -> None:
    """The history does not reach back; or the commit came from no member; or it is the first."""
    await put(harness, "a")
    harness.tables.offsets.commit(GROUP, TOPIC, 0, 1)  # as of a broker without a history
    state = await state_of(harness, "a")
    assert state.state is State.UNKNOWN and "history" in state.reason
    await harness.group("tool")
    commit_of_tool = [QueueOffset(TOPIC, 0, 0)], [QueueOffset(TOPIC, 0, 1)]
    for offsets in commit_of_tool:
        harness.broker.consuming.offset_queries.update("tool", offsets)
    state = await state_of(harness, "a", "tool")
    assert state.state is State.UNKNOWN and "subscription" in state.reason
    await harness.group("first")
    harness.broker.consuming.offset_queries.update("first", [QueueOffset(TOPIC, 0, 1)])
    assert (await state_of(harness, "a", "first")).state is State.UNKNOWN


async def test_a_retry_waits_is_ready_and_is_consumed(harness: BrokerHarness) -> None:
    await put(harness, "a")
    [record] = await harness.read(TOPIC)
    member(harness, "client-1")
    await pull(harness, 0)
    entry = Entry(record.physical_offset, failure=Failure("ValueError", "no such order"))
    await harness.broker.sending.send_back.send_back(GROUP, [entry])
    commit(harness, 1)
    state = await state_of(harness, "a")
    assert (state.state, state.attempt) == (State.RETRYING, 2)
    assert state.until_ms == harness.clock.now_ms() + 10_000
    assert state.failure == Failure("ValueError", "no such order")
    await asyncio.sleep(11)
    state = await state_of(harness, "a")
    assert state.state is State.RETRYING and state.place == Place(f"%RETRY%{GROUP}", 0, 0)
    retry = f"%RETRY%{GROUP}"
    subscriptions = {
        topic: Subscription(topic, compile_filter("TAG", "*")) for topic in (TOPIC, retry)
    }
    client = Client("client-2", consumers={GROUP: Consumer(subscriptions=subscriptions)})
    harness.broker.clients.heartbeat(client)
    await pull(harness, 0, topic=retry, client_id="client-2")
    await pull(harness, 1, topic=retry, client_id="client-2", commit_offset=1)
    state = await state_of(harness, "a")
    assert (state.state, state.client_id, state.attempt) == (State.CONSUMED, "client-2", 2)


async def test_a_message_that_was_sent_back_for_the_last_time_is_dead(
    harness: BrokerHarness,
) -> None:
    await put(harness, "a")
    [record] = await harness.read(TOPIC)
    dead = Entry(record.physical_offset, delay_level=-1, failure=Failure("ValueError", "no"))
    await harness.broker.sending.send_back.send_back(GROUP, [dead])
    state = await state_of(harness, "a")
    assert (state.state, state.failure) == (State.DEAD_LETTERED, Failure("ValueError", "no"))
    assert (await state_of(harness, "a", "other")).state is State.NOT_YET


async def test_a_group_that_broadcasts_is_unknown(harness: BrokerHarness) -> None:
    await put(harness, "a")
    member(harness, "client-1", message_model=MessageModel.BROADCASTING)
    state = await state_of(harness, "a")
    assert state.state is State.UNKNOWN and "broadcasts" in state.reason


# ---- messages ----


async def test_all_groups_of_the_topic_are_included(harness: BrokerHarness) -> None:
    await put(harness, "a")
    member(harness, "client-1")
    await harness.group("popping")
    await PopConsumer(harness, "popping").pop()
    [tracked] = await harness.broker.consuming.tracking.by_id("a")
    assert [state.consumer_group for state in tracked.groups] == [GROUP, "popping"]
    assert await harness.broker.consuming.tracking.by_id("unknown") == []


async def test_a_message_that_waits_for_its_time_says_until_when(harness: BrokerHarness) -> None:
    await put(harness, "a", TIMER_DELAY_SEC="60")
    await put(harness, "b", DELAY="3")
    for message_id, delay_ms in (("a", 60_000), ("b", 10_000)):
        [tracked] = await harness.broker.consuming.tracking.by_id(message_id)
        assert tracked.due_ms - harness.clock.now_ms() == delay_ms
        assert tracked.groups == []
    await asyncio.sleep(61)
    [tracked] = await harness.broker.consuming.tracking.by_id("a")
    assert (tracked.due_ms, tracked.place) == (0, Place(TOPIC, 0, 1))


async def test_a_message_is_tracked_by_its_place(consumer: PopConsumer) -> None:
    await put(consumer.harness, "a")
    tracking = consumer.harness.broker.consuming.tracking
    await consumer.ack(*await consumer.pop(client_id="client-1"))
    tracked = await tracking.by_place(Place(TOPIC, 0, 0))
    assert tracked.record is not None and tracked.record.body == b"a"
    assert [state.state for state in tracked.groups] == [State.CONSUMED]
    with raises_code(Code.QUERY_NOT_FOUND):
        await tracking.by_place(Place(TOPIC, 0, 1))
    with raises_code(Code.TOPIC_NOT_EXIST):
        await tracking.by_place(Place("nowhere", 0, 0))


async def test_a_message_that_retention_deleted_first_is_expired(harness: BrokerHarness) -> None:
    await put(harness, "a")
    commit(harness, 0)
    tracking = harness.broker.consuming.tracking
    tracked = await tracking._tracked(Place(TOPIC, 0, 0), None, [], [])
    assert [state.state for state in tracked.groups] == [State.EXPIRED]
    member(harness, "client-1")
    await pull(harness, 0)
    commit(harness, 1)
    tracked = await tracking._tracked(Place(TOPIC, 0, 0), None, [], [])
    assert [state.state for state in tracked.groups] == [State.CONSUMED]
