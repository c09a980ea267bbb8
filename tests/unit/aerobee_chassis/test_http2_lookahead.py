"""Calls whose handlers do not read their requests hold little of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.http2.listener import Http2Listener
from aerobee_chassis.rpc.http2.server_call import Http2Call
from aerobee_chassis.rpc.in_flight import LOOKAHEAD_BYTES, InFlight
from aerobee_chassis.rpc.services import Method, Service
from aerobee_chassis.rpc.transport import refuse_plainly
from aerobee_http2 import frames
from aerobee_http2.calls import PREFIX
from aerobee_http2.frames import END_HEADERS, frame
from aerobee_http2.request_head import RequestHead
from aerobee_http2.server import CONNECTION_WINDOW, ServerConnection
from support.client.http2_client import BLOCK, FakeClient
from support.client.http2_server import message

CALLS = 1_000
FRAME = 16 * 1024
HELD_BYTES = 64 * 1024  # of each call
MIB = 1024 * 1024
NO_ERROR = frames.NUMBER.pack(0)


class Peer:
    address = "127.0.0.1:1"
    certificate_uris: tuple[str, ...] = ()
    is_encrypted = False


async def never(_request: Any, _call: Any) -> None:
    """`run` calls no handler."""


class Raw:
    """A request, which is not parsed."""

    @staticmethod
    def FromString(data: bytes) -> bytes:
        return data


class Caller:
    """A client that sends on each stream as much as the windows of the server allow."""

    def __init__(self, method: Method, handler: Any) -> None:
        service = Service("test.Service", (method,))
        self.listener = Http2Listener(
            [service], handler, InFlight(), refuse_plainly, limits=PortLimits()
        )
        self.calls: list[Http2Call] = []
        self._method = method
        self.client = FakeClient(limits=self.listener._limits, accept=self._accept)
        [settings, *_] = self.client.opening
        announced = {
            settings.payload[at : at + 2]: settings.payload[at + 2 : at + 6]
            for at in range(0, len(settings.payload), 6)
        }
        key = frames.INITIAL_WINDOW_SIZE.to_bytes(2, "big")
        self.initial = int.from_bytes(announced[key], "big")
        self.window = CONNECTION_WINDOW  # of the connection
        self.unbegun = 0  # streams for which the connection has no window
        self.windows: dict[int, int] = {}
        self.sent: dict[int, int] = {}

    def _accept(self, _connection: ServerConnection, head: RequestHead) -> Http2Call:
        self.calls.append(Http2Call(self.listener, Peer(), head, "test.Service", self._method))
        return self.calls[-1]

    async def begin(self, stream: int, first: bytes) -> None:
        """Begin a call, as the loop reads it: outside of a task."""
        self.windows[stream] = self.initial
        self.sent[stream] = 0
        if self.window < len(first):
            self.unbegun += 1
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(self.client.send, frame(frames.HEADERS, END_HEADERS, stream, BLOCK))
        loop.call_soon(self._send, stream, first)
        await asyncio.sleep(0)
        self.read()

    async def fill(self, stream: int, most: int) -> None:
        """Send up to `most` bytes, as far as the server gives credit."""
        while size := min(self.window, self.windows[stream], FRAME, most - self.sent[stream]):
            self._send(stream, bytes(size))
            await asyncio.sleep(0)
            self.read()

    def _send(self, stream: int, data: bytes) -> None:
        self.window -= len(data)
        self.windows[stream] -= len(data)
        self.sent[stream] += len(data)
        self.client.send(frame(frames.DATA, 0, stream, data))

    def read(self) -> None:
        for each in self.client.taken():
            if each.kind == frames.RST_STREAM:
                assert each.payload == NO_ERROR, "the server needs no more of the request"
            if each.kind == frames.WINDOW_UPDATE and each.stream:
                self.windows[each.stream] += frames.number_in(each.payload)
            elif each.kind == frames.WINDOW_UPDATE:
                self.window += frames.number_in(each.payload)


async def waiting_streams(caller: Caller, count: int) -> None:
    for stream in range(1, 2 * count, 2):
        await caller.begin(stream, message(b"q"))
        await caller.fill(stream, MIB)


async def test_streams_of_requests_hold_little_while_their_handlers_wait() -> None:
    waiting, released = 0, asyncio.Event()

    async def wait_after_one(_service: str, _method: Method, requests: Any, _call: Any) -> None:
        nonlocal waiting
        each: AsyncIterator[bytes] = requests
        assert await anext(each) == b"q"
        waiting += 1
        await released.wait()

    caller = Caller(Method("Talk", never, Raw, True, True), wait_after_one)
    await waiting_streams(caller, CALLS)
    held = [call._buffered for call in caller.calls]
    assert waiting + caller.unbegun == CALLS
    assert max(held) <= LOOKAHEAD_BYTES
    # A frame has credit until its stream has taken it.
    assert sum(max(0, each - HELD_BYTES) for each in held) <= CONNECTION_WINDOW + FRAME
    assert caller.window < FRAME, "the client may send no more"
    released.set()  # the calls end, and what they held has credit again
    for _ in range(3):
        await asyncio.sleep(0)
        caller.read()
    assert caller.window > CONNECTION_WINDOW // 2


async def test_a_handler_that_reads_gets_all_although_others_wait() -> None:
    sizes: list[int] = []

    async def read_all(_service: str, _method: Method, requests: Any, _call: Any) -> None:
        each: AsyncIterator[bytes] = requests
        if await anext(each) == b"q":
            await asyncio.Event().wait()
        async for body in each:
            sizes.append(len(body))

    caller = Caller(Method("Talk", never, Raw, True, True), read_all)
    await waiting_streams(caller, 8)
    last = 2 * 8 + 1
    await caller.begin(last, message(b"r") + PREFIX.pack(0, 2 * CONNECTION_WINDOW))
    head = len(message(b"r")) + PREFIX.size
    await caller.fill(last, head + 2 * CONNECTION_WINDOW)
    await asyncio.sleep(0)
    assert sizes == [2 * CONNECTION_WINDOW], "one message may be larger than the window"
    caller.client.server.connection_lost(None)
    await asyncio.sleep(0)


async def test_a_large_request_gets_credit_when_it_is_admitted() -> None:
    body = MIB

    async def sizes(_service: str, _method: Method, request: bytes, _call: Any) -> bytes:
        arrived.append(len(request))
        return b""

    arrived: list[int] = []
    caller = Caller(Method("Put", never, Raw, False, False), sizes)
    await caller.begin(1, PREFIX.pack(0, body))
    await caller.fill(1, PREFIX.size + body)
    await asyncio.sleep(0)
    assert arrived == [body]
