"""Any order of frames, handlers and checks: each call ends once, and no bytes stay in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.http2.server_call import Http2Call
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_chassis.rpc.services import Method
from aerobee_chassis.rpc.transport import Admit, Refuse, Run, refuse_plainly
from aerobee_http2 import frames
from aerobee_http2.frames import END_HEADERS, END_STREAM, frame
from aerobee_http2.hpack import encoded
from aerobee_http2.request_head import RequestHead
from aerobee_http2.server import ServerConnection
from aerobee_wire.access.caller import ANYBODY
from support.client.http2_client import FIELDS, FakeClient
from support.client.http2_server import message


class Raw:
    @staticmethod
    def FromString(data: bytes) -> bytes:
        return data


async def never(_request: Any, _call: Any) -> None:
    """`run` calls no handler."""


METHODS = {
    name: Method(name, never, Raw, server_streams=server, client_streams=client)
    for name, server, client in (
        ("echo", False, False), ("wait", False, False), ("fail", False, False),
        ("delay", False, False), ("many", True, False), ("talk", True, True),
        ("deaf", True, True), ("denied", False, False), ("slow_denied", False, False),
        ("stubborn", False, False),
    )
}  # fmt: skip
BODY = bytes(3_000)


class Listening:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.in_flight = InFlight(40_000, largest_request=10_000)
        self.limits = PortLimits()
        self.active: set[Http2Call] = set()
        self.go = asyncio.Event()
        self.running = 0
        self.client = FakeClient(accept=self._accept)
        self.now_s: Callable[[], float] = lambda: self.client.now_s
        self.run: Run = self._run
        self.refuse: Refuse = refuse_plainly
        self.admit: Admit = self._admit

    def _admit(self, _service: str, method: Method, call: Any) -> Any:
        if method.name == "slow_denied":
            call.delay_answer(0.001)
        return Failure("PERMISSION_DENIED", "no") if "denied" in method.name else ANYBODY

    def _accept(self, _connection: ServerConnection, head: RequestHead) -> Http2Call:
        method = METHODS[head.path.rpartition("/")[2]]

        class Peer:
            address, certificate_uris, is_encrypted = "127.0.0.1:1", (), False

        call = Http2Call(self, Peer(), head, "test.Service", method)
        self.active.add(call)
        return call

    async def _run(self, _service: str, method: Method, request: Any, call: Any) -> Any:
        self.running += 1
        try:
            return await self._handled(method.name, request, call)
        finally:
            self.running -= 1

    async def _handled(self, name: str, request: Any, call: Any) -> Any:
        match name:
            case "wait":
                await self.go.wait()
            case "stubborn":
                try:
                    await self.go.wait()
                except asyncio.CancelledError:
                    await asyncio.sleep(0)
                    return b"late"
            case "delay":
                call.delay_answer(0.001)
            case "fail":
                return Failure("NOT_FOUND", "no é", (("why", "because"),))
            case "many":
                for _ in range(4):
                    await call.write_all([BODY, b""])
                return None
            case "talk":
                requests: AsyncIterator[bytes] = request
                async for each in requests:
                    await call.write(each)
                return b"last"
            case "deaf":
                await self.go.wait()
                return None
        return b"a" * 2_000

    def ended(self, call: Http2Call) -> None:
        self.active.discard(call)

    def watch(self) -> None:
        """The test looks by itself."""

    def due(self, at_s: float) -> None:
        """The test advances the clock itself."""

    def look(self) -> None:
        in_flight = self.in_flight
        in_flight.expire(self.loop.time())
        for check in (Http2Call.hurry, lambda each: each.check_reader(2)):
            for call in tuple(self.active):
                check(call)
        for call in tuple(self.active):
            call.check_arrival(3)
        for call in tuple(self.active):
            call.check_deadline(self.client.now_s)


STREAMS = st.integers(0, 6)
STEPS = st.one_of(
    st.tuples(st.just("begin"), STREAMS, st.sampled_from(sorted(METHODS)), st.booleans()),
    st.tuples(st.just("data"), STREAMS, st.sampled_from([0, 1, 4, 3_000, 12_000]), st.booleans()),
    st.tuples(st.just("part"), STREAMS, st.integers(1, 40), st.booleans()),
    st.tuples(st.just("reset"), STREAMS),
    st.tuples(st.just("widen"), STREAMS, st.sampled_from([0, 1, 10_000])),
    st.tuples(st.just("settings"), st.sampled_from([0, 1, 100, 65_535])),
    st.tuples(st.sampled_from(["look", "turn", "go", "pause", "resume", "drain", "ack", "clock"])),
)


# Requests that are read and do not arrive. The next one waits until they end with the connection.
BUSY = [("begin", 0, "delay", False)] * 3


class Steps:
    """Take the steps of one example. Places are those of calls that have begun."""

    def __init__(self) -> None:
        self.listening = Listening()
        self._numbers: dict[int, int] = {}  # of streams, by place
        self._following = 1

    def take(self, step: tuple[Any, ...]) -> None:
        """Send the frames of a step as the loop reads them, or let something else happen."""
        name, *values = step
        if name in ("look", "turn", "go", "pause", "resume", "drain", "clock"):
            self._happen(name)
            return
        sent = self._of_connection(name, values) or self._of_call(name, values)
        if sent:
            self.listening.loop.call_soon(self.listening.client.send, sent)

    def _happen(self, name: str) -> None:
        listening, client = self.listening, self.listening.client
        match name:
            case "look":
                listening.loop.call_soon(listening.look)
            case "go":
                listening.go.set()
            case "pause":
                client.server.pause_writing()
            case "resume":
                client.server.resume_writing()
            case "drain":
                client.server.drain()
            case "clock":
                client.now_s += 3

    def _of_connection(self, name: str, values: list[Any]) -> bytes:
        match name:
            case "begin":
                return self._begun(*values)
            case "settings":
                return frames.settings((frames.INITIAL_WINDOW_SIZE, values[0]))
            case "ack":
                return frame(frames.PING, frames.ACK, 0, b"draining")
            case "widen" if values[0] not in self._numbers:
                return frames.window_update(0, values[1] or 1)
        return b""

    def _of_call(self, name: str, values: list[Any]) -> bytes:
        number = self._numbers.get(values[0]) if values else None
        if number is None:
            return b""
        match name:
            case "data" | "part":
                size, ends = values[1:]
                data = message(bytes(size)) if name == "data" else message(bytes(30))[:size]
                return frame(frames.DATA, END_STREAM if ends else 0, number, data)
            case "reset":
                return frames.reset(number, frames.CANCEL)
            case "widen":
                return frames.window_update(number, values[1])
        return b""

    def _begun(self, place: int, name: str, ends: bool) -> bytes:
        number = self._numbers[place] = self._following
        self._following += 2
        own = ((":path", f"/test.Service/{name}"), ("grpc-timeout", "5S"))
        block = encoded((*((key, value) for key, value in FIELDS if key != ":path"), *own))
        flags = END_HEADERS | (END_STREAM if ends else 0)
        return frame(frames.HEADERS, flags, number, block)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None, max_examples=100)
@given(st.lists(STEPS, max_size=40))
@example([*BUSY, ("begin", 0, "delay", True)])
@example([*BUSY, ("begin", 0, "echo", False), ("data", 0, 4, True)])
def test_nothing_is_left_of_any_calls(steps: list[tuple[Any, ...]]) -> None:
    async def run() -> None:
        taken = Steps()
        listening, client = taken.listening, taken.listening.client
        errors: list[dict[str, Any]] = []
        listening.loop.set_exception_handler(lambda _, context: errors.append(context))
        for step in steps:
            taken.take(step)
            await asyncio.sleep(0)
            client.taken()
        client.server.connection_lost(None)
        for _ in range(20):
            await asyncio.sleep(0)
        await asyncio.sleep(0.003)
        in_flight = listening.in_flight
        assert not errors
        assert not listening.active, [each.head.path for each in listening.active]
        assert (in_flight.requests, in_flight.answers, in_flight.waiting) == (0, 0, 0)
        assert not in_flight.is_reading
        assert listening.running == 0
        assert not client.server._streams and not client.server._ready

    asyncio.run(run())
