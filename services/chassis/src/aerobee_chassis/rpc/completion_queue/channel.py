"""Call other services from an event loop on gRPC's completion queue (`loop`).

A channel has its own completion queue, and grpcio can only wait there without a timeout. So the
loop polls that queue in every iteration while an answer is due. To poll, it starts an operation
that completes at once. The event of that operation comes after all events that were in the queue,
so the loop does not wait.

If the loop has no other work, a thread waits for the next event instead. A thread that waits in
gRPC also reads the sockets of all other channels. If the thread always waited, it would take part
in every call that the process serves. So for a stream, which is silent most of the time, it waits
only while the loop is idle: with the first calls that follow, the loop recalls it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc

from aerobee_chassis.clock import deadline_in
from aerobee_chassis.rpc.completion_queue.cygrpc import cygrpc
from aerobee_chassis.rpc.completion_queue.loop import IDLE_POLL_S, CompletionQueueLoop, OnEvent
from aerobee_chassis.rpc.transport import (
    CALL_ENDED,
    CHANNEL_CLOSED,
    CHANNEL_OPTIONS,
    CallFailed,
    ChannelOptions,
    ChannelTls,
)

# The loop recalls a thread that waits for a silent stream after this many iterations, if they took
# less than this many seconds: the process serves calls again.
BUSY_TURNS = 64
BUSY_S = 1.0

_STATUS_NAMES = {status.value[0]: status.name for status in grpc.StatusCode}
_GIVEN_UP = (cygrpc.StatusCode.cancelled, "the caller gave up")
_DEFAULTS = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS


class CompletionQueueChannel:
    def __init__(
        self,
        loop: CompletionQueueLoop,
        target: str,
        options: ChannelOptions = CHANNEL_OPTIONS,
        tls: ChannelTls | None = None,
    ) -> None:
        self._loop = loop
        credentials: Any = None if tls is None else tls.credentials
        self._channel = cygrpc.Channel(
            target.encode(),
            (*options.of_grpc, *(() if tls is None else tls.options)),
            credentials and credentials._credentials,
        )
        self._under_way: set[_UnaryCall | _StreamingCall | CompletionQueueExchange] = set()
        self._expected = 0  # events that will come
        # Counts unary calls and exchanges. A stream is silent most of the time, and may wait.
        self._answers_due = 0
        self._next_poll = 0.0  # in the loop's time, while no answer is due
        self.armed = False  # the thread waits at the queue; the loop must not poll meanwhile
        self._recalled = False  # the event of a probe is in the queue, for the thread
        self._turns = 0  # iterations of the loop since `_turns_since`
        self._turns_since = 0.0  # in the loop's time
        self._closing = False  # no new calls begin
        self._closed = False
        self._drained = asyncio.Event()
        self._drained.set()
        # This call is never sent, and so never ends. An empty batch of operations on it completes
        # at once.
        endless = (cygrpc.ReceiveStatusOnClientOperation(0),), _nothing
        self._probe = self._channel.integrated_call(
            _DEFAULTS, b"/none/Probe", None, None, (), None, (endless,), None, None
        )
        self._to_wait = threading.Lock()
        self._to_wait.acquire()
        self._waiter = threading.Thread(target=self._wait, name=f"to {target}", daemon=True)
        self._waiter.start()

    async def unary(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """Call the RPC at `path`, and return the answer. Raises CallFailed."""
        call = _UnaryCall(self._loop.create_future())
        batches = ((call.operations(request), call.on_answer),)
        call.core = self._start(path, deadline_in(timeout_s), *batches)
        self._under_way.add(call)
        self._answers_due += 1
        try:
            return await call.outcome
        finally:
            self._under_way.discard(call)
            self._answers_due -= 1
            if not call.answered:
                call.core.cancel(*_GIVEN_UP)

    async def stream(self, path: str, request: bytes) -> AsyncGenerator[bytes, None]:
        """Call the RPC at `path`, and yield its answers. Raises CallFailed."""
        call = _StreamingCall(self._loop)
        batches = (_request(request), _nothing), ((call.status,), call.on_status)
        call.core = self._start(path, None, *batches)
        self._under_way.add(call)
        try:
            while self.operate(call.core, call.receive(), call.on_message):
                message = await call.message
                if message is None:
                    break
                yield message
            await call.over.wait()
            if failure := _failure(call.status):
                raise failure
        finally:
            self._under_way.discard(call)
            if not call.over.is_set():
                call.core.cancel(*_GIVEN_UP)

    @asynccontextmanager
    async def exchange(self, path: str) -> AsyncIterator[CompletionQueueExchange]:
        """Start an exchange, which ends with the `async with` block. Raises CallFailed."""
        call = CompletionQueueExchange(self, self._loop)
        batches = (
            ((cygrpc.SendInitialMetadataOperation((), 0),), _nothing),
            ((cygrpc.ReceiveInitialMetadataOperation(0),), _nothing),
            ((call.status,), call.on_status),
        )
        call.core = self._start(path, None, *batches)
        self._under_way.add(call)
        self._answers_due += 1
        try:
            yield call
        finally:
            self._under_way.discard(call)
            self._answers_due -= 1
            if not call.over.is_set():
                call.core.cancel(*_GIVEN_UP)

    @property
    def is_idle(self) -> bool:
        return not self._under_way

    async def close(self) -> None:
        self._closing = True
        self._next_poll = 0.0
        for call in self._under_way:
            call.core.cancel(*_GIVEN_UP)
        await self._drained.wait()
        if self._closed:
            return
        self._closed = True
        self._to_wait.release()
        self._waiter.join()
        self._probe.cancel(*_GIVEN_UP)
        while self._channel.next_call_event().tag is _probed:
            pass
        self._channel.close(cygrpc.StatusCode.cancelled, "the channel is closed")

    # ---- events ----

    def poll(self) -> bool:
        if self.armed:
            self._recall_if_busy()
            return False
        if not self._answers_due and self._loop.time() < self._next_poll:
            return False
        # After a recall, the event of a probe may be left in the queue.
        if not self._recalled and not self._probe.operate((), _probed):
            return False
        self._recalled = False
        next_event = self._channel.next_call_event
        event, found = next_event(), False
        while event.tag is not _probed:
            self._received(event)
            event, found = next_event(), True
        # Poll a stream that sends in every iteration of the loop, and a silent one every 25 ms.
        self._next_poll = 0.0 if found else self._loop.time() + IDLE_POLL_S / 2
        return found

    @property
    def urgent(self) -> bool:
        return self._answers_due > 0

    def arm(self) -> None:
        self.armed = True
        self._turns, self._turns_since = 0, self._loop.time()
        self._to_wait.release()

    def _recall_if_busy(self) -> None:
        """End the wait of the thread if it waits for a silent stream, and the loop is busy."""
        self._turns += 1
        if self._turns < BUSY_TURNS or self._answers_due or self._recalled:
            return
        now = self._loop.time()
        if now - self._turns_since < BUSY_S:
            self._recalled = self._probe.operate((), _probed)
        self._turns, self._turns_since = 0, now

    def _wait(self) -> None:
        while True:
            self._to_wait.acquire()
            if self._closed:
                return
            event = self._channel.next_call_event()
            while event.tag is None:  # with fork support, gRPC's waits end early, without an event
                event = self._channel.next_call_event()
            self._loop.deliver(partial(self._woken, event))

    def _woken(self, event: Any) -> None:
        self.armed = False
        if event.tag is _probed:
            self._recalled = False
        else:
            self._received(event)

    def _received(self, event: Any) -> None:
        self._expect(-1)
        self._loop.handle(event)

    def _expect(self, more: int) -> None:
        self._expected += more
        if self._expected:
            self._loop.sources.add(self)
            self._drained.clear()
        else:
            self._loop.sources.discard(self)
            self._drained.set()

    def _start(self, path: str, deadline: float | None, *batches: tuple[Any, OnEvent]) -> Any:
        if self._closing:  # its events would not be handled, and gRPC's close waits for them
            raise CallFailed(*CHANNEL_CLOSED)
        core = self._channel.integrated_call(
            _DEFAULTS, path.encode(), None, deadline, (), None, batches, None, None
        )
        self._expect(len(batches))
        return core

    def operate(self, core: Any, operations: tuple[Any, ...], on_event: OnEvent) -> bool:
        """Start operations on a call. Return False if the call has ended."""
        if not core.operate(operations, on_event):
            return False
        self._expect(1)
        return True


def _request(request: bytes) -> tuple[Any, ...]:
    return (
        cygrpc.SendInitialMetadataOperation((), 0),
        cygrpc.SendMessageOperation(request, 0),
        cygrpc.SendCloseFromClientOperation(0),
        cygrpc.ReceiveInitialMetadataOperation(0),
    )


def _failure(status: Any) -> CallFailed | None:
    if status.code() == cygrpc.StatusCode.ok:
        return None
    trailers = tuple((key, value) for key, value in status.trailing_metadata() or ())
    name = _STATUS_NAMES.get(status.code(), "UNKNOWN")
    return CallFailed(name, status.details() or "", trailers)


def _nothing(_event: Any) -> None:
    pass


def _probed(_event: Any) -> None:
    """Ignore the event of a probe, an operation that adds an event to the queue.

    `poll` handles all events up to that of its probe. A recalled thread ends its wait with it.
    """


class _UnaryCall:
    __slots__ = ("_message", "_status", "answered", "core", "outcome")

    def __init__(self, outcome: asyncio.Future[bytes]) -> None:
        self.outcome = outcome
        self.answered = False
        self.core: Any = None
        self._message = cygrpc.ReceiveMessageOperation(0)
        self._status = cygrpc.ReceiveStatusOnClientOperation(0)

    def operations(self, request: bytes) -> tuple[Any, ...]:
        """Return all operations of a unary call as one batch, which completes with one event."""
        return (*_request(request), self._message, self._status)

    def on_answer(self, _event: Any) -> None:
        self.answered = True
        if self.outcome.done():  # its caller was cancelled
            return
        failure, message = _failure(self._status), self._message.message()
        if failure is None and message is None:
            failure = CallFailed("INTERNAL", "the answer is missing")
        if failure is None:
            self.outcome.set_result(message)
        else:
            self.outcome.set_exception(failure)


class _StreamingCall:
    __slots__ = ("_loop", "core", "message", "over", "status")

    def __init__(self, loop: CompletionQueueLoop) -> None:
        self._loop = loop
        # The result is None if no message is left.
        self.message: asyncio.Future[bytes | None] = loop.create_future()
        self.core: Any = None
        self.over = asyncio.Event()
        self.status = cygrpc.ReceiveStatusOnClientOperation(0)

    def receive(self) -> tuple[Any, ...]:
        """Return the operations that receive one message, and reset the future `message` for it."""
        self.message = self._loop.create_future()
        return (cygrpc.ReceiveMessageOperation(0),)

    def on_message(self, event: Any) -> None:
        if not self.message.done():
            self.message.set_result(event.batch_operations[0].message())

    def on_status(self, _event: Any) -> None:
        self.over.set()


class CompletionQueueExchange:
    __slots__ = ("_channel", "_loop", "core", "over", "status")

    def __init__(self, channel: CompletionQueueChannel, loop: CompletionQueueLoop) -> None:
        self._channel = channel
        self._loop = loop
        self.core: Any = None
        self.over = asyncio.Event()
        self.status = cygrpc.ReceiveStatusOnClientOperation(0)

    async def write(self, message: bytes) -> None:
        event = await self._operate(cygrpc.SendMessageOperation(message, 0))
        if event is None or not event.success:
            await self.over.wait()
            raise _failure(self.status) or CallFailed(*CALL_ENDED)

    async def done_writing(self) -> None:
        await self._operate(cygrpc.SendCloseFromClientOperation(0))

    async def read(self) -> bytes | None:
        operation = cygrpc.ReceiveMessageOperation(0)
        await self._operate(operation)
        message: bytes | None = operation.message()
        if message is None:
            await self.over.wait()
            if failure := _failure(self.status):
                raise failure
        return message

    def on_status(self, _event: Any) -> None:
        self.over.set()

    async def _operate(self, operation: Any) -> Any:
        """Run an operation and return its event, or None if the call has ended."""
        ended: asyncio.Future[Any] = self._loop.create_future()

        def on_event(event: Any) -> None:
            if not ended.done():
                ended.set_result(event)

        if not self._channel.operate(self.core, (operation,), on_event):
            return None
        try:
            return await ended
        except asyncio.CancelledError:
            # gRPC continues the operation, and does not accept another one of its kind meanwhile.
            self.core.cancel(*_GIVEN_UP)
            raise
