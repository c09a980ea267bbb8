"""SQL92 subscriptions against real processes: parsed at start and at subscribe, changed at run
time; retries pass whatever the condition is."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    ReconsumeLater,
    Sql,
)
from aerobee_wire.status import Code
from support.clock.polling import until, until_sync
from support.codes import raises_code
from support.processes.service import namesrv_and_broker


def sized(topic: str, *sizes: int) -> list[Message]:
    return [Message(topic, b"%d" % size, properties={"size": str(size)}) for size in sizes]


async def test_a_condition_selects_and_may_change(namesrv: str) -> None:
    seen: list[int] = []
    consumer = AsyncPushConsumer("sql-g", lambda m: seen.append(int(m.body)), namesrv=namesrv)
    consumer.subscribe("sql", Sql("size BETWEEN 3 AND 5"))
    async with AsyncProducer(namesrv=namesrv) as producer, AsyncAdminClient(namesrv) as admin:
        await producer.send_batch(sized("sql", *range(10)))
        async with consumer:
            await until(lambda: sorted(seen) == [3, 4, 5])
            await until(lambda: _is_done(admin))
            await consumer.subscribe("sql", Sql("size > 7 OR size = 0"))
            await producer.send_batch(sized("sql", *range(10)))
            await until(lambda: sorted(seen) == [0, 3, 4, 5, 8, 9])
            await until(lambda: _is_done(admin))
    assert sorted(seen) == [0, 3, 4, 5, 8, 9]


async def _is_done(admin: AsyncAdminClient) -> bool:
    return not sum(queue.lag for queue in await admin.consume_progress("sql-g", "sql"))


async def test_a_retry_passes_a_condition_that_it_no_longer_meets(namesrv: str) -> None:
    seen: list[int] = []

    def listen(message: ReceivedMessage) -> None:
        seen.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise ReconsumeLater(delay_level=1)

    consumer = AsyncPushConsumer("passes-g", listen, namesrv=namesrv)
    consumer.subscribe("passes", Sql("size > 5"))
    async with AsyncProducer(namesrv=namesrv) as producer, consumer:
        await producer.send_batch(sized("passes", 1, 6))
        await until(lambda: seen == [0])
        await consumer.subscribe("passes", Sql("size > 600"))
        await until(lambda: seen == [0, 1])


@pytest.mark.parametrize("wrong", ["size >", "size LIKE 'a'", "", "size > 5 )"])
async def test_what_cannot_be_parsed_is_refused(namesrv: str, wrong: str) -> None:
    consumer = AsyncPushConsumer("wrong-g", print, namesrv=namesrv)
    consumer.subscribe("wrong", Sql(wrong))
    with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
        await consumer.start()
    consumer.subscribe("wrong", Sql("size > 5"))
    async with consumer:
        with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
            await consumer.subscribe("wrong", Sql(wrong))


def test_the_plain_class_refuses_it_in_the_call(namesrv: str) -> None:
    seen: list[str] = []
    with (
        Producer(namesrv=namesrv) as producer,
        PushConsumer("plain-g", lambda m: seen.append(m.tag), namesrv=namesrv) as consumer,
    ):
        with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
            consumer.subscribe("plain", Sql("size >"))
        consumer.subscribe("plain", Sql("size > 5"))
        producer.send_batch(sized("plain", 4, 6))
        until_sync(lambda: len(seen) == 1)


async def test_a_broker_that_does_not_filter_by_sql_says_so(tmp_path: Path) -> None:
    with namesrv_and_broker(tmp_path, "--set=enablePropertyFilter=false") as (namesrv, _):
        async with AsyncProducer(namesrv=namesrv.address) as producer:
            await producer.send(Message("t", b"x"))
        consumer = AsyncPushConsumer("g", print, namesrv=namesrv.address)
        consumer.subscribe("t", Sql("size > 5"))
        with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
            await consumer.start()
