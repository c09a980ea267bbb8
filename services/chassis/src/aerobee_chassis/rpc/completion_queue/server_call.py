"""Serve one call from gRPC's completion queue, from its arrival to its status.

An operation on the call (read, write, end) is started with the function that handles its event. The
request is read when `InFlight` admits the call. Then a handler runs as a task. The messages of one
`write_all` are sent one after the other, each in the event of the previous one, without waking the
handler.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from aerobee_chassis.addresses import is_relayed_tls, peer_address
from aerobee_chassis.clock import seconds_until
from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.completion_queue.cygrpc import cygrpc
from aerobee_chassis.rpc.completion_queue.loop import CompletionQueueLoop
from aerobee_chassis.rpc.connections import late
from aerobee_chassis.rpc.in_flight import InFlight, TooMuchInFlight
from aerobee_chassis.rpc.services import Method
from aerobee_chassis.rpc.transport import Admit, Refuse, Run, parsed_each, serialized
from aerobee_wire.access.caller import ANYBODY

STATUS_CODES = {status.name: status.value[0] for status in grpc.StatusCode}
_MORE_FOLLOWS = int(cygrpc.WriteFlag.buffer_hint)
_CANCELLED = Failure("CANCELLED", "the call was cancelled")
_NO_REQUEST = Failure("INVALID_ARGUMENT", "the request is missing: send one message")
_NO_DEADLINE_S = 1e12  # a call without a deadline has gRPC's infinite future, which is beyond this
_NOT_SENT = Failure("INTERNAL", "internal error: see the log of the server")
_NOT_TAKEN = (
    cygrpc.StatusCode.resource_exhausted,
    "the caller read nothing of the answer for stalledClientTimeoutMillis: read it sooner, or ask "
    "for fewer messages",
)


class Server(Protocol):
    """The part of a listener that its calls use."""

    loop: CompletionQueueLoop
    run: Run
    in_flight: InFlight
    refuse: Refuse
    admit: Admit
    limits: PortLimits
    has_plaintext: bool

    def ended(self, call: CompletionQueueCall) -> None: ...

    def watch(self) -> None: ...


def nothing(_event: Any) -> None:
    """Ignore the end of an operation."""


class CompletionQueueCall:
    """Implement `Call`, and run one RPC from its arrival to its status."""

    __slots__ = (
        "_arrival",
        "_arriving",
        "_cancelled",
        "_certificate_uris",
        "_closed",
        "_core",
        "_delay_s",
        "_ended",
        "_headers_sent",
        "_held",
        "_in_flight",
        "_is_encrypted",
        "_listener",
        "_looks",
        "_method",
        "_outgoing",
        "_peer",
        "_reading",
        "_requests",
        "_sending",
        "_sent_size",
        "_service",
        "_unsent",
        "caller",
        "task",
    )

    def __init__(self, listener: Server, event: Any, service: str, method: Method) -> None:
        self._listener = listener
        self._in_flight = listener.in_flight
        self._arrival = event
        self._core = event.call
        self._service = service
        self._method = method
        self._peer: str | None = None  # until it is asked for
        self._certificate_uris: tuple[str, ...] | None = None  # until they are asked for
        self._is_encrypted = False
        self._headers_sent = False
        self._cancelled = False
        self._closed = False  # by the caller, which sends nothing more
        self._ended = False  # by this server: the status is sent
        # Messages with their flags. After the messages of one write comes the future on which the
        # writer waits.
        self._outgoing: deque[tuple[bytes, int] | asyncio.Future[None]] = deque()
        self._sending = False  # the event of a sent message is still to come
        self._sent_size = 0  # bytes of that message
        self._requests: _Requests | None = None
        self._reading = False  # a request that has not arrived yet
        self._held = 0  # bytes of the request, or reserved for it
        self._unsent = 0  # bytes of answers
        self._looks = 0  # checks by the listener since the caller took or sent something
        self._arriving = 0  # checks by the listener since the request began to be read
        self._delay_s = 0.0  # before anything more of the answer
        self.task: asyncio.Task[None] | None = None
        self.caller = ANYBODY  # until it is admitted

    # ---- view of the handler ----

    @property
    def metadata(self) -> Mapping[str, str]:
        pairs = self._arrival.invocation_metadata
        return {key: value for key, value in pairs if isinstance(value, str)}

    @property
    def peer(self) -> str:
        if self._peer is None:  # several checks of a call ask for it
            self._peer = peer_address(self._core.peer().decode())
        return self._peer

    @property
    def certificate_uris(self) -> tuple[str, ...]:
        if self._certificate_uris is None:
            self._read_security()
        assert self._certificate_uris is not None
        return self._certificate_uris

    @property
    def is_encrypted(self) -> bool:
        if not self._listener.has_plaintext:
            return True
        if self._certificate_uris is None:
            self._read_security()
        return self._is_encrypted

    def _read_security(self) -> None:
        """Read what gRPC knows about the connection, once: it takes some 8 µs."""
        found = cygrpc.auth_context(self._core)
        uris = (uri.decode("ascii", "replace") for uri in found.get(b"peer_uri", ()))
        self._certificate_uris = tuple(uris)
        self._is_encrypted = b"ssl" in found.get(b"transport_security_type", ()) or is_relayed_tls(
            self._core.peer().decode()
        )

    def time_remaining_s(self) -> float | None:
        deadline = self._arrival.call_details.deadline
        return None if deadline > _NO_DEADLINE_S else max(0.0, seconds_until(deadline))

    def delay_answer(self, seconds: float) -> None:
        self._delay_s = seconds

    async def write(self, message: Message | bytes) -> None:
        await self.write_all((message,))

    async def write_all(
        self, messages: Iterable[Message | bytes], *, more_follows: bool = False
    ) -> None:
        if not self._method.server_streams:
            raise TypeError("this RPC has one response: return it")
        if self._delay_s:
            await self._pause()
        if self._ended or self._cancelled:
            raise asyncio.CancelledError
        batch = [serialized(message) for message in messages]
        if not batch:
            return
        size = sum(map(len, batch))
        # gRPC may delay a message until the next one. It may not delay a message that carries the
        # headers.
        flags = [_MORE_FOLLOWS] * len(batch)
        if not more_follows:
            flags[-1] = 0
        if not self._headers_sent:
            flags[0] = 0
        sent = self._listener.loop.create_future()
        self._unsent += size
        self._in_flight.answering(size)
        self._listener.watch()
        self._outgoing.extend(zip(batch, flags, strict=True))
        self._outgoing.append(sent)
        if not self._sending:
            self._send_next()
        await sent

    # ---- from arrival to status ----

    def begin(self) -> None:
        start = self._core.start_server_batch
        start((cygrpc.ReceiveCloseOnServerOperation(0),), self._on_close)
        admitted = self._listener.admit(self._service, self._method, self)
        if isinstance(admitted, Failure):
            if self._delay_s:
                self.task = self._listener.loop.create_task(self._end_later(admitted))
            else:
                self._end(admitted)
            return
        self.caller = admitted
        if self._method.client_streams:
            # Some callers wait for the headers of the answer before they send a request.
            start((self._headers(),), nothing)
            self._requests = _Requests(self._core, self._listener.loop)
            self._handle(parsed_each(self._method, self._requests))
        else:
            self._in_flight.admit(self, self._listener.loop.time())
            if self._in_flight.waiting:
                self._listener.watch()

    @property
    def kind(self) -> object:
        return id(self._method)

    def read(self, reserved: int) -> None:
        self._held = reserved
        self._reading = True
        self._listener.watch()
        self._core.start_server_batch((cygrpc.ReceiveMessageOperation(0),), self._on_request)

    def refuse(self, error: TooMuchInFlight) -> None:
        self._end(self._listener.refuse(self._method, error))

    def _on_request(self, event: Any) -> None:
        data = event.batch_operations[0].message()
        size = 0 if data is None else len(data)
        self._reading = False
        self._in_flight.arrived(self, self._held, size)
        self._held = size
        if data is None:
            self._end(_NO_REQUEST)
        elif self._ended:  # it was refused meanwhile
            self._release()
        else:
            self._handle(data)

    def _handle(self, request: Any) -> None:
        if self._cancelled:
            self._end(_CANCELLED)
        else:
            self.task = self._listener.loop.create_task(self._run(request))

    async def _run(self, request: Any) -> None:
        running = self._listener.run(self._service, self._method, request, self)
        del request  # otherwise its bytes stay in memory beside the parsed message
        try:
            outcome = await running
            if self._delay_s:
                self._release()
                await self._pause()
            if self._sending and not isinstance(outcome, Failure | None):
                # gRPC sends one message at a time, and another task is sending one.
                await self.write(outcome)
                outcome = None
        except asyncio.CancelledError as cancelled:
            self._end(_CANCELLED)
            # Without this, the task would keep the traceback and all objects of the handler.
            raise cancelled.with_traceback(None) from None
        except Exception as error:  # the last message cannot be serialized
            self._listener.loop.call_failed(error)
            outcome = _NOT_SENT
        self._end(outcome)

    async def _end_later(self, failure: Failure) -> None:
        await self._pause()
        self._end(failure)

    async def _pause(self) -> None:
        delay_s, self._delay_s = self._delay_s, 0.0
        await asyncio.sleep(delay_s)

    def _end(self, outcome: Any) -> None:
        """Send the last message, or the failure, and the status."""
        if self._ended:
            return
        self._ended = True
        failure = outcome if isinstance(outcome, Failure) else None
        operations = [] if self._headers_sent else [self._headers()]
        if failure is None and not (outcome is None and self._method.server_streams):
            try:
                data = serialized(outcome)
                operations.append(cygrpc.SendMessageOperation(data, 0))
                self._unsent += len(data)
                self._in_flight.answering(len(data))
                self._listener.watch()
            except Exception as error:
                self._listener.loop.call_failed(error)
                failure = _NOT_SENT
        self._abandon_writes()
        if failure is None:
            status = cygrpc.SendStatusFromServerOperation((), 0, b"", 0)
        else:
            code, message = STATUS_CODES[failure.status], failure.message.encode()
            status = cygrpc.SendStatusFromServerOperation(failure.trailers, code, message, 0)
        operations.append(status)
        self._looks = 0
        self._core.start_server_batch(tuple(operations), self._on_end)
        if not self._reading:
            self._release()

    def _release(self) -> None:
        self._in_flight.done(self._held)
        self._held = 0

    def _headers(self) -> Any:
        self._headers_sent = True
        return cygrpc.SendInitialMetadataOperation((), 0)

    def _on_end(self, _event: Any) -> None:
        self._take(self._unsent)
        if self._closed:
            self._listener.ended(self)

    def _on_close(self, event: Any) -> None:
        self._closed = True
        if event.batch_operations[0].cancelled() and not self._ended:
            self._cancelled = True
            if self.task is None and not self._reading and self._in_flight.waiting:
                self._in_flight.forget(self)
                self._end(_CANCELLED)
            if self.task is not None:
                self.task.cancel()
                # A task that is cancelled before its first step does not run `_end`.
                self.task.add_done_callback(self._on_cancelled)
        if self._ended:
            self._listener.ended(self)

    def _on_cancelled(self, _task: asyncio.Task[None]) -> None:
        self._end(_CANCELLED)

    # ---- writing ----

    def _send_next(self) -> None:
        outgoing = self._outgoing
        self._sending = False
        while outgoing and not self._sending:
            item = outgoing.popleft()
            if isinstance(item, asyncio.Future):
                if not item.done():
                    item.set_result(None)
                continue
            self._sending = True
            data, flags = item
            self._sent_size = len(data)
            message = cygrpc.SendMessageOperation(data, flags)
            operations = (message,) if self._headers_sent else (self._headers(), message)
            if self._core.start_server_batch(operations, self._on_sent):
                self._abandon_writes()

    def _on_sent(self, event: Any) -> None:
        self._looks = 0
        self._take(self._sent_size)
        if event.success:
            self._send_next()
        else:  # the caller has left
            self._abandon_writes()

    def _take(self, size: int) -> None:
        size = min(size, self._unsent)  # the end of a call takes everything that is left
        self._unsent -= size
        self._in_flight.answered(size)

    def _abandon_writes(self) -> None:
        for item in self._outgoing:
            if isinstance(item, asyncio.Future):
                item.cancel()
            else:
                self._take(len(item[0]))
        self._outgoing.clear()

    # ---- callers that delay others ----

    def hurry(self) -> None:
        """Refuse a call whose request is still incomplete since the last check, if others wait."""
        if self._reading and not self._ended:
            self._looks += 1
            if self._looks > 1:
                self._in_flight.too_slow(self)

    def check_arrival(self, late_looks: int) -> None:
        """End a call whose request is still incomplete after `late_looks` checks."""
        if self._reading and not self._ended:
            self._arriving += 1
            if self._arriving > late_looks:
                self._end(late(self._listener.limits))

    def check_reader(self, stalled_looks: int) -> None:
        """Cancel a call whose caller has read nothing of the answer for `stalled_looks` checks."""
        if self._unsent:
            self._looks += 1
            if self._looks > stalled_looks:
                self._in_flight.cut += 1
                self._core.cancel(*_NOT_TAKEN)


class _Requests:
    """Iterate over the requests of a stream as bytes.

    A request is read from gRPC only when the handler asks for it.
    """

    def __init__(self, core: Any, loop: CompletionQueueLoop) -> None:
        self._core = core
        self._loop = loop
        self._reading = False
        self._read: deque[bytes | None] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self._read:
            if not self._reading:
                self._reading = True
                self._core.start_server_batch(
                    (cygrpc.ReceiveMessageOperation(0),), self._on_message
                )
            self._waiter = self._loop.create_future()
            await self._waiter
        data = self._read[0]
        if data is None:  # the end stays in the queue, so that another read gets the end again
            raise StopAsyncIteration
        self._read.popleft()
        return data

    def _on_message(self, event: Any) -> None:
        self._reading = False
        self._read.append(event.batch_operations[0].message())
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
