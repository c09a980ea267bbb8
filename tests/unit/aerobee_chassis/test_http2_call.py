"""A call of the HTTP/2 transport whose caller leaves, waits, or lets its deadline pass."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.http2.server_call import Http2Call
from aerobee_chassis.rpc.in_flight import RESERVED_BYTES, InFlight
from aerobee_chassis.rpc.services import Method
from aerobee_chassis.rpc.transport import Admit, Refuse, Run, admit_all, refuse_plainly
from aerobee_http2 import frames
from aerobee_http2.frames import END_HEADERS, END_STREAM, frame
from aerobee_http2.hpack import encoded
from aerobee_http2.request_head import RequestHead
from aerobee_http2.server import ServerConnection
from support.client.http2_client import BLOCK, FIELDS, FakeClient
from support.client.http2_server import message

RESET = frames.NUMBER.pack(frames.CANCEL)
BEGUN = frame(frames.HEADERS, END_HEADERS, 1, BLOCK)


class Peer:
    address = "127.0.0.1:1"
    certificate_uris: tuple[str, ...] = ()
    is_encrypted = False


class Listening:
    """The listener, and a connection to it. `handler` gets each request with its call."""

    def __init__(self, handler: Callable[..., Any], *, streams: bool = False) -> None:
        self.loop = asyncio.get_running_loop()
        self.in_flight = InFlight(4 * RESERVED_BYTES)
        self.admit: Admit = admit_all
        self.limits = PortLimits()
        self.active: set[Http2Call] = set()
        self.due_s: list[float] = []
        self._method = Method("Do", handler, bytes, streams, False)
        self._handler = handler
        self.client = FakeClient(accept=self._accept)
        self.now_s = lambda: self.client.now_s
        self.run: Run = self._run
        self.refuse: Refuse = refuse_plainly

    def _accept(self, _connection: ServerConnection, head: RequestHead) -> Http2Call:
        call = Http2Call(self, Peer(), head, "test.Service", self._method)
        self.active.add(call)
        return call

    async def send(self, *data: bytes) -> None:
        """Let bytes of the client arrive as the loop reads them: outside of a task."""
        self.loop.call_soon(self.client.send, *data)
        await asyncio.sleep(0)

    async def _run(self, _service: str, _method: Method, request: Any, call: Any) -> Any:
        return await self._handler(request, call)

    def ended(self, call: Http2Call) -> None:
        self.active.discard(call)

    def watch(self) -> None:
        """The test looks by itself."""

    def due(self, at_s: float) -> None:
        self.due_s.append(at_s)


async def echo(request: bytes, _call: Any) -> bytes:
    return request


async def endless(_request: bytes, _call: Any) -> bytes:
    await asyncio.Event().wait()
    return b""


def request(*fields: tuple[str, str], body: bytes = b"q") -> bytes:
    block = encoded((*FIELDS, *fields))
    head = frame(frames.HEADERS, END_HEADERS, 1, block)
    return head + frame(frames.DATA, END_STREAM, 1, message(body))


def idle(listening: Listening) -> bool:
    in_flight = listening.in_flight
    return not (in_flight.requests or in_flight.answers or in_flight.waiting or listening.active)


async def test_a_handler_that_waits_for_nothing_has_answered_when_the_request_has_arrived() -> None:
    listening = Listening(echo)
    await listening.send(request(body=b"abc"))
    found = listening.client.taken()
    assert [each.kind for each in found] == [frames.HEADERS, frames.DATA, frames.HEADERS]
    assert found[1].payload == message(b"abc") and idle(listening)


async def test_a_caller_that_leaves_in_its_request_leaves_no_bytes() -> None:
    listening = Listening(echo)
    await listening.send(BEGUN, frame(frames.DATA, 0, 1, message(bytes(1_000))[:500]))
    assert listening.in_flight.requests == RESERVED_BYTES
    await listening.send(frame(frames.RST_STREAM, 0, 1, RESET))
    assert idle(listening)


async def test_a_caller_that_leaves_while_it_waits_is_forgotten() -> None:
    listening = Listening(echo)
    for stream in (1, 3, 5, 7, 9):
        await listening.send(frame(frames.HEADERS, END_HEADERS, stream, BLOCK))
    assert listening.in_flight.waiting == 2
    await listening.send(frame(frames.RST_STREAM, 0, 9, RESET))
    assert listening.in_flight.waiting == 1
    # Another one that leaves lets the last one read.
    await listening.send(frame(frames.RST_STREAM, 0, 1, RESET))
    assert listening.in_flight.waiting == 0
    for stream in (3, 5, 7):
        await listening.send(frame(frames.DATA, END_STREAM, stream, message(b"q")))
    assert idle(listening)


async def test_a_handler_is_cancelled_once_when_its_caller_leaves() -> None:
    listening = Listening(endless)
    await listening.send(request())
    (call,) = listening.active
    assert call.task is not None
    task = call.task
    await listening.send(frame(frames.RST_STREAM, 0, 1, RESET))
    assert listening.active, "until its handler has ended"
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert idle(listening) and listening.client.taken() == []


async def test_a_write_to_a_caller_that_has_left_cancels_the_handler() -> None:
    caught: list[str] = []

    async def write(_request: bytes, call: Any) -> None:
        try:
            await call.write(bytes(10_000_000))
        except asyncio.CancelledError:
            caught.append("the first")
        try:
            await call.write(b"more")
        except asyncio.CancelledError:
            caught.append("the second")
            raise

    listening = Listening(write, streams=True)
    await listening.send(request())
    assert listening.in_flight.answers > 9_000_000
    listening.client.server.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert caught == ["the first", "the second"] and idle(listening)


async def test_a_deadline_that_passes_ends_the_call_and_its_handler() -> None:
    listening = Listening(endless)
    await listening.send(request(("grpc-timeout", "2S")))
    (call,) = listening.active
    assert listening.due_s == [listening.client.now_s + 2]
    assert call.time_remaining_s() == 2
    assert call.check_deadline(listening.client.now_s + 1.9) == listening.due_s[0]
    assert call.check_deadline(listening.client.now_s + 2) is None
    assert listening.client.statuses()[1]["grpc-status"] == "4"
    for _ in range(3):
        await asyncio.sleep(0)
    assert idle(listening)


async def test_a_deadline_that_passes_before_the_request_has_arrived_ends_the_call() -> None:
    listening = Listening(echo)
    block = encoded((*FIELDS, ("grpc-timeout", "2S")))
    await listening.send(frame(frames.HEADERS, END_HEADERS, 1, block))
    (call,) = listening.active
    call.check_deadline(listening.client.now_s + 3)
    assert listening.client.statuses()[1]["grpc-status"] == "4"
    assert idle(listening)


async def test_an_answer_that_cannot_be_serialized_fails_its_call() -> None:
    async def spoilt(_request: bytes, _call: Any) -> Any:
        return 7

    listening = Listening(spoilt)
    reported: list[Any] = []
    listening.loop.set_exception_handler(lambda _, context: reported.append(context))
    await listening.send(request())
    assert listening.client.statuses()[1]["grpc-status"] == "13"
    assert len(reported) == 1 and idle(listening)


async def test_a_caller_that_does_not_read_is_cut_and_its_handler_ends() -> None:
    async def write(_request: bytes, call: Any) -> None:
        await call.write(bytes(1_000_000))

    listening = Listening(write, streams=True)
    await listening.send(request())
    (call,) = listening.active
    for _ in range(2):
        call.check_reader(2)
    assert listening.client.statuses() == {}
    call.check_reader(2)
    assert listening.client.statuses()[1]["grpc-status"] == "8"
    assert listening.in_flight.cut == 1
    for _ in range(3):
        await asyncio.sleep(0)
    assert idle(listening)


async def test_a_request_that_does_not_arrive_is_late() -> None:
    listening = Listening(echo)
    await listening.send(BEGUN)
    (call,) = listening.active
    for _ in range(2):
        call.check_arrival(1)
    assert listening.limits.counts.late == 1
    assert "requestArrivalTimeoutMillis" in listening.client.statuses()[1]["grpc-message"]
    assert idle(listening)
