"""Calls to other services from a loop on gRPC's completion queue (`queue_loop`).

A channel has a queue of its own, at which one can only wait without end. So the loop asks it in
every turn while an answer is to come, with an event of its own that comes at once, behind all that
was there: then nothing is waited for. Only a loop that has nothing else to do leaves the waiting to
a thread, until the next event: whoever waits in gRPC also reads the sockets of all others, and
a thread that always waited would take part in every call that the process serves.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

import grpc

from aerobee_chassis.clock import deadline_in
from aerobee_chassis.rpc.completion_queue.cygrpc import cygrpc
from aerobee_chassis.rpc.completion_queue.loop import LEISURE_S, OnEvent, QueueLoop
from aerobee_chassis.rpc.transport import CHANNEL_CLOSED, CallFailed

_STATUS_NAMES = {status.value[0]: status.name for status in grpc.StatusCode}
_GIVEN_UP = (cygrpc.StatusCode.cancelled, "the caller gave up")
_DEFAULTS = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS


class QueueChannel:
    def __init__(
        self, loop: QueueLoop, target: str, options: Sequence[tuple[str, int]] = ()
    ) -> None:
        self._loop = loop
        self._channel = cygrpc.Channel(target.encode(), tuple(options), None)
        self._under_way: set[_UnaryCall | _StreamingCall] = set()
        self._expected = 0  # events that will come
        self._answers_due = 0  # of unary calls; a stream is silent most of the time, and may wait
        self._next_look = 0.0  # in the loop's time, while no answer is due
        self._watched = False  # by the thread: until it has an event the loop must not ask
        self._closing = False  # no call begins any more
        self._closed = False
        self._drained = asyncio.Event()
        self._drained.set()
        # An operation without end on a call that is never sent: it can take the empty ones.
        endless = (cygrpc.ReceiveStatusOnClientOperation(0),), _nothing
        self._probe = self._channel.integrated_call(
            _DEFAULTS, b"/none/Probe", None, None, (), None, (endless,), None, None
        )
        self._to_watch = threading.Lock()
        self._to_watch.acquire()
        self._watcher = threading.Thread(target=self._watch, name=f"to {target}", daemon=True)
        self._watcher.start()

    async def unary(self, path: str, request: bytes, timeout_s: float) -> bytes:
        """Raises CallFailed."""
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
        """Raises CallFailed."""
        call = _StreamingCall(self._loop)
        batches = (call.operations(request), _nothing), ((call.status,), call.on_status)
        call.core = self._start(path, None, *batches)
        self._under_way.add(call)
        try:
            while self._operate(call.core, call.receive(), call.on_message):
                message = await call.next_message()
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

    async def close(self) -> None:
        self._closing = True
        self._next_look = 0.0
        for call in self._under_way:
            call.core.cancel(*_GIVEN_UP)
        await self._drained.wait()
        if self._closed:
            return
        self._closed = True
        self._to_watch.release()
        self._watcher.join()
        self._probe.cancel(*_GIVEN_UP)
        self._channel.next_call_event()
        self._channel.close(cygrpc.StatusCode.cancelled, "the channel is closed")

    # ---- events ----

    def take(self) -> bool:
        if self._watched or (not self._answers_due and self._loop.time() < self._next_look):
            return False
        if not self._probe.operate((), _probed):
            return False
        next_event = self._channel.next_call_event
        event, took = next_event(), False
        while event.tag is not _probed:
            self._received(event)
            event, took = next_event(), True
        # A stream that speaks is asked in every turn, a silent one now and then.
        self._next_look = 0.0 if took else self._loop.time() + LEISURE_S / 2
        return took

    def watch(self) -> bool:
        if not self._watched and self._answers_due:
            self._watched = True
            self._to_watch.release()
        return self._watched

    def _watch(self) -> None:
        while True:
            self._to_watch.acquire()
            if self._closed:
                return
            event = self._channel.next_call_event()
            while event.tag is None:  # where processes may fork, gRPC never waits long
                event = self._channel.next_call_event()
            self._loop.deliver(partial(self._woken, event))

    def _woken(self, event: Any) -> None:
        self._watched = False
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
        if self._closing:  # nobody would take its events, and gRPC's close waits for that
            raise CallFailed(*CHANNEL_CLOSED)
        core = self._channel.integrated_call(
            _DEFAULTS, path.encode(), None, deadline, (), None, batches, None, None
        )
        self._expect(len(batches))
        return core

    def _operate(self, core: Any, operations: tuple[Any, ...], on_event: OnEvent) -> bool:
        """False: the call is over."""
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
    """Marks the end of what was there."""


class _UnaryCall:
    __slots__ = ("_message", "_status", "answered", "core", "outcome")

    def __init__(self, outcome: asyncio.Future[bytes]) -> None:
        self.outcome = outcome
        self.answered = False
        self.core: Any = None
        self._message = cygrpc.ReceiveMessageOperation(0)
        self._status = cygrpc.ReceiveStatusOnClientOperation(0)

    def operations(self, request: bytes) -> tuple[Any, ...]:
        """All of a unary call, as one batch: one event when it is over."""
        return (*_request(request), self._message, self._status)

    def on_answer(self, _event: Any) -> None:
        self.answered = True
        if self.outcome.done():  # nobody waits any more
            return
        failure, message = _failure(self._status), self._message.message()
        if failure is None and message is None:
            failure = CallFailed("INTERNAL", "the answer is missing")
        if failure is None:
            self.outcome.set_result(message)
        else:
            self.outcome.set_exception(failure)


class _StreamingCall:
    __slots__ = ("_loop", "_message", "core", "over", "status")

    def __init__(self, loop: QueueLoop) -> None:
        self._loop = loop
        self._message: asyncio.Future[bytes | None] = loop.create_future()
        self.core: Any = None
        self.over = asyncio.Event()
        self.status = cygrpc.ReceiveStatusOnClientOperation(0)

    def operations(self, request: bytes) -> tuple[Any, ...]:
        return _request(request)

    def receive(self) -> tuple[Any, ...]:
        """For one message; `next_message` has it."""
        self._message = self._loop.create_future()
        return (cygrpc.ReceiveMessageOperation(0),)

    async def next_message(self) -> bytes | None:
        """None: there is none left."""
        return await self._message

    def on_message(self, event: Any) -> None:
        if not self._message.done():
            self._message.set_result(event.batch_operations[0].message())

    def on_status(self, _event: Any) -> None:
        self.over.set()
