"""The public protocol through proxy and broker, against an echo of the same bytes.

Real processes, synchronous flush. Both figures are to a bare gRPC echo of one message on the same
library: a unary send is one such call with a broker behind it, receiving brings 32 messages a call.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import grpc
from aerobee.broker.v1 import message_pb2_grpc
from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2 import service_pb2 as s
from apache.rocketmq.v2 import service_pb2_grpc

from bench.echo_server import METHOD, OPTIONS
from bench.measure import Operation, Result, compare
from bench.startup import started, up
from bench.throughput import BATCH, BODY, QUEUES, TOPIC, columnar

IN_FLIGHT = 64
SEND_TARGET = 0.45
RECEIVE_BATCH = 32
RECEIVE_IN_FLIGHT = 4
RECEIVE_TARGET = 4.0
STORED = 120_000  # more than all rounds of receiving take
METADATA = (("x-mq-client-id", "bench@1@0@a"),)
NAME = d.Resource(name=TOPIC)
GROUP = d.Resource(name="bench")


def message(number: int) -> s.SendMessageRequest:
    system = d.SystemProperties(message_id=f"01{number:032X}", tag="bench", queue_id=1)
    return s.SendMessageRequest(
        messages=[d.Message(topic=NAME, body=BODY, system_properties=system)]
    )


def send(stub: service_pb2_grpc.MessagingServiceStub) -> Operation:
    numbers = itertools.count()

    async def one() -> int:
        answer = await stub.SendMessage(message(next(numbers)), metadata=METADATA)
        if answer.status.code != d.Code.OK:
            raise RuntimeError(answer.status.message)
        return 1

    return one


def receive(stub: service_pb2_grpc.MessagingServiceStub, queue: d.MessageQueue) -> Operation:
    """Receives up to 32 messages and acknowledges them in one request."""
    request = s.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=RECEIVE_BATCH)
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 1

    async def batch() -> int:
        answers = [one async for one in stub.ReceiveMessage(request, metadata=METADATA)]
        entries = [
            s.AckMessageEntry(
                message_id=one.message.system_properties.message_id,
                receipt_handle=one.message.system_properties.receipt_handle,
            )
            for one in answers
            if one.HasField("message")
        ]
        if not entries:
            raise RuntimeError(f"nothing was received: {answers[0].status.message}")
        ack = s.AckMessageRequest(group=GROUP, topic=NAME, entries=entries)
        answer = await stub.AckMessage(ack, metadata=METADATA)
        if answer.status.code != d.Code.OK:
            raise RuntimeError(answer.status.message)
        return len(entries)

    return batch


def echo(channel: grpc.aio.Channel) -> Operation:
    call = channel.unary_unary(METHOD, None, None)
    payload = message(0).SerializeToString()

    async def one() -> int:
        if len(await call(payload)) != len(payload):
            raise RuntimeError("the echo gave other bytes")
        return 1

    return one


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory() as data:
        async with (
            started("-m", "aerobee_cli", *up(data)) as (_, line),
            started(str(Path(__file__).parent / "echo_server.py")) as (_, port),
        ):
            addresses = dict(item.split("=") for item in line.split()[1:])
            async with (
                grpc.aio.insecure_channel(addresses["proxy"], options=OPTIONS) as proxy,
                grpc.aio.insecure_channel(addresses["broker"], options=OPTIONS) as broker,
                grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as bare,
            ):
                stub = service_pb2_grpc.MessagingServiceStub(proxy)
                queue = await route(stub, addresses["proxy"])
                sent = await compare(
                    "proxy_unary_send_1k",
                    send(stub),
                    echo(bare),
                    in_flight=IN_FLIGHT,
                    target=SEND_TARGET,
                    note=f"1 KiB, {IN_FLIGHT} in flight, flush synchronous",
                )
                await fill(broker)
                received = await compare(
                    "proxy_receive_ack_1k",
                    receive(stub, queue),
                    echo(bare),
                    in_flight=RECEIVE_IN_FLIGHT,
                    target=RECEIVE_TARGET,
                    note=f"{RECEIVE_BATCH} x 1 KiB, {RECEIVE_IN_FLIGHT} in flight, durable acks",
                )
                return [sent, received]


async def route(stub: service_pb2_grpc.MessagingServiceStub, proxy: str) -> d.MessageQueue:
    """Makes the topic; one queue of it."""
    host, _, port = proxy.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
    )
    request = s.QueryRouteRequest(topic=NAME, endpoints=endpoints)
    answer = await stub.QueryRoute(request, metadata=METADATA)
    return d.MessageQueue(topic=NAME, broker=answer.message_queues[0].broker)


async def fill(broker: grpc.aio.Channel) -> None:
    stub, unique = message_pb2_grpc.MessageServiceStub(broker), itertools.count()
    for turn in range(STORED // BATCH):
        await stub.Send(columnar(turn % QUEUES, unique))
