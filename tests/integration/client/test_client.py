"""The client against a real name server and a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from aerobee_client import (
    AdminClient,
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeResult,
    DeadLetter,
    Message,
    MqError,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from aerobee_client.consuming import membership
from aerobee_wire.status import Code
from aerobee_wire.topics import dead_letter_topic, retry_topic
from support.clock.polling import until, until_sync
from support.codes import raises_code

SOON = timedelta(milliseconds=100)


@pytest.fixture(autouse=True)
def commits_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests wait for committed offsets; the default is 5 s."""
    monkeypatch.setattr(membership, "COMMIT_INTERVAL_S", 0.1)


def numbered(topic: str, count: int, **arguments: str) -> list[Message]:
    return [Message(topic, b"%d" % n, **arguments) for n in range(count)]  # type: ignore[arg-type]


def test_what_is_sent_is_consumed(namesrv: str) -> None:
    seen: list[ReceivedMessage] = []
    with Producer("p", namesrv=namesrv) as producer:
        results = producer.send_batch(numbered("all", 2_000, tag="UA", keys="k1"))
    with PushConsumer("all-g", seen.append, namesrv=namesrv) as consumer:
        consumer.subscribe("all")
        until_sync(lambda: len(seen) >= 2_000)
    assert Counter(message.body for message in seen) == Counter(b"%d" % n for n in range(2_000))
    assert {message.message_id for message in seen} == {result.message_id for result in results}
    assert {(message.tag, message.keys, message.topic) for message in seen} == {
        ("UA", ("k1",), "all")
    }
    places = {result.message_id: (result.queue, result.queue_offset) for result in results}
    for message in seen:
        queue, queue_offset = places[message.message_id]
        assert (message.queue_id, message.queue_offset) == (queue.queue_id, queue_offset)
        assert message.broker_name == queue.broker_name


async def test_every_way_of_sending_stores_the_message(namesrv: str) -> None:
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)

    async with AsyncPushConsumer("ways-g", listen, namesrv=namesrv) as consumer:
        consumer.subscribe("ways")
        async with AsyncProducer("p", namesrv=namesrv) as producer:
            first = await producer.send(Message("ways", b"send"))
            await producer.send(Message("ways", b"there"), queue=first.queue)
            await producer.send_async(Message("ways", b"async"))
            await producer.send_oneway(Message("ways", b"oneway"))
            await producer.send_batch([Message("ways", b"batch"), Message("ways", b"of two")])
        await until(lambda: len(seen) == 6)
    assert sorted(seen) == [b"async", b"batch", b"of two", b"oneway", b"send", b"there"]


def test_a_thread_sends_without_waiting(namesrv: str) -> None:
    """Each outcome comes to its future and its callback; the close waits for all."""
    called: list[BaseException | None] = []
    with Producer("p", namesrv=namesrv) as producer:
        futures = [
            producer.send_async(message, lambda _, error: called.append(error))
            for message in numbered("threaded", 5_000)
        ]
        wrong = producer.send_async(Message("SCHEDULE_TOPIC_XXXX", b"x"))
    places = {(future.result(0).queue, future.result(0).queue_offset) for future in futures}
    assert len(places) == 5_000
    assert called == [None] * 5_000
    with raises_code(Code.NO_PERMISSION):
        wrong.result(0)
    with AdminClient(namesrv) as admin:
        stored = sum(q.max_offset - q.min_offset for q in admin.topic_status("threaded"))
    assert stored == 5_000


async def test_only_the_tags_of_the_expression_arrive(namesrv: str) -> None:
    seen: list[str] = []
    async with AsyncProducer("p", namesrv=namesrv) as producer:
        for tag in ("UA", "Aa", "BB", ""):  # "Aa" and "BB" have the same hash code in Java
            await producer.send_batch(numbered("tags", 20, tag=tag))
    consumer = AsyncPushConsumer("tags-g", lambda m: seen.append(m.tag), namesrv=namesrv)
    consumer.subscribe("tags", "UA || Aa")
    async with consumer, AsyncAdminClient(namesrv) as admin:
        await until(lambda: _lag(admin, "tags-g", "tags", 0))  # also past other tags
        progress = await admin.consume_progress("tags-g", "tags")
        assert len({queue.client_id for queue in progress}) == 1 and progress[0].client_id
    assert Counter(seen) == {"UA": 20, "Aa": 20}


async def _lag(admin: AsyncAdminClient, group: str, topic: str, lag: int) -> bool:
    return sum(queue.lag for queue in await admin.consume_progress(group, topic)) == lag


async def test_a_message_is_dead_lettered_after_its_attempts(namesrv: str) -> None:
    attempts: Counter[bytes] = Counter()
    origin: set[str] = set()

    def listen(message: ReceivedMessage) -> None:
        attempts[message.body] += 1
        origin.add(message.topic)
        assert message.reconsume_times == attempts[message.body] - 1
        if int(message.body) % 10 == 0:
            raise ValueError(f"flight {message.body.decode()} never arrived")

    async with AsyncAdminClient(namesrv) as admin, AsyncProducer("p", namesrv=namesrv) as producer:
        await admin.create_topic("fail", queues=2)
        await admin.create_group("fail-g", max_attempts=3, retry_delays=[SOON])
        results = await producer.send_batch(numbered("fail", 100, tag="UA", keys="k"))
        consumer = AsyncPushConsumer("fail-g", listen, namesrv=namesrv)
        consumer.subscribe("fail")
        async with consumer:
            dead = await until(lambda: _dead_letters(admin, "fail-g", 10), retry_on=(MqError,))
            await until(lambda: _lag(admin, "fail-g", "", 0))
    assert attempts == {b"%d" % n: 3 if n % 10 == 0 else 1 for n in range(100)}
    assert origin == {"fail"}
    sent = {result.message_id: result for result in results}
    for message in dead:
        assert message.failure_reason == "ValueError"
        assert message.failure_description == f"flight {message.body.decode()} never arrived"
        assert (message.origin_topic, message.tag, message.keys) == ("fail", "UA", ("k",))
        assert message.origin_message_id == sent[message.message_id].offset_message_id


async def _dead_letters(admin: AsyncAdminClient, group: str, count: int) -> list[ReceivedMessage]:
    """The dead letters of the group once there are `count`; else []."""
    topic = dead_letter_topic(group)
    messages: list[ReceivedMessage] = []
    for queue in await admin.topic_status(topic):
        browsed = await admin.browse(topic, queue.broker_name, queue.queue_id, 0)
        messages += browsed.messages()
    assert len(messages) <= count
    return messages if len(messages) == count else []


async def test_listener_may_dead_letter_at_once(namesrv: str) -> None:
    attempts: list[bytes] = []

    async def listen(message: ReceivedMessage) -> ConsumeResult:
        attempts.append(message.body)
        if message.body == b"0":
            raise DeadLetter("hopeless")
        return ConsumeResult.DEAD_LETTER

    async with AsyncAdminClient(namesrv) as admin, AsyncProducer("p", namesrv=namesrv) as producer:
        await producer.send_batch(numbered("hopeless", 2))
        consumer = AsyncPushConsumer("hopeless-g", listen, namesrv=namesrv)
        consumer.subscribe("hopeless")
        async with consumer:
            dead = await until(lambda: _dead_letters(admin, "hopeless-g", 2), retry_on=(MqError,))
    assert sorted(attempts) == [b"0", b"1"]
    assert {message.failure_description for message in dead} == {
        "hopeless",
        "the listener returned DEAD_LETTER",
    }


@pytest.mark.parametrize("by_hand", [False, True])
async def test_without_a_record_a_message_is_dead_lettered(namesrv: str, by_hand: bool) -> None:
    name = f"gone-{by_hand}".lower()
    born: list[int] = []

    async def listen(message: ReceivedMessage) -> ConsumeResult:
        born.append(message.born_timestamp_ms)
        message._record.physical_offset = 1 << 40  # as if it had expired
        if by_hand:
            return ConsumeResult.DEAD_LETTER
        raise ValueError("not this one")

    async with AsyncAdminClient(namesrv) as admin, AsyncProducer("p", namesrv=namesrv) as producer:
        await admin.create_group(f"{name}-g", max_attempts=17 if by_hand else 1)
        sent = await producer.send(Message(name, b"body", tag="UA", keys="k", flag=7))
        consumer = AsyncPushConsumer(f"{name}-g", listen, namesrv=namesrv)
        consumer.subscribe(name)
        async with consumer:
            (message,) = await until(
                lambda: _dead_letters(admin, f"{name}-g", 1), retry_on=(MqError,)
            )
            await until(lambda: _lag(admin, f"{name}-g", "", 0))
    assert (message.body, message.tag, message.keys, message.flag) == (b"body", "UA", ("k",), 7)
    assert (message.message_id, message.origin_topic) == (sent.message_id, name)
    assert message.failure_reason == ("DEAD_LETTER" if by_hand else "ValueError")
    assert born == [message.born_timestamp_ms]


async def test_a_topic_created_again_is_consumed_from_its_start(namesrv: str) -> None:
    """The listener is busy with the old topic meanwhile."""
    hold = asyncio.Event()
    seen: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message.body)
        await hold.wait()

    async with AsyncAdminClient(namesrv) as admin, AsyncProducer("p", namesrv=namesrv) as producer:
        await admin.create_topic("remade", queues=1)
        await producer.send_batch(numbered("remade", 50))
        consumer = AsyncPushConsumer(
            "remade-g", listen, namesrv=namesrv, pull_threshold_for_queue=5, pull_batch_size=10
        )
        consumer.subscribe("remade")
        async with consumer:
            await until(lambda: seen)
            await admin.delete_topic("remade")
            hold.set()
            await until(lambda: not _owned(consumer, "remade"))
            seen.clear()
            await admin.create_topic("remade", queues=1)
            await producer.send_batch(numbered("remade", 5))
            await until(lambda: {b"%d" % n for n in range(5)} <= set(seen))


async def test_members_share_the_queues_and_lose_nothing(namesrv: str) -> None:
    seen: list[bytes] = []
    async with AsyncAdminClient(namesrv) as admin, AsyncProducer("p", namesrv=namesrv) as producer:
        await admin.create_topic("shared", queues=4)
        members = [
            AsyncPushConsumer("shared-g", lambda m: seen.append(m.body), namesrv=namesrv)
            for _ in range(2)
        ]
        for member in members:
            member.subscribe("shared")
            await member.start()
        await until(lambda: [_owned(member, "shared") for member in members] == [2, 2])
        assert not members[0].queues & members[1].queues
        assert len(await admin.list_clients("shared-g")) == 2
        await producer.send_batch(numbered("shared", 500))
        await members[0].close()
        await producer.send_batch(numbered("shared", 500))
        await until(lambda: set(seen) >= {b"%d" % n for n in range(500)} and len(seen) >= 1_000)
        await until(lambda: _owned(members[1], "shared") == 4)
        assert len(await admin.list_clients("shared-g")) == 1
        await members[1].close()


def _owned(consumer: AsyncPushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.queues)


async def test_a_group_resumes_and_can_be_reset(namesrv: str) -> None:
    seen: list[bytes] = []

    async def consume_until(count: int) -> None:
        consumer = AsyncPushConsumer("again-g", lambda m: seen.append(m.body), namesrv=namesrv)
        consumer.subscribe("again")
        async with consumer:
            await until(lambda: len(seen) >= count)

    async with AsyncAdminClient(namesrv) as admin, AsyncProducer("p", namesrv=namesrv) as producer:
        await producer.send_batch(numbered("again", 50))
        await consume_until(50)
        await producer.send(Message("again", b"new"))
        await consume_until(51)
        assert seen[50:] == [b"new"]
        await admin.reset_offsets("again-g", "again", queue_offset=0)
        await consume_until(102)
        assert Counter(seen[51:]) == Counter([b"%d" % n for n in range(50)] + [b"new"])


async def test_a_running_member_follows_a_reset(namesrv: str) -> None:
    seen: list[bytes] = []
    async with AsyncAdminClient(namesrv) as admin, AsyncProducer("p", namesrv=namesrv) as producer:
        await admin.create_topic("reset", queues=1)
        await producer.send_batch(numbered("reset", 5))
        consumer = AsyncPushConsumer("reset-g", lambda m: seen.append(m.body), namesrv=namesrv)
        consumer.subscribe("reset")
        async with consumer:
            await until(lambda: len(seen) == 5)
            await admin.reset_offsets("reset-g", "reset", queue_offset=2)
            await producer.send(Message("reset", b"wakes the pull"))
            await until(lambda: len(seen) >= 9)
    # In no order: listeners run on several threads.
    assert sorted(seen[5:]) == [b"2", b"3", b"4", b"wakes the pull"]


async def test_a_delayed_message_is_never_early(namesrv: str) -> None:
    arrived: list[ReceivedMessage] = []
    consumer = AsyncPushConsumer("late-g", arrived.append, namesrv=namesrv)
    consumer.subscribe("late")
    async with consumer, AsyncProducer("p", namesrv=namesrv) as producer:
        await producer.send(Message("late", b"late", tag="T", keys="k", delay_level=1))
        await until(lambda: arrived)
    (message,) = arrived
    assert message.store_timestamp_ms - message.born_timestamp_ms >= 1_000
    assert (message.topic, message.tag, message.keys) == ("late", "T", ("k",))


async def test_a_message_is_delivered_at_its_time_unless_recalled(namesrv: str) -> None:
    arrived: list[ReceivedMessage] = []
    consumer = AsyncPushConsumer("timed-g", arrived.append, namesrv=namesrv)
    consumer.subscribe("timed")
    due = datetime.now(UTC) + timedelta(seconds=2)
    async with consumer, AsyncProducer("p", namesrv=namesrv) as producer:
        sent, _, now = await producer.send_batch(
            [
                Message("timed", b"recalled", deliver_at=due),
                Message("timed", b"timed", deliver_at=due),
                Message("timed", b"now"),
            ]
        )
        assert now.recall_handle == ""
        assert await producer.recall("timed", sent.recall_handle) == sent.message_id
        with raises_code(Code.ILLEGAL_OPERATION):
            await producer.recall("timed", sent.recall_handle)
        await until(lambda: len(arrived) == 2)
    assert [message.body for message in arrived] == [b"now", b"timed"]
    assert arrived[1].store_timestamp_ms >= due.timestamp() * 1000


async def test_retry_topic_is_consumed_before_any_failure(namesrv: str) -> None:
    consumer = AsyncPushConsumer("eager-g", print, namesrv=namesrv)
    consumer.subscribe("eager")
    async with consumer, AsyncProducer("p", namesrv=namesrv) as producer:
        await producer.send(Message("eager", b"x"))
        await until(lambda: _owned(consumer, retry_topic("eager-g")) == 1)
