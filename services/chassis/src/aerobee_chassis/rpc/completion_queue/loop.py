"""An asyncio loop that waits at gRPC's completion queue: calls are events of the loop itself.

grpc.aio has a thread that waits at the queue and wakes the loop through a socket; that, and the
tasks and futures of its own, cost three times what the call itself costs. Here the loop's selector
asks the queue, and each event is handled by the function that its operation named. Everything else
of asyncio is as usual.

Files and sockets are watched by a thread that never touches them: when one is ready it rings the
bell, and the loop looks. The bell is an event put into the queue from any thread: a batch without
operations on a call that ended long ago.

Making a loop hangs a bell, which tries most of grpcio's private interface (`queue_api`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import select
import selectors
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from aerobee_chassis.clock import deadline_in, seconds_until
from aerobee_chassis.rpc.completion_queue.cygrpc import QueueUnavailable, check_version, cygrpc

EVENTS_A_TURN = 64  # then the handlers that they woke get their turn
# The queue waits by the time of day. Should that be set back, no timer is late by more than this.
LONGEST_WAIT_S = 1.0
BELL_TIMEOUT_S = 5.0
LEISURE_S = 0.05  # between looks at what nobody waits for

_NONE = cygrpc.CompletionType.queue_timeout

OnEvent = Callable[[Any], None]
_numbers = itertools.count()


class Source(Protocol):
    """Another queue with events for the loop, which cannot be waited for together with ours."""

    def take(self) -> bool:
        """Handles what has come; whether anything had."""

    def watch(self) -> bool:
        """Sees to it that the loop is woken when something comes, if that is urgent."""


class QueueLoop(asyncio.SelectorEventLoop):
    """Made by `new_queue_loop`."""

    def __init__(self, queue: Any, bell: Any) -> None:
        self._bell = bell
        self._bell_hangs = True
        self._hanging = threading.RLock()  # a signal may ring while its thread rings
        self._rung = False
        self._delivered: deque[Callable[[], None]] = deque()
        self.queue = queue
        self.sources: set[Source] = set()  # that have something to come
        super().__init__(_QueueSelector(self))

    def ring(self) -> None:
        """Ends the wait for events, now or the next one; nothing when closed. From any thread."""
        if not self._rung:
            with self._hanging:
                if self._bell_hangs:
                    self._rung = True
                    self._bell.start_server_batch((), self._heard)

    def deliver(self, action: Callable[[], None]) -> None:
        """Does something as if it were an event of the queue. From any thread."""
        self._delivered.append(action)
        self.ring()

    def handle(self, event: Any) -> None:
        try:
            event.tag(event)
        except Exception as error:
            self.call_failed(error)

    def call_failed(self, error: Exception) -> None:
        """What an event's function raised: a defect."""
        self.call_exception_handler(
            {"message": "an event of gRPC could not be handled", "exception": error}
        )

    def close(self) -> None:
        if self.is_closed():
            return
        super().close()
        with self._hanging:
            self._bell_hangs = False  # gRPC ends the process that rings at a queue shut down
            self.queue.shutdown()
        deadline = deadline_in(LONGEST_WAIT_S)
        while self.queue.poll(deadline).completion_type != cygrpc.CompletionType.queue_shutdown:
            if seconds_until(deadline) < 0:
                break

    def _heard(self, _event: Any) -> None:
        # Whatever the bell was rung for was done before; what comes now rings again.
        self._rung = False
        while self._delivered:
            self._delivered.popleft()()

    def _write_to_self(self) -> None:
        self.ring()


def new_queue_loop() -> QueueLoop:
    """Raises QueueUnavailable."""
    check_version()
    try:
        queue = cygrpc.CompletionQueue()
        bell = _hang_bell(queue)
    except (AttributeError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise QueueUnavailable(str(error)) from error
    return QueueLoop(queue, bell)


class _QueueSelector(selectors.EpollSelector):
    """Waits for gRPC, and through a thread for files."""

    def __init__(self, loop: QueueLoop) -> None:
        super().__init__()
        self._loop = loop
        self._poll: Callable[[float | None], Any] = loop.queue.poll
        self._files_ready = False
        self._unwatched = False  # the thread saw something and waits for us to look
        self._watched = select.epoll()
        self._watched.register(self.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        self._closing = os.eventfd(0)
        self._watched.register(self._closing, select.EPOLLIN)
        self._watcher = threading.Thread(target=self._watch, name="file watcher", daemon=True)
        self._watcher.start()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._unwatched:
            self._unwatched = False
            self._watched.modify(self.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        # All of them: `any` would stop at the first that had something.
        came = [source.take() for source in tuple(self._loop.sources)]
        if (timeout is not None and timeout <= 0) or any(came):
            self._handle_from(self._poll(0.0))
        else:
            self._handle_from(self._first(timeout))
        if not self._files_ready:
            return []
        self._files_ready = False
        self._unwatched = True
        return super().select(0)

    def close(self) -> None:
        os.eventfd_write(self._closing, 1)
        self._watcher.join()
        self._watched.close()
        os.close(self._closing)
        super().close()

    def _first(self, timeout: float | None) -> Any:
        """The next event of the queue, waited for."""
        longest_s = LONGEST_WAIT_S
        if self._loop.sources:
            event = self._poll(0.0)
            if event.completion_type != _NONE:
                return event
        for source in self._loop.sources:
            if not source.watch():
                longest_s = LEISURE_S
        wait_s = longest_s if timeout is None else min(timeout, longest_s)
        return self._poll(deadline_in(wait_s))

    def _handle_from(self, event: Any) -> None:
        """Handles the event, and what the queue has behind it."""
        poll, handle = self._poll, self._loop.handle
        for _ in range(EVENTS_A_TURN):
            if event.completion_type == _NONE:
                return
            handle(event)
            event = poll(0.0)
        if event.completion_type != _NONE:
            handle(event)

    def _watch(self) -> None:
        while True:
            ready = self._watched.poll()
            if any(number == self._closing for number, _ in ready):
                return
            self._files_ready = True
            self._loop.ring()


def _hang_bell(queue: Any) -> Any:
    """The server's end of a call of ours to ourselves, over and done with."""
    target = f"unix-abstract:aerobee-{os.getpid()}-{next(_numbers)}".encode()
    deadline = deadline_in(BELL_TIMEOUT_S)
    server = cygrpc.Server((("grpc.so_reuseport", 0),), False)
    server.register_completion_queue(queue)
    server.add_http2_port(target)
    server.start()
    server.request_call(queue, queue, "call")
    channel = cygrpc.Channel(target, (), None)
    operations = (
        cygrpc.SendInitialMetadataOperation((), 0),
        cygrpc.SendCloseFromClientOperation(0),
        cygrpc.ReceiveInitialMetadataOperation(0),
        cygrpc.ReceiveStatusOnClientOperation(0),
    )
    channel.integrated_call(
        cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
        b"/bell/Hang",
        None,
        deadline,
        (),
        None,
        ((operations, "answer"),),
        None,
        None,
    )
    call = _expect(queue, "call", deadline).call
    answer = (
        cygrpc.SendInitialMetadataOperation((), 0),
        cygrpc.ReceiveCloseOnServerOperation(0),
        cygrpc.SendStatusFromServerOperation((), cygrpc.StatusCode.ok, b"", 0),
    )
    call.start_server_batch(answer, "answered")
    _expect(queue, "answered", deadline)
    channel.next_call_event()
    channel.close(cygrpc.StatusCode.cancelled, "the bell hangs")
    server.shutdown(queue, "down")
    _expect(queue, "down", deadline)
    server.destroy()
    call.start_server_batch((), "rung")
    _expect(queue, "rung", deadline)
    return call


def _expect(queue: Any, tag: str, deadline: float) -> Any:
    event = queue.poll(deadline)
    if not event.success or event.tag != tag:
        raise QueueUnavailable(f"the completion queue gave {event.tag!r} instead of {tag!r}")
    return event
