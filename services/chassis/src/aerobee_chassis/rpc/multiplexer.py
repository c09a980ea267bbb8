"""Make many unary calls that arrive on one stream.

A call of its own costs a server headers, trailers, a deadline and three operations of gRPC. A
message of an open stream costs half as much. Each call is admitted, authorized, limited, audited
and measured like a call of its own, because the server runs both in the same way.

The messages of the stream are a contract of the server's owner, who passes them as `Frames`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from aerobee_chassis.rpc.call import Call, Failure
from aerobee_chassis.rpc.in_flight import WAIT_S, InFlight, TooMuchInFlight
from aerobee_chassis.rpc.services import Method, Service
from aerobee_chassis.rpc.transport import Admit, Refuse, Run
from aerobee_wire.access.caller import ANYBODY

_CANCELLED = Failure("CANCELLED", "the call was cancelled")
_UNKNOWN_METHOD = Failure("UNIMPLEMENTED", "Method not found!")
# Of the keys and values of one call, as gRPC rejects larger headers.
MAX_METADATA_BYTES = 16 * 1024
_LARGE_METADATA = Failure(
    "RESOURCE_EXHAUSTED", f"the metadata of a call may have {MAX_METADATA_BYTES} bytes"
)
_NOT_SENT = Failure("INTERNAL", "internal error: see the log of the server")


class CallFrame(Protocol):
    """A call, or the cancellation of one, as it arrives on the stream."""

    @property
    def id(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def request(self) -> bytes: ...
    @property
    def timeout_ms(self) -> int: ...
    @property
    def metadata(self) -> Mapping[str, str]: ...
    @property
    def cancel(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Frames:
    """The contract of the stream.

    `service` has the RPC Multiplex, whose requests are like `CallFrame`. `success` and `failure`
    return the frame that answers the call with an id. `duplicate` returns the error that ends a
    stream with two calls of one id.
    """

    service: ServiceDescriptor
    success: Callable[[int, bytes], Message]
    failure: Callable[[int, Failure], Message]
    duplicate: Callable[[int], Exception]


class Multiplexer:
    """Implement the RPC Multiplex for the unary RPCs of `services`.

    At most `max_calls` of a stream are in progress; gRPC holds further frames back. A stream
    accepts calls for `max_age_s`, because the certificate of its caller may expire. None: without a
    limit.
    """

    def __init__(
        self,
        frames: Frames,
        services: Iterable[Service],
        run: Run,
        admit: Admit,
        *,
        refuse: Refuse,
        in_flight: InFlight,
        max_calls: int,
        max_age_s: float | None = None,
    ) -> None:
        self.max_calls = max_calls
        self.frames = frames
        self.run = run
        self.admit = admit
        self.refuse = refuse
        self.in_flight = in_flight
        self.methods: Mapping[str, tuple[str, Method]] = {
            f"/{service.name}/{method.name}": (service.name, method)
            for service in services
            for method in service.methods
            if not method.server_streams and not method.client_streams
        }
        self._max_age_s = max_age_s
        self._is_closed = False
        self._streams: dict[_Stream, asyncio.Task[Any]] = {}

    async def multiplex(self, requests: AsyncIterator[CallFrame], call: Call) -> None:
        """Make the calls of a stream until the caller or the server ends it."""
        if self._is_closed:  # the call arrived before the port was closed
            return
        task = asyncio.current_task()
        assert task is not None, "a handler runs in a task"
        stream = _Stream(self, call)
        self._streams[stream] = task
        aging: asyncio.TimerHandle | None = None
        if self._max_age_s is not None:
            loop = asyncio.get_running_loop()
            aging = loop.call_later(self._max_age_s, stream.close, task)
        try:
            try:
                await stream.read(requests)
            except asyncio.CancelledError:
                # The caller may leave, or lose its right, in the loop iteration of the close.
                if not stream.is_closing or task.uncancel():
                    raise
            await stream.drain()
        finally:
            if aging is not None:
                aging.cancel()
            del self._streams[stream]
            stream.cancel()
            await stream.drain()  # so that no handler runs after the server has stopped

    def close(self) -> None:
        """End each stream after its calls in progress. Later frames and streams are not read."""
        self._is_closed = True
        for stream, task in self._streams.items():
            stream.close(task)


class _Stream:
    """The calls of one stream."""

    def __init__(self, server: Multiplexer, call: Call) -> None:
        self._server = server
        self._call = call
        self._loop = asyncio.get_running_loop()
        # They are the same for all calls of the stream.
        self._peer = call.peer
        self._running: dict[int, asyncio.Task[None]] = {}  # calls without an answer, by their ids
        self._tasks: dict[asyncio.Task[None], MultiplexedCall] = {}  # also those that only answer
        self.is_closing = False

    def close(self, task: asyncio.Task[Any]) -> None:
        """End the read in `task`, so that it only waits for the calls in progress."""
        if not self.is_closing:
            self.is_closing = True
            task.cancel()

    async def read(self, requests: AsyncIterator[CallFrame]) -> None:
        """Make calls until the end of the requests. Raises the error of a duplicate id."""
        server, running, loop = self._server, self._running, self._loop
        async for frame in requests:
            number = frame.id
            if frame.cancel:
                if (cancelled := running.get(number)) is not None:
                    self._tasks[cancelled].cancel(cancelled)
                continue
            if number in running:
                raise server.frames.duplicate(number)
            while len(self._tasks) >= server.max_calls:
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            found, request = server.methods.get(frame.path), frame.request
            outcome: Message | Failure | None = None
            call = MultiplexedCall(self._call, self._peer, frame, loop)
            if found is None:
                outcome = _UNKNOWN_METHOD
            elif call.has_large_metadata:
                outcome = _LARGE_METADATA
            elif (refusal := await self._hold(found[1], len(request))) is None:
                call.held = len(request)
            else:
                outcome = server.refuse(found[1], refusal)
            if outcome is not None:  # its bytes do not count as in flight
                request = b""
            task = loop.create_task(self._make(number, found, request, call, outcome))
            running[number], self._tasks[task] = task, call
            task.add_done_callback(partial(self._ended, number))
            del frame, request  # they hold bytes while the stream waits

    async def drain(self) -> None:
        """Wait until the calls in progress are answered."""
        self.is_closing = True  # a close must not cancel this wait
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancel the calls in progress, because the caller has left."""
        for task, call in self._tasks.items():
            call.cancel(task)

    async def _hold(self, method: Method, size: int) -> TooMuchInFlight | None:
        """Wait until a request fits into the bytes in flight. Return the error if it is refused."""
        in_flight = self._server.in_flight
        if in_flight.hold(size):
            return None
        now_s = self._loop.time()
        reader = _Reader(in_flight, method, size, self._loop)
        in_flight.admit(reader, now_s)
        if reader.outcome.done():
            return reader.outcome.result()
        expiry = self._loop.call_later(WAIT_S, in_flight.expire, now_s + WAIT_S)
        try:
            return await reader.outcome
        except asyncio.CancelledError:
            if reader.outcome.cancelled():
                in_flight.forget(reader)
            elif reader.outcome.result() is None:
                # The request was admitted and the stream cancelled in one loop iteration.
                in_flight.done(size)
            raise
        finally:
            expiry.cancel()

    async def _make(
        self,
        number: int,
        found: tuple[str, Method] | None,
        request: bytes,
        call: MultiplexedCall,
        outcome: Message | Failure | None,
    ) -> None:
        """Make a call and answer it. `outcome` is not None if it is known without the handler."""
        server = self._server
        try:
            if outcome is None and found is not None:
                service, method = found
                admitted = server.admit(service, method, call)
                if isinstance(admitted, Failure):
                    outcome = admitted
                else:
                    call.caller = admitted
                    handling = server.run(service, method, request, call)
                    request = b""  # its bytes would stay in memory beside the parsed message
                    outcome = await handling
            if call.delay_s:
                request = b""  # a rejected call has it still
                self._release(call)
                await asyncio.sleep(call.delay_s)
        except asyncio.CancelledError:
            if not call.cancelled():  # by the server, so the caller waits for an answer
                await self._call.write(server.frames.failure(number, _CANCELLED))
            raise
        answer = self._answer(number, outcome)
        del self._running[number]  # the caller may use the id again when it gets the answer
        await self._call.write(answer)

    def _answer(self, number: int, outcome: Any) -> Message:
        frames = self._server.frames
        if isinstance(outcome, Failure):
            return frames.failure(number, outcome)
        try:
            return frames.success(number, outcome.SerializeToString())
        except Exception as error:  # the response cannot be serialized, which is a bug
            self._loop.call_exception_handler(
                {"message": "a response could not be serialized", "exception": error}
            )
            return frames.failure(number, _NOT_SENT)

    def _release(self, call: MultiplexedCall) -> None:
        held, call.held = call.held, 0
        if held:
            self._server.in_flight.done(held)

    def _ended(self, number: int, task: asyncio.Task[None]) -> None:
        self._release(self._tasks.pop(task))
        if self._running.get(number) is task:
            del self._running[number]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": "an answer could not be sent", "exception": error}
            )


class _Reader:
    """A request that has arrived and waits for its share of the bytes in flight (`Reader`)."""

    __slots__ = ("_in_flight", "_size", "kind", "outcome")

    def __init__(
        self, in_flight: InFlight, method: Method, size: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._in_flight = in_flight
        self._size = size
        self.kind = id(method)
        self.outcome: asyncio.Future[TooMuchInFlight | None] = loop.create_future()

    def read(self, reserved: int) -> None:
        is_held = not self.outcome.done()  # otherwise the stream has ended
        self._in_flight.arrived(self, reserved, self._size if is_held else 0)
        if is_held:
            self.outcome.set_result(None)

    def refuse(self, error: TooMuchInFlight) -> None:
        if not self.outcome.done():
            self.outcome.set_result(error)


class MultiplexedCall:
    """Implement `Call` for one call of a stream."""

    __slots__ = ("_cancelled", "_deadline_s", "_loop", "_stream", "caller", "delay_s",
                 "has_large_metadata", "held", "metadata", "peer")  # fmt: skip

    def __init__(
        self, stream: Call, peer: str, frame: CallFrame, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._stream = stream
        self._loop = loop
        timeout_ms = frame.timeout_ms
        self._deadline_s = loop.time() + timeout_ms / 1_000 if timeout_ms > 0 else None
        self._cancelled = False
        self.peer = peer
        metadata = dict(frame.metadata)
        size = sum(len(key) + len(value) for key, value in metadata.items())
        self.has_large_metadata = size > MAX_METADATA_BYTES
        # It does not count as in flight.
        self.metadata: Mapping[str, str] = {} if self.has_large_metadata else metadata
        self.caller = ANYBODY  # until it is admitted
        self.delay_s = 0.0  # before the answer
        self.held = 0  # bytes of the request that count as in flight

    @property
    def certificate_uris(self) -> tuple[str, ...]:
        return self._stream.certificate_uris

    @property
    def is_encrypted(self) -> bool:
        return self._stream.is_encrypted

    def time_remaining_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - self._loop.time())

    def cancelled(self) -> bool:
        return self._cancelled

    def delay_answer(self, seconds: float) -> None:
        self.delay_s = seconds

    def cancel(self, task: asyncio.Task[None]) -> None:
        """Cancel the task of this call for its caller, who does not wait for an answer."""
        self._cancelled = True
        task.cancel()

    async def write(self, message: Message | bytes) -> None:
        await self.write_all((message,))

    async def write_all(
        self, messages: Iterable[Message | bytes], *, more_follows: bool = False
    ) -> None:
        raise TypeError("this RPC has one response: return it")
