"""Forks of a process that has used a client: its children are refused at once, and told what to do;
those of a process that has not may make clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes.forking import HEAD, assert_refused_at_once

BY_HAND = """
def listen(message):
    pass

with Producer("p") as producer, AdminClient() as admin:
    producer.send(Message("forked", b"parent"))
    consumer = PushConsumer("forked-g", listen)
    consumer.subscribe("forked")
    consumer.start()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        async def asynchronously():
            async with AsyncProducer("p") as new:
                await new.send(Message("forked", b"child"))

        def make_another():
            with Producer("p") as new:
                new.send(Message("forked", b"child"))

        uses = {
            "send": lambda: producer.send(Message("forked", b"child")),
            "send_async": lambda: producer.send_async(Message("forked", b"child")),
            "send_batch": lambda: producer.send_batch([Message("forked", b"child")]),
            "queues": lambda: producer.queues("forked"),
            "start": producer.start,
            "subscribe": lambda: consumer.subscribe("other"),
            "consumer": lambda: PushConsumer("forked-g", listen).start(),
            "admin": lambda: admin.list_topics(),
            "another": make_another,
            "asyncio": lambda: asyncio.run(asynchronously()),
            "another admin": AdminClient,
        }
        found = {name: tried(use) for name, use in uses.items()}
        producer.close(); consumer.close(); admin.close()  # the parent's: nothing to do here
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(os.read(reading, 1 << 16).decode())
    producer.send(Message("forked", b"parent again"))
    consumer.close()
"""

# What the asyncio classes of the parent answer in the child, whose loop is another.
INHERITED = """
async def main():
    async with AsyncProducer("p") as producer, AsyncAdminClient() as admin:
        await producer.send(Message("forked", b"parent"))
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            async def use(what):
                began = time.monotonic()
                try:
                    await what()
                    name = "done"
                except MqError as error:
                    name = error.code.name
                return name, time.monotonic() - began

            found = {
                "send": await use(lambda: producer.send(Message("forked", b"child"))),
                "batch": await use(lambda: producer.send_batch([Message("forked", b"child")])),
                "start": await use(producer.start),
                "admin": await use(admin.list_topics),
                "new": await use(AsyncProducer("p").start),
            }
            await producer.close()
            os.write(writing, json.dumps(found).encode())
            os._exit(0)
        os.waitpid(child, 0)
        print(os.read(reading, 1 << 16).decode())
        await producer.send(Message("forked", b"parent again"))

asyncio.run(main())
"""

# Consumers and transactions of the parent, in its child.
CONSUMERS = """
from datetime import timedelta

def check(message):
    return TransactionResolution.UNKNOWN

def listen(message):
    pass

admin = AdminClient()
admin.create_topic("forked-kinds", queues=1)
with (
    TransactionProducer("forked-tx", check) as producer,
    PullConsumer("forked-pull") as pulling,
    SimpleConsumer("forked-pop") as leasing,
    PushConsumer("forked-orderly", listen, orderly=True, auto_commit=False) as ordered,
):
    producer.send_batch([Message("forked-kinds", b"parent")] * 100)
    pulling.subscribe("forked-kinds")
    loop = iter(pulling)
    assert next(loop).queue_offset == 0  # others are lent to it
    (queue,) = pulling.queues
    leasing.subscribe("forked-kinds")
    leased = leasing.receive()
    tx = producer.transaction(Message("forked-kinds", b"open"))
    tx.__enter__()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        uses = {
            "next": lambda: next(loop),
            "poll": pulling.poll,
            "seek": lambda: pulling.seek(queue, 0),
            "position": lambda: pulling.position(queue),
            "pull commit": pulling.commit,
            "assign": lambda: PullConsumer().assign([queue]),
            "receive": leasing.receive,
            "ack": lambda: leasing.ack(leased),
            "renewing": leasing.renewing(leased).__enter__,
            "reply": lambda: leasing.reply(leased[0], b"x"),
            "statistics": leasing.statistics,
            "orderly commit": ordered.commit,
            "pause": ordered.pause,
            "transaction": lambda: producer.transaction(Message("t", b"x")).__enter__(),
            "tx commit": tx.commit,
        }
        found = {name: tried(use) for name, use in uses.items()}
        for client in (producer, pulling, leasing, ordered):
            client.close()
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    os.waitpid(child, 0)
    print(os.read(reading, 1 << 16).decode())
    tx.commit()
    assert next(loop).queue_offset == 1
    leasing.ack(leased)
"""

INHERITED_CONSUMERS = """
async def main():
    async with AsyncAdminClient() as admin:
        await admin.create_topic("forked-async", queues=1)
    async with (
        AsyncTransactionProducer("forked-tx", lambda message: None) as producer,
        AsyncPullConsumer("forked-pull-async") as pulling,
        AsyncSimpleConsumer("forked-pop-async") as leasing,
        AsyncPushConsumer("forked-o", print, orderly=True, auto_commit=False) as ordered,
    ):
        await producer.send_batch([Message("forked-async", b"parent")] * 100)
        pulling.subscribe("forked-async")
        (message,) = await pulling.poll(1)
        (queue,) = pulling.queues
        leasing.subscribe("forked-async")
        leased = await leasing.receive()
        tx = producer.transaction(Message("forked-async", b"open"))
        await tx.__aenter__()
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            async def use(what):
                began = time.monotonic()
                try:
                    found = what()
                    if found is not None:
                        await found
                    name = "done"
                except MqError as error:
                    name = error.code.name
                return name, time.monotonic() - began

            uses = {
                "poll": pulling.poll,
                "anext": lambda: anext(aiter(pulling)),
                "read_to_end": lambda: anext(pulling.read_to_end()),
                "seek": lambda: pulling.seek(queue, 0),
                "position": lambda: pulling.position(queue),
                "pull commit": pulling.commit,
                "pull subscribe": lambda: pulling.subscribe("other"),
                "new pull": lambda: AsyncPullConsumer("other").start(),
                "receive": leasing.receive,
                "ack": lambda: leasing.ack(leased),
                "reply": lambda: leasing.reply(leased[0], b"x"),
                "leasing subscribe": lambda: leasing.subscribe("other"),
                "new simple": lambda: AsyncSimpleConsumer("other").start(),
                "orderly commit": ordered.commit,
                "rollback": ordered.rollback,
                "pause": ordered.pause,
                "subscribe": lambda: ordered.subscribe("other"),
                "set_concurrency": lambda: ordered.set_concurrency(2),
                "new push": lambda: AsyncPushConsumer("other", print).start(),
                "transaction": producer.transaction(Message("t", b"x")).__aenter__,
                "tx commit": tx.commit,
            }
            found = {name: await use(what) for name, what in uses.items()}
            for client in (producer, pulling, leasing, ordered):
                await client.close()
            os.write(writing, json.dumps(found).encode())
            os._exit(0)
        os.waitpid(child, 0)
        print(os.read(reading, 1 << 16).decode())
        await tx.commit()
        assert (await pulling.poll(1))[0].queue_offset == 1
        await leasing.ack(leased)

asyncio.run(main())
"""

POOL = """
producer = Producer("p")

def send(number):
    return tried(lambda: producer.send(Message("forked", b"%d" % number)))

def fail(number):
    producer.send(Message("forked", b"%d" % number))

def make(number):
    def use():
        with Producer("p") as own:
            own.send(Message("forked", b"%d" % number))
    return tried(use)

if __name__ == "__main__":
    forking = multiprocessing.get_context("fork")
    found = {}
    with forking.Pool(2) as pool:  # before this process uses a client
        found["before"] = pool.map(make, range(4))
    producer.start()
    producer.send(Message("forked", b"parent"))
    with forking.Pool(2) as pool:
        found["inherited"] = pool.map(send, range(4))
        found["new"] = pool.map(make, range(4))
        try:
            pool.map(fail, range(4))
        except MqError as error:  # comes out of the pool as it was raised
            found["raised"] = [(error.code.name, 0.0)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found["spawned"] = pool.map(make, range(2))
    producer.close()
    print(json.dumps(found))
"""


def run(program: str, namesrv: str, folder: Path) -> dict[str, Any]:
    """What the program prints, as JSON."""
    path = folder / "program.py"
    path.write_text(HEAD + program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "NAMESRV_ADDR": namesrv},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "program",
    [BY_HAND, INHERITED, CONSUMERS, INHERITED_CONSUMERS],
    ids=["plain", "asyncio", "plain consumers", "asyncio consumers"],
)
def test_a_forked_child_is_refused_at_once(program: str, namesrv: str, tmp_path: Path) -> None:
    assert_refused_at_once(list(run(program, namesrv, tmp_path).values()))


def test_a_forked_pool_is_refused_and_a_spawned_one_works(namesrv: str, tmp_path: Path) -> None:
    found = run(POOL, namesrv, tmp_path)
    for worked in ("before", "spawned"):
        assert {name for name, _ in found[worked]} == {"done"}
    for refused in ("inherited", "new", "raised"):
        assert_refused_at_once(found[refused])
