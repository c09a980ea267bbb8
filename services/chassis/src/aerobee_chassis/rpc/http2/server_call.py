"""Serve one call, from its headers to its status (`aerobee_http2.server_stream`).

The request is read when `InFlight` admits the call. Then a handler runs as a task, whose first step
runs at once: most calls have arrived whole by then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from google.protobuf.message import Message

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.connections import late
from aerobee_chassis.rpc.in_flight import LOOKAHEAD_BYTES, InFlight, TooMuchInFlight
from aerobee_chassis.rpc.services import Method
from aerobee_chassis.rpc.transport import Admit, Refuse, Run, parsed_each, serialized
from aerobee_chassis.turns import start_task
from aerobee_http2.calls import PREFIX
from aerobee_http2.request_head import RequestHead, trailers
from aerobee_http2.server_stream import ServerStream
from aerobee_wire.access.caller import ANYBODY

# The handler of a larger request starts in the next turn of the loop. Otherwise, the bytes would
# stay in memory during its first step, beside the parsed message.
EAGER_BYTES = 64 * 1024
# `InFlight` does not count streams of requests. While their handlers do not read, each one holds
# this much, and all of a connection hold the window of the connection.
UNREAD_BYTES = 64 * 1024

_CANCELLED = Failure("CANCELLED", "the call was cancelled")
_EXPIRED = Failure("DEADLINE_EXCEEDED", "the deadline of the call has passed")
_NO_REQUEST = Failure("INVALID_ARGUMENT", "the request is missing: send one message")
_NOT_SENT = Failure("INTERNAL", "internal error: see the log of the server")
_NOT_TAKEN = Failure(
    "RESOURCE_EXHAUSTED",
    "the caller read nothing of the answer for stalledClientTimeoutMillis: read it sooner, or ask "
    "for fewer messages",
)


class Peer(Protocol):
    """The other end of a connection."""

    address: str
    is_encrypted: bool

    @property
    def certificate_uris(self) -> tuple[str, ...]: ...


class Server(Protocol):
    """The part of a listener that its calls use."""

    loop: asyncio.AbstractEventLoop
    run: Run
    in_flight: InFlight
    refuse: Refuse
    admit: Admit
    limits: PortLimits
    now_s: Callable[[], float]

    def ended(self, call: Http2Call) -> None: ...

    def watch(self) -> None: ...

    def due(self, at_s: float) -> None: ...


class Http2Call(ServerStream):
    """Implement `Call`, and run one RPC."""

    __slots__ = (
        "_arriving",
        "_deadline_s",
        "_delay_s",
        "_has_answered",
        "_held",
        "_in_flight",
        "_is_cancelled",
        "_listener",
        "_looks",
        "_method",
        "_peer",
        "_reading",
        "_requests",
        "_service",
        "_task",
        "_unsent",
        "caller",
    )

    def __init__(
        self, listener: Server, peer: Peer, head: RequestHead, service: str, method: Method
    ) -> None:
        unread = UNREAD_BYTES if method.client_streams else None
        super().__init__(head, LOOKAHEAD_BYTES, listener.in_flight.largest_request, unread)
        self._listener = listener
        self._in_flight = listener.in_flight
        self._peer = peer
        self._service = service
        self._method = method
        self._deadline_s: float | None = None
        self._is_cancelled = False
        self._has_answered = False  # the outcome is known
        self._requests: _Requests | None = None
        self._reading = False  # a request that has not arrived yet
        self._held = 0  # bytes of the request, or reserved for it
        self._unsent = 0  # bytes of answers
        self._looks = 0  # checks by the listener since the caller took or sent something
        self._arriving = 0  # checks by the listener since the request began to be read
        self._delay_s = 0.0  # before anything more of the answer
        self._task: asyncio.Task[None] | None = None
        self.caller = ANYBODY  # until it is admitted

    # ---- view of the handler ----

    @property
    def metadata(self) -> Mapping[str, str]:
        return self.head.metadata

    @property
    def peer(self) -> str:
        return self._peer.address

    @property
    def certificate_uris(self) -> tuple[str, ...]:
        return self._peer.certificate_uris

    @property
    def is_encrypted(self) -> bool:
        return self._peer.is_encrypted

    def time_remaining_s(self) -> float | None:
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - self._listener.now_s())

    def delay_answer(self, seconds: float) -> None:
        self._delay_s = seconds

    async def write(self, message: Message | bytes) -> None:
        await self.write_all((message,))

    async def write_all(self, messages: Iterable[Message | bytes]) -> None:
        if not self._method.server_streams:
            raise TypeError("this RPC has one response: return it")
        if self._delay_s:
            await self._pause()
        if self._has_answered or self._is_cancelled:
            raise asyncio.CancelledError
        self._queue([serialized(message) for message in messages])
        if self.queued:
            sent = self._listener.loop.create_future()
            self.wait(sent)
            await sent

    # ---- from the headers to the status ----

    @property
    def task(self) -> asyncio.Task[None] | None:
        return self._task

    def begun(self) -> None:
        listener = self._listener
        if self.head.timeout_s is not None:
            self._deadline_s = listener.now_s() + self.head.timeout_s
            listener.due(self._deadline_s)
        admitted = listener.admit(self._service, self._method, self)
        if isinstance(admitted, Failure):
            if self._delay_s:
                self._start(self._end_later(admitted))
            else:
                self._end(admitted)
            return
        self.caller = admitted
        if self._method.client_streams:
            # Some callers wait for the headers of the answer before they send a request.
            self.connection.send_headers(self)
            self._requests = _Requests(self, listener.loop)
            self._start(self._run(parsed_each(self._method, self._requests)))
        else:
            listener.watch()
            self._in_flight.admit(self, listener.loop.time())

    @property
    def kind(self) -> object:
        return id(self._method)

    def read(self, reserved: int) -> None:
        self._held = reserved
        self._reading = True
        self.ask()

    def refuse(self, error: TooMuchInFlight) -> None:
        self._end(self._listener.refuse(self._method, error))

    def message(self, message: bytes | None) -> None:
        if self._requests is not None:
            self._requests.arrived(message)
            return
        size = 0 if message is None else len(message)
        self._stop_reading(size)
        if message is None:
            self._end(_NO_REQUEST)
        elif size <= EAGER_BYTES:
            self._start(self._run(message))
        else:
            self._take_task(self._listener.loop.create_task(self._run(message)))

    def unreadable(self, status: str, problem: str) -> None:
        if self._reading:
            self._stop_reading(0)
        elif self._task is None and self._requests is None:
            self._in_flight.forget(self)
        self._give_up(Failure(status, problem))

    def over(self, was_cancelled: bool) -> None:
        if self._reading:  # the rest of the request will not come
            self._stop_reading(0)
        if was_cancelled and not self._has_answered:
            self._is_cancelled = True
            if self._task is None:
                self._in_flight.forget(self)
                self._end(_CANCELLED)
            else:
                self._cancel()
        unsent, self._unsent = self._unsent, 0
        if unsent:
            self._in_flight.answered(unsent)
        self._check_ended()

    def _check_ended(self) -> None:
        if self.is_over and self._has_answered and self._task is None:
            self._listener.ended(self)

    def _stop_reading(self, size: int) -> None:
        self._reading = False
        reserved, self._held = self._held, size
        self._in_flight.arrived(self, reserved, size)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._take_task(start_task(self._listener.loop, coroutine))

    def _take_task(self, task: asyncio.Task[None]) -> None:
        if not task.done():
            self._task = task
            if self._has_answered or self._is_cancelled:  # it ended in the first step
                self._cancel()

    async def _run(self, request: Any) -> None:
        running = self._listener.run(self._service, self._method, request, self)
        del request  # otherwise its bytes stay in memory beside the parsed message
        try:
            outcome = await running
            if self._delay_s:
                self._release()
                await self._pause()
        except asyncio.CancelledError as cancelled:
            self._task = None
            self._end(_CANCELLED)
            # Without this, the task would keep the traceback and all objects of the handler.
            raise cancelled.with_traceback(None) from None
        self._task = None
        self._end(outcome)

    async def _end_later(self, failure: Failure) -> None:
        await self._pause()
        self._task = None
        self._end(failure)

    async def _pause(self) -> None:
        delay_s, self._delay_s = self._delay_s, 0.0
        await asyncio.sleep(delay_s)

    def _give_up(self, failure: Failure) -> None:
        """End a call with a failure, and cancel its handler."""
        self._end(failure)
        self._cancel()

    def _cancel(self) -> None:
        task = self._task
        if task is not None:
            task.cancel()
            # A task that is cancelled before its first step does not run `_end`.
            task.add_done_callback(self._on_cancelled)

    def _on_cancelled(self, _task: asyncio.Task[None]) -> None:
        self._task = None
        self._end(_CANCELLED)
        self._check_ended()

    def _end(self, outcome: Message | Failure | bytes | None) -> None:
        """Send the last message, or the failure, and the status."""
        if self._has_answered:
            return
        self._has_answered = True
        if not self._reading:
            self._release()
        if self.is_over:  # the caller has left
            self._check_ended()
            return
        self._looks = 0
        if isinstance(outcome, Failure):
            self._fail(outcome)
        elif outcome is None and self._method.server_streams:
            self.end()
        else:
            try:
                data = serialized(outcome)  # type: ignore[arg-type]
            except Exception as error:
                self._report(error)
                self._fail(_NOT_SENT)
                return
            size = PREFIX.size + len(data)
            self._unsent += size
            self._in_flight.answering(size)
            if not self.answer(data):
                self._listener.watch()

    def _fail(self, failure: Failure) -> None:
        if self.queued:
            self.discard_answer()
        try:
            block = trailers(failure.status, failure.message, failure.trailers)
        except UnicodeEncodeError as error:  # metadata is ASCII
            self._report(error)
            block = trailers(_NOT_SENT.status, _NOT_SENT.message)
        self.end(block)

    def _report(self, error: Exception) -> None:
        """Report an answer that cannot be sent, which is a bug."""
        self._listener.loop.call_exception_handler(
            {"message": "an answer could not be serialized", "exception": error}
        )

    def _release(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._in_flight.done(held)

    # ---- writing ----

    def _queue(self, batch: list[bytes]) -> None:
        size = self.queue(batch)
        self._unsent += size
        self._in_flight.answering(size)
        self.connection.send(self)
        if self.queued:
            self._listener.watch()

    def sent(self, size: int) -> None:
        self._looks = 0
        self._unsent -= size
        self._in_flight.answered(size)

    # ---- callers that delay others ----

    def hurry(self) -> None:
        """Refuse a call whose request is still incomplete since the last check, if others wait."""
        if self._reading:
            self._looks += 1
            if self._looks > 1:
                self._stop_reading(0)
                self._in_flight.too_slow(self)

    def check_arrival(self, late_looks: int) -> None:
        """End a call whose request is still incomplete after `late_looks` checks."""
        if self._reading:
            self._arriving += 1
            if self._arriving > late_looks:
                self._stop_reading(0)
                self._end(late(self._listener.limits))

    def check_reader(self, stalled_looks: int) -> None:
        """Cancel a call whose caller has read nothing of the answer for `stalled_looks` checks."""
        if self._unsent:
            self._looks += 1
            if self._looks > stalled_looks:
                self._in_flight.cut += 1
                self._has_answered = True
                self._release()
                self.cut(_NOT_TAKEN.status, _NOT_TAKEN.message)
                self._cancel()

    def check_deadline(self, now_s: float) -> float | None:
        """End a call whose deadline has passed. Return the deadline otherwise."""
        deadline_s = self._deadline_s
        if deadline_s is not None and deadline_s <= now_s:
            if self._has_answered:
                self.cut(_EXPIRED.status, _EXPIRED.message)
            else:
                if self._reading:
                    self._stop_reading(0)
                elif self._task is None:
                    self._in_flight.forget(self)
                self._give_up(_EXPIRED)
            return None
        return deadline_s


class _Requests:
    """Iterate over the requests of a stream as bytes.

    The caller gets credit for a request only when the handler asks for it.
    """

    def __init__(self, call: Http2Call, loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self._is_asking = False
        self._read: deque[bytes | None] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._read and not self._is_asking:
            self._is_asking = True
            self._call.ask()
        if not self._read:
            self._waiter = self._loop.create_future()
            await self._waiter
        data = self._read[0]
        if data is None:  # the end stays in the queue, so that another read gets the end again
            raise StopAsyncIteration
        self._read.popleft()
        return data

    def arrived(self, message: bytes | None) -> None:
        self._is_asking = False
        self._read.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
