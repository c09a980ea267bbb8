"""An asyncio loop that waits at gRPC's completion queue: calls are events of the loop itself.

grpc.aio has a thread that waits at the queue and wakes the loop through a socket; that, and the
tasks and futures of its own, cost three times what the call itself costs. Here the loop's selector
polls the queue, and each event is handled by the function that its operation named. Everything else
of asyncio is as usual.

Files and sockets are watched by a thread that never touches them: when one is ready, the thread
wakes the loop, and the loop's selector looks. To wake the loop is to put an event into the queue,
which any thread may do with a batch without operations on a call that ended long ago: the waker.

Making a loop makes a waker, which tries most of grpcio's private interface (`cygrpc`).
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
from aerobee_chassis.rpc.completion_queue.cygrpc import (
    CompletionQueueUnavailable,
    check_version,
    cygrpc,
)

EVENTS_A_TURN = 64  # then the handlers that they woke get their turn
# The queue waits by the time of day. Should that be set back, no timer is late by more than this.
LONGEST_WAIT_S = 1.0
WAKER_TIMEOUT_S = 5.0  # for making one: a call of this process to itself
IDLE_POLL_S = 0.05  # between polls of a source that is not urgent

_NONE = cygrpc.CompletionType.queue_timeout

OnEvent = Callable[[Any], None]
_numbers = itertools.count()


class PollSource(Protocol):
    """Another completion queue with events for the loop: one cannot wait at two queues at once."""

    def poll(self) -> bool:
        """Handles the events that have come, without waiting; whether there were any."""

    def arm(self) -> bool:
        """Before the loop waits: whether the next event will wake it. False: it is not urgent, and
        the loop polls again after IDLE_POLL_S.
        """


class CompletionQueueLoop(asyncio.SelectorEventLoop):
    """Made by `new_completion_queue_loop`."""

    def __init__(self, queue: Any, waker: Any) -> None:
        self._waker = waker
        self._waker_open = True
        self._waker_lock = threading.RLock()  # a signal may come while its thread holds it
        self._waking = False  # an event is in the queue, and not handled yet
        self._delivered: deque[Callable[[], None]] = deque()
        self.queue = queue
        self.sources: set[PollSource] = set()  # those that have events to come
        super().__init__(_CompletionQueueSelector(self))

    def wake(self) -> None:
        """Ends the wait for events, this or the next; does nothing when closed. From any thread."""
        if not self._waking:
            with self._waker_lock:
                if self._waker_open:
                    self._waking = True
                    self._waker.start_server_batch((), self._on_wake)

    def deliver(self, action: Callable[[], None]) -> None:
        """Runs an action on the loop as if it were an event of the queue. From any thread."""
        self._delivered.append(action)
        self.wake()

    def handle(self, event: Any) -> None:
        try:
            event.tag(event)
        except Exception as error:
            self.call_failed(error)

    def call_failed(self, error: Exception) -> None:
        """Reports what the function of an event raised: a defect."""
        self.call_exception_handler(
            {"message": "an event of gRPC could not be handled", "exception": error}
        )

    def close(self) -> None:
        if self.is_closed():
            return
        super().close()
        with self._waker_lock:
            self._waker_open = False  # gRPC aborts a process that uses a queue that is shut down
            self.queue.shutdown()
        deadline = deadline_in(LONGEST_WAIT_S)
        while self.queue.poll(deadline).completion_type != cygrpc.CompletionType.queue_shutdown:
            if seconds_until(deadline) < 0:
                break

    def _on_wake(self, _event: Any) -> None:
        # Reset first: an action delivered from here on needs another event.
        self._waking = False
        while self._delivered:
            self._delivered.popleft()()

    def _write_to_self(self) -> None:
        self.wake()


def new_completion_queue_loop(
    kind: type[CompletionQueueLoop] = CompletionQueueLoop,
) -> CompletionQueueLoop:
    """Raises CompletionQueueUnavailable."""
    check_version()
    try:
        queue = cygrpc.CompletionQueue()
        waker = _make_waker(queue)
    except (AttributeError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise CompletionQueueUnavailable(str(error)) from error
    return kind(queue, waker)


class _CompletionQueueSelector(selectors.EpollSelector):
    """Waits for gRPC itself, and for files through a thread."""

    def __init__(self, loop: CompletionQueueLoop) -> None:
        super().__init__()
        self._loop = loop
        self._poll: Callable[[float | None], Any] = loop.queue.poll
        self._files_ready = False
        self._rearm = False  # the thread has reported a file, and watches none until it is re-armed
        self._watched = select.epoll()
        self._watched.register(self.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        self._closing = os.eventfd(0)
        self._watched.register(self._closing, select.EPOLLIN)
        self._watcher = threading.Thread(target=self._watch, name="file watcher", daemon=True)
        self._watcher.start()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if self._rearm:
            self._rearm = False
            self._watched.modify(self.fileno(), select.EPOLLIN | select.EPOLLONESHOT)
        # A list, since `any` would stop at the first source that had an event.
        polled = [source.poll() for source in tuple(self._loop.sources)]
        if (timeout is not None and timeout <= 0) or any(polled):
            self._handle_from(self._poll(0.0))
        else:
            self._handle_from(self._wait(timeout))
        if not self._files_ready:
            return []
        self._files_ready = False
        self._rearm = True
        return super().select(0)

    def close(self) -> None:
        os.eventfd_write(self._closing, 1)
        self._watcher.join()
        self._watched.close()
        os.close(self._closing)
        super().close()

    def _wait(self, timeout: float | None) -> Any:
        """The next event of the queue."""
        longest_s = LONGEST_WAIT_S
        if self._loop.sources:
            event = self._poll(0.0)
            if event.completion_type != _NONE:
                return event
        for source in self._loop.sources:
            if not source.arm():
                longest_s = IDLE_POLL_S
        wait_s = longest_s if timeout is None else min(timeout, longest_s)
        return self._poll(deadline_in(wait_s))

    def _handle_from(self, event: Any) -> None:
        """Handles the event, and those behind it in the queue."""
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
            self._loop.wake()


def _make_waker(queue: Any) -> Any:
    """The server's end of a call that this process made to itself, and that is over.

    A batch without operations on it completes at once, and its event goes to `queue`.
    """
    deadline = deadline_in(WAKER_TIMEOUT_S)
    target = f"unix-abstract:aerobee-{os.getpid()}-{next(_numbers)}".encode()
    server = cygrpc.Server((("grpc.so_reuseport", 0),), False)
    server.register_completion_queue(queue)
    server.add_http2_port(target)
    server.start()
    server.request_call(queue, queue, "call")
    channel = _call_once(target, deadline)
    call = _expect(queue, "call", deadline).call
    answer = (
        cygrpc.SendInitialMetadataOperation((), 0),
        cygrpc.ReceiveCloseOnServerOperation(0),
        cygrpc.SendStatusFromServerOperation((), cygrpc.StatusCode.ok, b"", 0),
    )
    call.start_server_batch(answer, "answered")
    _expect(queue, "answered", deadline)
    channel.next_call_event()
    channel.close(cygrpc.StatusCode.cancelled, "the waker is made")
    server.shutdown(queue, "down")
    _expect(queue, "down", deadline)
    server.destroy()
    call.start_server_batch((), "woken")  # try it
    _expect(queue, "woken", deadline)
    return call


def _call_once(target: bytes, deadline: float) -> Any:
    """A channel to `target` with one call begun."""
    channel = cygrpc.Channel(target, (), None)
    operations = (
        cygrpc.SendInitialMetadataOperation((), 0),
        cygrpc.SendCloseFromClientOperation(0),
        cygrpc.ReceiveInitialMetadataOperation(0),
        cygrpc.ReceiveStatusOnClientOperation(0),
    )
    defaults = cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS
    batches = ((operations, "answer"),)
    channel.integrated_call(defaults, b"/waker/Make", None, deadline, (), None, batches, None, None)
    return channel


def _expect(queue: Any, tag: str, deadline: float) -> Any:
    event = queue.poll(deadline)
    if not event.success or event.tag != tag:
        raise CompletionQueueUnavailable(f"the completion queue gave {event.tag!r}, not {tag!r}")
    return event
