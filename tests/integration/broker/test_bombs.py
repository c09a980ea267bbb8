"""Callers that flood a broker get typed answers; a good client is served, and memory is bounded."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import grpc
from aerobee.broker.v1 import message_pb2

from aerobee_wire.rpcs import SEND
from aerobee_wire.status import Code, MqError
from support.broker.calls import BrokerCaller
from support.chassis.http2 import begun_request
from support.clock.polling import until
from support.codes import raises_code
from support.observing.scrape import scrape
from support.processes.service import METRICS, ServiceProcess, broker_process

MIB = 1024 * 1024
ADDRESS_LIMIT = 30
FLOOD = 40
BOMB = "a = 1 AND " * 20_000 + "a = 1"
LIMITS = (
    *METRICS,
    f"--set=maxConnectionsPerAddress={ADDRESS_LIMIT}",
    "--set=requestArrivalTimeoutMillis=1000",
    "--set=silentConnectionTimeoutMillis=1000",
    f"--set=maxRequestBytes={8 * MIB}",
    "--set=maxTopics=40",
)


def resident(broker: ServiceProcess) -> int:
    """Return the bytes of memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{broker.pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def dial(broker: ServiceProcess, data: bytes) -> asyncio.StreamWriter:
    host, _, port = broker.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    return writer


async def refused(caller: BrokerCaller, topic: str, body: bytes = b"x") -> Code | str:
    try:
        await caller.send(topic, body)
    except MqError as error:
        return error.code
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return Code.SUCCESS


async def test_good_client_is_served_while_others_flood(tmp_path: Path) -> None:
    with broker_process(tmp_path, *LIMITS) as broker:
        async with BrokerCaller(broker.address) as good, BrokerCaller(broker.address) as bad:
            await good.send("good", b"x")
            before = resident(broker)
            served = 0

            async def serve() -> None:
                nonlocal served
                while True:
                    await good.send("good", b"x" * 100)
                    served += 1

            serving = asyncio.create_task(serve())
            slow = begun_request(SEND.path, bytes(100), of=4 * MIB)
            flood = [await dial(broker, slow) for _ in range(FLOOD)]
            flood += [await dial(broker, b"") for _ in range(FLOOD)]
            assert await refused(bad, "good", bytes(9 * MIB)) == "RESOURCE_EXHAUSTED"
            topics = [await refused(bad, f"topic{number}") for number in range(60)]
            assert topics[0] is Code.SUCCESS and topics[-1] is Code.FLOW_CONTROL
            bomb = message_pb2.PullRequest(consumer_group="g", topic="good")
            bomb.subscription.expression = BOMB
            bomb.subscription.expression_type = message_pb2.Subscription.SQL92
            with raises_code(Code.SUBSCRIPTION_PARSE_FAILED):
                await bad.call(bad.messages.Pull, bomb)
            await until(lambda: scrape(broker)["aerobee_connections_refused_total"] >= FLOOD)
            await until(lambda: scrape(broker)["aerobee_late_requests_total"] >= 1)
            seen = served
            await until(lambda: served >= seen + 20, "the good client is served")
            assert not serving.done()
            serving.cancel()
            for writer in flood:
                writer.close()
            assert resident(broker) - before < 64 * MIB
            await good.send("good", b"x")
