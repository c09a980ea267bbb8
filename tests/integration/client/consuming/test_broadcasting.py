"""Broadcasting members against real processes: each gets every message, also when it or the broker
is killed; none has a lag at the broker."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

from aerobee_client import (
    AsyncAdminClient,
    AsyncProducer,
    AsyncPushConsumer,
    ConsumeFromWhere,
    Message,
    MessageModel,
    PushConsumer,
)
from aerobee_client.consuming.offset_file import decode
from aerobee_wire.status import Code
from support.clock.polling import until
from support.codes import raises_code
from support.processes.service import broker_process, namesrv_process

PATIENT = timedelta(seconds=60)

# Says when it is started; appends the body of each message to a file, a line each, until it is
# killed.
MEMBER = """
import sys, time
from aerobee_client import ConsumeFromWhere, MessageModel, PushConsumer
from aerobee_client.consuming import membership

membership.COMMIT_INTERVAL_S = 0.05
namesrv, group, topic, offsets, output = sys.argv[1:]
with open(output, "ab", buffering=0) as seen, PushConsumer(
    group,
    lambda message: seen.write(message.body + b"\\n") and None,
    namesrv=namesrv,
    message_model=MessageModel.BROADCASTING,
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    offset_file=offsets,
) as consumer:
    print("started", flush=True)
    consumer.subscribe(topic)
    time.sleep(600)
"""


def broadcasting(
    namesrv: str, group: str, seen: list[bytes], offset_file: Path | None = None
) -> PushConsumer:
    return PushConsumer(
        group,
        lambda message: seen.append(message.body),
        namesrv=namesrv,
        message_model=MessageModel.BROADCASTING,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        offset_file=offset_file,
    )


async def test_each_member_gets_each_message_and_the_group_has_no_lag(namesrv: str) -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    async with AsyncAdminClient(namesrv) as admin, AsyncProducer(namesrv=namesrv) as producer:
        await admin.create_topic("news", queues=4)
        members = [
            AsyncPushConsumer(
                "news-g",
                lambda message, seen=seen: seen.append(message.body),  # type: ignore[misc]
                namesrv=namesrv,
                message_model=MessageModel.BROADCASTING,
            )
            for seen in (first, second)
        ]
        for member in members:
            member.subscribe("news")
        async with members[0], members[1]:
            sent = [b"%d" % n for n in range(1_000)]
            await producer.send_batch([Message("news", body) for body in sent])
            await until(lambda: len(first) == len(second) == 1_000)
            assert all(len(member.queues) == 4 for member in members)
            assert await admin.consume_progress("news-g") == []
    assert Counter(first) == Counter(second) == Counter(sent)


async def test_a_killed_member_and_a_killed_broker_lose_nothing(tmp_path: Path) -> None:
    """Offsets in a file: what a killed member had not kept comes again, the rest does not."""
    offsets, output = tmp_path / "offsets.json", tmp_path / "seen"
    with (
        namesrv_process(tmp_path) as namesrv,
        broker_process(tmp_path, namesrv=namesrv.address) as broker,
    ):
        arguments = [namesrv.address, "g", "t", str(offsets), str(output)]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", MEMBER, *arguments])

        def lines() -> list[bytes]:
            return output.read_bytes().splitlines() if output.exists() else []

        def kept() -> int:
            return sum(decode(offsets.read_text()).values()) if offsets.exists() else 0

        sent: list[bytes] = []
        async with AsyncProducer(namesrv=namesrv.address, send_timeout=PATIENT) as producer:

            async def produce(count: int) -> None:
                bodies = [b"%d" % (len(sent) + n) for n in range(count)]
                await producer.send_batch([Message("t", body) for body in bodies])
                sent.extend(bodies)

            for kill_broker in (False, True, False):
                await produce(500)
                member = start()
                try:
                    await until(lambda: len(set(lines())) > len(sent) - 250, timeout_s=30)
                    if kill_broker:
                        await asyncio.to_thread(broker.kill)
                        await asyncio.to_thread(broker.start)
                        await produce(500)
                        await until(lambda: len(set(lines())) > len(sent) - 250, timeout_s=30)
                    await until(lambda: kept() > len(sent) / 2, "the file says so")
                finally:
                    member.kill()
                    member.wait()
            before, before_kept = len(lines()), kept()
            await produce(10)
            member = start()
            try:
                await until(lambda: set(lines()) >= set(sent), timeout_s=30)
                again = len(lines()) - before
            finally:
                member.kill()
                member.wait()
    assert set(lines()) == set(sent)
    assert again <= len(sent) - before_kept < len(sent) / 2 + 10, "it did not start over"


def test_a_file_is_for_one_process(namesrv: str, tmp_path: Path) -> None:
    offsets = tmp_path / "offsets.json"
    arguments = [namesrv, "one-g", "one", str(offsets), str(tmp_path / "seen")]
    other = subprocess.Popen([sys.executable, "-c", MEMBER, *arguments], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"started\n"  # so it holds the lock
        with raises_code(Code.ILLEGAL_OPERATION):
            broadcasting(namesrv, "one-g", [], offsets).start()
    finally:
        other.kill()
        other.communicate()
    with broadcasting(namesrv, "one-g", [], offsets):
        """A lock ends with its process."""
