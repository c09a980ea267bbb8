"""Compressed bodies through a real broker: sent, consumed, dead-lettered, exported, redriven."""

from __future__ import annotations

import pytest

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    DeadLetter,
    Message,
    MqError,
    ReceivedMessage,
)
from aerobee_client.admin.dead_letters import DeadLetters
from aerobee_client.admin.export import full
from aerobee_client.admin.letters import LetterJobSpec
from aerobee_wire.compression import SYS_FLAGS
from support.clock.polling import until

BODY = b"the flight never arrived; " * 1_000


@pytest.mark.parametrize("method", SYS_FLAGS)
async def test_a_compressed_message_lives_dies_and_lives_again(namesrv: str, method: str) -> None:
    topic, group = f"packed-{method}", f"packed-{method}-g"
    seen: list[ReceivedMessage] = []

    async def listen(message: ReceivedMessage) -> None:
        seen.append(message)
        if len(seen) == 1:
            raise DeadLetter("hopeless")

    async def dead_letters() -> list[ReceivedMessage]:
        return [message async for message in DeadLetters(admin, group).read()]

    async with (
        AsyncAdminClient(namesrv) as admin,
        AsyncProducer("p", namesrv=namesrv, compression=method) as producer,
    ):
        consumer = AsyncPushConsumer(group, listen, namesrv=namesrv)
        consumer.subscribe(topic)
        async with consumer:
            sent = await producer.send(Message(topic, BODY, tag="T", keys="k"))
            (dead,) = await until(dead_letters, retry_on=(MqError,))
            exported = full(dead)
            assert (exported["body"], exported.get("body_problem")) == (BODY.decode(), None)
            spec = LetterJobSpec(consumer_group=group, target="origin")
            await admin.start_letter_job(dead.broker_name, f"job-{method}", spec)
            await until(lambda: len(seen) == 2)
    for message in seen:
        assert (message.body, message.message_id) == (BODY, sent.message_id)
        assert message.sys_flag == SYS_FLAGS[method]
        assert len(message.stored_body) < len(BODY) // 10
