"""The load on the proxy: a process of its own, an ordinary gRPC client that costs little.

grpc.aio as a client costs more than what is measured here, so this one takes its events from
grpcio's queue itself. It sends each request anew and reads every message that comes.

`python load.py ADDRESS OPERATION [CONNECTIONS]` prints "up", then reads lines "in-flight seconds"
and answers each with the messages a second that it moved. Operations: echo, send, receive. ADDRESS
may be several, with "," between them; each connection, with a thread of its own, has one of them.
"""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from bench.servers.echo import METHOD, OPTIONS

# gRPC reads its sockets in the thread that waits for events, and not in threads of its own.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
cygrpc: Any = importlib.import_module("grpc._cython.cygrpc")  # private: see `pyproject.toml`

TOPIC = "bench"
BODY = bytes(range(256)) * 4  # 1 KiB
RECEIVE_BATCH = 32
NAME = d.Resource(name=TOPIC)
GROUP = d.Resource(name=TOPIC)
METADATA = (("x-mq-client-id", "bench@1@0@a"),)
SERVICE = "/apache.rocketmq.v2.MessagingService/"
NO_FLAGS, DEFAULTS = 0, cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS

Start = Callable[[Callable[[Any], None]], None]
Operation = Callable[[], Coroutine[Start, Any, int]]


class Event:
    """Starts operations, and is their event once it is awaited."""

    def __init__(self, start: Start) -> None:
        self._start = start

    def __await__(self) -> Generator[Start, Any, Any]:
        event: Any = yield self._start
        return event


class Client:
    """Calls have no deadline without `timeout_s`. The proxy of Apache needs one."""

    def __init__(
        self,
        address: str,
        metadata: tuple[tuple[str, str], ...] = METADATA,
        timeout_s: float | None = None,
    ) -> None:
        # Clients of one process have connections of their own.
        options = (*OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self._channel = cygrpc.Channel(address.encode(), options, None)
        self._metadata = metadata
        self._timeout_s = timeout_s

    def rate(self, operation: Operation, in_flight: int, seconds: float) -> float:
        """Messages a second with that many operations under way at any time."""
        start = time.perf_counter()
        moved = self.run(operation, in_flight, lambda: time.perf_counter() < start + seconds)
        return moved / (time.perf_counter() - start)

    def run(self, operation: Operation, in_flight: int, goes_on: Callable[[], bool]) -> int:
        """The messages that were moved while `goes_on`, by that many operations at any time."""
        moved, under_way = 0, in_flight

        def step(one: Coroutine[Start, Any, int], event: Any = None) -> None:
            nonlocal moved, under_way
            try:
                one.send(event)(partial(step, one))
            except StopIteration as done:
                moved += done.value
                if goes_on():
                    step(operation())
                else:
                    under_way -= 1

        for _ in range(in_flight):
            step(operation())
        while under_way:
            event = self._channel.next_call_event()
            event.tag(event)
        return moved

    async def unary(self, path: str, request: bytes) -> bytes:
        message = cygrpc.ReceiveMessageOperation(NO_FLAGS)
        status = cygrpc.ReceiveStatusOnClientOperation(NO_FLAGS)
        operations = (
            *self._request(request),
            cygrpc.ReceiveInitialMetadataOperation(NO_FLAGS),
            message,
            status,
        )
        await Event(lambda on_event: self._call(path, (operations, on_event)))
        _check(status)
        answer: bytes = message.message()
        return answer

    async def stream(self, path: str, request: bytes) -> list[bytes]:
        """All messages of the answer."""
        answers: list[bytes] = []
        calls: list[Any] = []

        def start(on_end: Callable[[Any], None]) -> None:
            # Each message asks for the next one: the caller is not woken in between.
            def on_message(event: Any) -> None:
                message = event.batch_operations[-1].message()
                if message is None:
                    on_end(event)
                else:
                    answers.append(message)
                    calls[0].operate(_receive(), on_message)

            headers = cygrpc.ReceiveInitialMetadataOperation(NO_FLAGS)
            status = cygrpc.ReceiveStatusOnClientOperation(NO_FLAGS)
            first = (*self._request(request), headers, *_receive())
            calls.append(self._call(path, (first, on_message), ((status,), _nothing)))

        await Event(start)
        return answers

    def _call(self, path: str, *batches: tuple[Any, Callable[[Any], None]]) -> Any:
        method = path.encode()
        deadline = None if self._timeout_s is None else time.time() + self._timeout_s
        return self._channel.integrated_call(
            DEFAULTS, method, None, deadline, self._metadata, None, batches, None, None
        )

    def _request(self, request: bytes) -> tuple[Any, ...]:
        return (
            cygrpc.SendInitialMetadataOperation(self._metadata, NO_FLAGS),
            cygrpc.SendMessageOperation(request, NO_FLAGS),
            cygrpc.SendCloseFromClientOperation(NO_FLAGS),
        )


def _receive() -> tuple[Any, ...]:
    return (cygrpc.ReceiveMessageOperation(NO_FLAGS),)


def _nothing(_event: Any) -> None:
    pass


def _check(status: Any) -> None:
    if status.code() != grpc.StatusCode.OK.value[0]:
        raise RuntimeError(f"{status.code()}: {status.details()}")


# ---- the operations ----


def message(number: int) -> s.SendMessageRequest:
    system = d.SystemProperties(message_id=f"01{number:032X}", tag="bench", queue_id=1)
    return s.SendMessageRequest(
        messages=[d.Message(topic=NAME, body=BODY, system_properties=system)]
    )


def echo(client: Client, _address: str) -> Operation:
    """As much work here as a send: a message made anew, an answer read."""
    numbers = itertools.count()

    async def one() -> int:
        request = message(next(numbers))
        answer = await client.unary(METHOD, request.SerializeToString())
        if s.SendMessageRequest.FromString(answer) != request:
            raise RuntimeError("the echo gave another message")
        return 1

    return one


def send(client: Client, _address: str) -> Operation:
    numbers = itertools.count()

    async def one() -> int:
        request = message(next(numbers)).SerializeToString()
        answer = s.SendMessageResponse.FromString(
            await client.unary(SERVICE + "SendMessage", request)
        )
        if answer.status.code != d.Code.OK:
            raise RuntimeError(answer.status.message)
        return 1

    return one


def receive(client: Client, address: str) -> Operation:
    """Receives up to 32 messages and acknowledges them in one request."""
    host, _, port = address.rpartition(":")
    endpoints = d.Endpoints(
        scheme=d.AddressScheme.IPv4, addresses=[d.Address(host=host, port=int(port))]
    )
    queue = d.MessageQueue(topic=NAME, broker=d.Broker(name="", endpoints=endpoints))
    request = s.ReceiveMessageRequest(group=GROUP, message_queue=queue, batch_size=RECEIVE_BATCH)
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 1
    route = s.QueryRouteRequest(topic=NAME, endpoints=endpoints).SerializeToString()
    wanted: list[bytes] = []

    async def batch() -> int:
        if not wanted:
            known = await client.unary(SERVICE + "QueryRoute", route)
            queues = s.QueryRouteResponse.FromString(known).message_queues
            request.message_queue.broker.CopyFrom(queues[0].broker)
            wanted.append(request.SerializeToString())
        stream = await client.stream(SERVICE + "ReceiveMessage", wanted[0])
        answers = [s.ReceiveMessageResponse.FromString(one) for one in stream]
        entries = []
        for one in answers:
            if one.WhichOneof("content") == "message":
                found = one.message
                if found.body != BODY:
                    raise RuntimeError("another body was received than was sent")
                system = found.system_properties
                entries.append(
                    s.AckMessageEntry(
                        message_id=system.message_id, receipt_handle=system.receipt_handle
                    )
                )
        if not entries:
            raise RuntimeError(f"nothing was received: {answers[0].status.message}")
        ack = s.AckMessageRequest(group=GROUP, topic=NAME, entries=entries)
        answer = s.AckMessageResponse.FromString(
            await client.unary(SERVICE + "AckMessage", ack.SerializeToString())
        )
        if answer.status.code != d.Code.OK:
            raise RuntimeError(answer.status.message)
        return len(entries)

    return batch


def main() -> None:
    address, name, *more = sys.argv[1:]
    connections = int(more[0]) if more else 1
    operation = {"echo": echo, "send": send, "receive": receive}[name]
    addresses = itertools.islice(itertools.cycle(address.split(",")), connections)
    clients = [(client, operation(client, each)) for each in addresses for client in [Client(each)]]
    print("up", flush=True)
    with ThreadPoolExecutor(connections) as threads:
        for line in sys.stdin:
            in_flight, seconds = line.split()
            each = int(in_flight) // connections
            rates = [
                threads.submit(client.rate, operation, each, float(seconds))
                for client, operation in clients
            ]
            print(sum(rate.result() for rate in rates), flush=True)


if __name__ == "__main__":
    main()
