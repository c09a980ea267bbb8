"""Transactions over real processes: a broker that is killed between half message and end."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import grpc
from aerobee.broker.v1.client_pb2 import HeartbeatRequest, TransactionCheck, WatchClientRequest
from aerobee.broker.v1.transaction_pb2 import COMMIT, ROLLBACK, Resolution

from aerobee_wire.status import Code
from support.broker.calls import BrokerCaller
from support.clock.polling import until
from support.processes.service import broker_process

QUICK = "--set=transactionTimeOut=500"


class Producer:
    """A producer of the classic protocol: heartbeats, watches, and ends what it is asked about.

    `answers`: body of a half message → how it ends.
    """

    def __init__(self, caller: BrokerCaller, answers: dict[bytes, Resolution]) -> None:
        self._caller = caller
        self._answers = answers
        self.asked: list[TransactionCheck] = []

    async def run(self) -> None:
        beat = HeartbeatRequest(client_id="p", producer_groups=["producers"])
        await self._caller.call(self._caller.clients.Heartbeat, beat)
        async for notice in self._caller.clients.WatchClient(WatchClientRequest(client_id="p")):
            if notice.HasField("transaction_check"):
                check = notice.transaction_check
                self.asked.append(check)
                resolution = self._answers[check.message.body]
                await self._caller.end_transactions(
                    resolution, (check.transaction_id, check.queue_offset)
                )


async def visible(caller: BrokerCaller) -> list[bytes]:
    return sorted([record.body for record in await caller.read("t")])


async def test_a_half_message_survives_kill_9_and_is_checked_back(tmp_path: Path) -> None:
    with broker_process(tmp_path, QUICK) as broker:
        async with BrokerCaller(broker.address) as caller:
            halves = {
                body: await caller.send_half("t", body)
                for body in (b"committed", b"rolled back", b"open: commit", b"open: rollback")
            }
            assert await visible(caller) == []
            for body, resolution in ((b"committed", COMMIT), (b"rolled back", ROLLBACK)):
                half = halves[body]
                name = (half.transaction_id, half.queue_offset)
                assert await caller.end_transactions(resolution, name) == [Code.SUCCESS]
        broker.kill()
        broker.start()
        async with BrokerCaller(broker.address) as caller:
            assert await visible(caller) == [b"committed"]
            for half in (halves[b"committed"], halves[b"rolled back"]):
                name = (half.transaction_id, half.queue_offset)
                codes = await caller.end_transactions(COMMIT, name)
                assert codes == [Code.INVALID_TRANSACTION_ID]
            producer = Producer(caller, {b"open: commit": COMMIT, b"open: rollback": ROLLBACK})
            running = asyncio.create_task(producer.run())
            await until(lambda: len(producer.asked) == 2, "the producer is asked about both")
            await until(
                partial(is_visible, caller, b"open: commit"), "the message it committed is visible"
            )
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert await visible(caller) == [b"committed", b"open: commit"]
            first = {check.message.body: check for check in producer.asked}[b"open: commit"]
            assert (first.message.topic, first.check_number) == ("t", 1)
        assert broker.stop() == 0


async def is_visible(caller: BrokerCaller, body: bytes) -> bool:
    return body in await visible(caller)


async def test_acknowledged_ends_survive_kill_9(tmp_path: Path) -> None:
    """Producers send and commit, or roll back, while the broker is killed."""
    committed: set[bytes] = set()
    rolled_back: set[bytes] = set()
    tried: dict[bytes, Resolution] = {}

    async def produce(caller: BrokerCaller, name: int) -> None:
        number = 0
        try:
            while True:
                body = b"%d-%d" % (name, number)
                number += 1
                resolution = ROLLBACK if number % 3 == 0 else COMMIT
                tried[body] = resolution
                half = await caller.send_half("t", body)
                named = (half.transaction_id, half.queue_offset)
                assert await caller.end_transactions(resolution, named) == [Code.SUCCESS]
                (committed if resolution == COMMIT else rolled_back).add(body)
        except grpc.aio.AioRpcError:
            return

    with broker_process(tmp_path, QUICK) as broker:
        async with BrokerCaller(broker.address) as caller:
            producers = [asyncio.create_task(produce(caller, name)) for name in range(4)]
            await until(lambda: len(committed) >= 80, "80 are committed")
            broker.kill()
            await asyncio.gather(*producers)
        broker.start()
        async with BrokerCaller(broker.address) as caller:
            bodies = await visible(caller)
            assert committed <= set(bodies)
            assert not rolled_back & set(bodies)
            assert len(bodies) == len(set(bodies)), "a kill tears no write in practice"
            # An end that was under way at the kill has happened, or the producer is asked again.
            producer = Producer(caller, tried)
            running = asyncio.create_task(producer.run())
            await until(partial(all_ended, caller, tried, producer), "every transaction has ended")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            assert len(producer.asked) <= 4
            assert len(await visible(caller)) == len(set(await visible(caller)))


async def all_ended(
    caller: BrokerCaller, tried: dict[bytes, Resolution], producer: Producer
) -> bool:
    """Whether exactly the half messages that were to be committed are visible."""
    halves = {record.body for record in await caller.read("RMQ_SYS_TRANS_HALF_TOPIC")}
    to_commit = {body for body in halves if tried[body] == COMMIT}
    return to_commit == set(await visible(caller))
