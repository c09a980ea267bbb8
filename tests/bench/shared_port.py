"""What it costs that the proxy's port takes TLS and plaintext: unary sends over it in plaintext and
in TLS, against a proxy whose port is plaintext.

One broker with synchronous flush, two proxies; all rounds are interleaved.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import statistics

import grpc
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from bench.load import METADATA, NAME, message
from bench.measure import Operation, Result, rate
from bench.proxy import IN_FLIGHT, suite_and_plaintext_proxy
from bench.servers.echo import OPTIONS
from support.stubs import Stub

# Many and short: what else this machine does then hits all three alike.
ROUNDS = 30
ROUND_S = 0.4
WARM_UP_S = 1.0
# More than a tenth would be too much for a default. TLS is asked for by who uses it.
TARGETS = {"proxy_shared_port_send": 0.90, "proxy_tls_send": 0.80}


async def results() -> list[Result]:
    async with suite_and_plaintext_proxy() as addresses:
        return await compared(addresses["plaintext_proxy"], addresses["proxy"])


async def compared(direct: str, shared: str) -> list[Result]:
    host, _, port = shared.rpartition(":")
    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
    credentials = grpc.ssl_channel_credentials(pem.encode())
    async with (
        grpc.aio.insecure_channel(direct, options=OPTIONS) as direct_channel,
        grpc.aio.insecure_channel(shared, options=OPTIONS) as plaintext,
        grpc.aio.secure_channel(shared, credentials, options=OPTIONS) as tls,
    ):
        operations = [
            await sending(channel, shared) for channel in (direct_channel, plaintext, tls)
        ]
        for operation in operations:
            await rate(operation, IN_FLIGHT, WARM_UP_S)
        rounds = [
            [await rate(operation, IN_FLIGHT, ROUND_S) for operation in operations]
            for _ in range(ROUNDS)
        ]
    base, *ours = (statistics.median(column) for column in zip(*rounds, strict=True))
    note = f"1 KiB, {IN_FLIGHT} in flight; baseline: tlsServerMode=disabled"
    return [
        Result(name, "messages/s", value, base, value / base, target, note)
        for value, (name, target) in zip(ours, TARGETS.items(), strict=True)
    ]


async def sending(channel: grpc.aio.Channel, shared: str) -> Operation:
    """Makes the topic, and sends to it."""
    stub = Stub(s, channel)
    host, _, port = shared.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
    )
    route = s.QueryRouteRequest(topic=NAME, endpoints=endpoints)
    await stub.QueryRoute(route, metadata=METADATA)
    numbers = itertools.count()

    async def one() -> int:
        answer = await stub.SendMessage(message(next(numbers)), metadata=METADATA)
        if answer.status.code != d.Code.OK:
            raise RuntimeError(answer.status.message)
        return 1

    return one
