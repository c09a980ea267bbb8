"""gRPC between the processes of one virtual loop, over the network of `replication/network.py`:
what `aerobee_chassis.rpc` calls and serves, as it does over sockets.

Real: services, handlers, messages as bytes. Made up: the wire. A call to a process that has ended
is refused; one to a machine that is gone, or is isolated, is given up after CONNECT_S; a stream
whose peer does not answer ends after KEEP_ALIVE_S.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

from google.protobuf.message import Message

from aerobee_broker.errors import StreamBroken
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.services import Method, Service
from aerobee_chassis.rpc.transport import CHANNEL_CLOSED, CallFailed, Run, parsed_each, serialized
from aerobee_wire.access.caller import ANYBODY
from support.replication.network import End, SimulatedNetwork, Stream
from support.simulation.process_loop import PROCESS, Process

CONNECT_S = 3.0
KEEP_ALIVE_S = 20.0
LOOK_S = 1.0
BROKEN = "UNAVAILABLE", "the connection is lost"


class SimulatedTransport:
    """`machines`: address → number in the network. `off`: machines that are gone, which refuse
    nothing."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.machines: dict[str, int] = {}
        self.off: set[int] = set()
        self._listeners: dict[str, tuple[SimulatedListener, Process]] = {}
        self._silent: dict[Stream, float] = {}  # since when, in seconds of the loop

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Of the transports of the chassis."""
        with (
            mock.patch("aerobee_chassis.rpc.caller.Http2Channel", self._open_channel),
            mock.patch("aerobee_chassis.rpc.server.Http2Listener", self._make_listener),
        ):
            yield

    def _open_channel(self, target: str, *_: object) -> SimulatedChannel:
        return SimulatedChannel(self, target, _own().number)

    def _make_listener(
        self, services: Sequence[Service], run: Run, *_: object, tls: object, **__: object
    ) -> SimulatedListener:
        assert tls is None, "the simulated network has no TLS"
        return SimulatedListener(self, services, run)

    # ---- who listens ----

    def listen(self, address: str, listener: SimulatedListener) -> None:
        """Raises OSError."""
        known = self._listeners.get(address)
        if known is not None and not known[1].is_over:
            raise OSError("the port is in use")
        self._listeners[address] = listener, _own()

    def forget(self, address: str) -> None:
        self._listeners.pop(address, None)

    async def connect(self, address: str) -> None:
        """A socket's. Raises ConnectionRefusedError; waits for ever where nobody answers."""
        await asyncio.sleep(self.network.delay_s())
        source, target = _own().number, self.machines[address]
        if not self.reaches(source, target):
            await asyncio.Event().wait()
        if not self._listens(address):
            raise ConnectionRefusedError(address)

    def reaches(self, source: int, target: int) -> bool:
        both = self.network.passes(source, target) and self.network.passes(target, source)
        return both and not {source, target} & self.off

    def _listens(self, address: str) -> bool:
        known = self._listeners.get(address)
        return known is not None and not known[1].is_over

    # ---- streams ----

    async def open(self, address: str, source: int, path: str) -> Stream:
        """Raises CallFailed."""
        await asyncio.sleep(self.network.delay_s())
        target = self.machines[address]
        try:
            if not self.reaches(source, target):
                raise StreamBroken("nobody answers")
            stream = self.network.connect(source, target)
        except StreamBroken:
            await asyncio.sleep(CONNECT_S)
            raise CallFailed("UNAVAILABLE", f"{address} does not answer") from None
        if not self._listens(address):
            self.network.forget(stream)
            raise CallFailed("UNAVAILABLE", f"{address} refuses the connection")
        listener, process = self._listeners[address]
        process.spawn(listener.serve(path, stream, process.number))
        return stream

    def end(self, stream: Stream) -> None:
        self.network.forget(stream)
        self._silent.pop(stream, None)
        stream.break_off()

    async def keep_alive(self) -> None:
        """Ends streams whose peers do not answer. A task of no process, without an end."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_S)
            for stream in self.network.streams():
                if self.reaches(*stream.way):
                    self._silent.pop(stream, None)
                elif loop.time() - self._silent.setdefault(stream, loop.time()) >= KEEP_ALIVE_S:
                    self.end(stream)


def _own() -> Process:
    process = PROCESS.get()
    assert process is not None, "a process calls and listens"
    return process


class SimulatedChannel:
    """`Channel`."""

    def __init__(self, transport: SimulatedTransport, address: str, source: int) -> None:
        self._transport = transport
        self._address = address
        self._source = source
        self._streams: dict[Stream, None] = {}  # in the order of their begin, as below
        self._closed = False

    async def unary(self, path: str, request: bytes, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s), self.exchange(path) as exchange:
                await exchange.write(request)
                answer = await exchange.read()
        except TimeoutError:
            raise CallFailed("DEADLINE_EXCEEDED", f"no answer in {timeout_s} s") from None
        if answer is None:
            raise CallFailed("INTERNAL", "no answer")
        return answer

    async def stream(self, path: str, request: bytes) -> AsyncGenerator[bytes, None]:
        async with self.exchange(path) as exchange:
            await exchange.write(request)
            while (answer := await exchange.read()) is not None:
                yield answer

    @contextlib.asynccontextmanager
    async def exchange(self, path: str) -> AsyncIterator[SimulatedExchange]:
        if self._closed:
            raise CallFailed(*CHANNEL_CLOSED)
        stream = await self._transport.open(self._address, self._source, path)
        self._streams[stream] = None
        try:
            yield SimulatedExchange(stream.near, lambda: self._closed)
        finally:
            self._streams.pop(stream, None)
            self._transport.end(stream)

    async def close(self) -> None:
        self._closed = True
        for stream in list(self._streams):
            self._transport.end(stream)


class SimulatedExchange:
    """`Exchange`. Messages: ("message", bytes), ("end",), ("failed", Failure)."""

    def __init__(self, end: End, is_closed: Any) -> None:
        self._end = end
        self._is_closed = is_closed
        self._over: tuple[Any, ...] | None = None

    async def write(self, message: bytes) -> None:
        try:
            await self._end.send(("message", message))
        except StreamBroken:
            raise self._broken() from None

    async def done_writing(self) -> None:
        with contextlib.suppress(StreamBroken):
            await self._end.send(("end",))

    async def read(self) -> bytes | None:
        received = self._over or await self._end.receive()
        match received:
            case ("message", bytes(data)):
                return data
            case ("end",):
                self._over = received
                return None
            case ("failed", Failure() as failure):
                self._over = received
                raise CallFailed(failure.status, failure.message, failure.trailers)
        raise self._broken()

    def _broken(self) -> CallFailed:
        return CallFailed(*(CHANNEL_CLOSED if self._is_closed() else BROKEN))


class SimulatedListener:
    """`Listener`."""

    def __init__(
        self, transport: SimulatedTransport, services: Sequence[Service], run: Run
    ) -> None:
        self._transport = transport
        self._run = run
        self._address = ""
        self._calls: dict[asyncio.Task[Any], None] = {}
        self._methods = {
            f"/{service.name}/{method.name}": (service.name, method)
            for service in services
            for method in service.methods
        }

    def bind(self, target: str, listeners: Sequence[object] = ()) -> int:
        assert not listeners, "the simulated network has no sockets"
        self._address = target
        return int(target.rpartition(":")[2])

    async def start(self) -> None:
        self._transport.listen(self._address, self)

    async def stop(self, grace_s: float) -> None:
        self._transport.forget(self._address)
        if self._calls:
            await asyncio.wait(self._calls, timeout=grace_s)
        for call in list(self._calls):
            call.cancel()

    async def serve(self, path: str, stream: Stream, number: int) -> None:
        """One call, as a task of the process that listens."""
        if stream.is_broken:  # while this process was paused
            return
        task = asyncio.current_task()
        assert task is not None
        self._calls[task] = None
        requests: asyncio.Queue[bytes | None] = asyncio.Queue()
        pump = asyncio.create_task(_pump(stream.far, requests, task))
        try:
            outcome = await self._outcome(path, requests, SimulatedCall(stream.far))
        except asyncio.CancelledError:
            outcome = Failure("CANCELLED", "the call is cancelled")
        finally:
            pump.cancel()
            self._calls.pop(task, None)
        with contextlib.suppress(StreamBroken):
            if isinstance(outcome, Failure):
                await stream.far.send(("failed", outcome))
            else:
                if outcome is not None:
                    await stream.far.send(("message", serialized(outcome)))
                await stream.far.send(("end",))

    async def _outcome(
        self, path: str, requests: asyncio.Queue[bytes | None], call: SimulatedCall
    ) -> Message | Failure | None:
        if path not in self._methods:
            return Failure("UNIMPLEMENTED", "Method not found!")
        service, method = self._methods[path]
        return await self._run(service, method, await _request(method, requests), call)


async def _request(method: Method, requests: asyncio.Queue[bytes | None]) -> Any:
    if not method.client_streams:
        return await requests.get()

    async def each() -> AsyncIterator[bytes]:
        while (data := await requests.get()) is not None:
            yield data

    return parsed_each(method, each())


async def _pump(
    end: End, requests: asyncio.Queue[bytes | None], handler: asyncio.Task[Any]
) -> None:
    """What the caller sends; cancels the handler once the caller has gone."""
    while (received := await end.receive()) is not None:
        requests.put_nowait(received[1] if received[0] == "message" else None)
    requests.put_nowait(None)
    handler.cancel()


class SimulatedCall:
    """`Call`."""

    metadata: Mapping[str, str] = {}
    peer = "10.0.0.7:4711"
    certificate_uris: tuple[str, ...] = ()
    is_encrypted: bool = False
    caller = ANYBODY

    def __init__(self, end: End) -> None:
        self._end = end

    def time_remaining_s(self) -> float | None:
        return None

    def delay_answer(self, seconds: float) -> None:
        raise AssertionError("no call is signed here")

    async def write(self, message: Message | bytes) -> None:
        with contextlib.suppress(StreamBroken):  # its handler is cancelled
            await self._end.send(("message", serialized(message)))

    async def write_all(self, messages: Iterable[Message | bytes]) -> None:
        for message in messages:
            await self.write(message)
