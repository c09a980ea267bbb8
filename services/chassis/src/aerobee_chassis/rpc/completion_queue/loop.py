"""Provide an asyncio event loop that waits at gRPC's completion queue.

grpc.aio has a thread that waits at the queue and wakes the event loop through a socket. That
thread, and grpc.aio's tasks and futures, cost three times as much as the call itself. Here, the
loop's selector polls the queue. Each event is handled by the function that was passed with its
operation. Everything else is ordinary asyncio.

A thread watches files and sockets without reading them. When one is ready, the thread wakes the
loop, and the loop's selector checks it. To wake the loop, any thread can put an event into the
queue. It starts an empty batch of operations on a call that has ended: the waker.

Creating a loop creates a waker, which tests most of grpcio's private interface (`cygrpc`).
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
from typing import TYPE_CHECKING, Any, Protocol

from aerobee_chassis.clock import deadline_in, seconds_until
from aerobee_chassis.rpc.completion_queue.cygrpc import (
    CompletionQueueUnavailable,
    check_version,
    cygrpc,
    on_this_system,
    wait_without_slices,
)

EVENTS_A_TURN = 64  # events in one loop iteration; then the tasks that they woke run
LONGEST_WAIT_S = 60.0  # asyncio's own limit is a day
CLOSE_TIMEOUT_S = 1.0  # for the events that are left in the queue
WAKER_TIMEOUT_S = 5.0  # for making a waker: a call of this process to itself
IDLE_POLL_S = 0.05  # between polls of a source that is not urgent, until the loop is idle

_NONE = cygrpc.CompletionType.queue_timeout

OnEvent = Callable[[Any], None]
_numbers = itertools.count()


class PollSource(Protocol):
    """Another completion queue with events for the loop.

    The loop can wait at only one queue, so it polls the others.
    """

    @property
    def armed(self) -> bool:
        """Return whether the next event will wake the loop."""

    def poll(self) -> bool:
        """Handle the events that have arrived, without waiting. Return whether there were any."""

    @property
    def urgent(self) -> bool:
        """Return whether to arm the source before each wait of the loop.

        Otherwise the loop first polls it after IDLE_POLL_S, and arms it if nothing has happened.
        """

    def arm(self) -> None:
        """Let the next event wake the loop."""


class CompletionQueueLoop(asyncio.SelectorEventLoop):
    """An event loop on the completion queue. Create it with `new_completion_queue_loop`."""

    def __init__(self, queue: Any, waker: Any) -> None:
        self._waker = waker
        self._waker_open = True
        self._waker_lock = threading.RLock()  # reentrant, because a signal handler may call `wake`
        self._waking = False  # an event is in the queue, and not handled yet
        self._delivered: deque[Callable[[], None]] = deque()
        self._at_end: list[Callable[[], None]] = []  # for the end of this iteration
        self.queue = queue
        self.sources: set[PollSource] = set()  # sources that expect events
        super().__init__(_CompletionQueueSelector(self))

    def wake(self) -> None:
        """End the present or the next wait for events. Do nothing if the loop is closed.

        Any thread may call this.
        """
        if not self._waking:
            with self._waker_lock:
                if self._waker_open:
                    self._waking = True
                    self._waker.start_server_batch((), self._on_wake)

    def deliver(self, action: Callable[[], None]) -> None:
        """Run `action` on the loop as if it were an event of the queue.

        Any thread may call this.
        """
        self._delivered.append(action)
        self.wake()

    def at_end_of_turn(self, action: Callable[[], None]) -> None:
        """Run `action` after everything that is ready in this iteration of the loop.

        `call_soon` would run it in the next iteration, after another look at the queue.
        """
        self._at_end.append(action)

    def _run_once(self) -> None:
        super()._run_once()  # type: ignore[misc]
        if self._at_end:
            actions, self._at_end = self._at_end, []
            for action in actions:
                try:
                    action()
                except Exception as error:
                    self.call_exception_handler(
                        {"message": "work at the end of a turn failed", "exception": error}
                    )

    def handle(self, event: Any) -> None:
        try:
            event.tag(event)
        except Exception as error:
            self.call_failed(error)

    def call_failed(self, error: Exception) -> None:
        """Report an exception in the handler of an event, which is a bug."""
        self.call_exception_handler(
            {"message": "an event of gRPC could not be handled", "exception": error}
        )

    def close(self) -> None:
        if self.is_closed():
            return
        super().close()
        with self._waker_lock:
            self._waker_open = False  # gRPC aborts a process that uses a queue after its shutdown
            self.queue.shutdown()
        deadline = deadline_in(CLOSE_TIMEOUT_S)
        while self.queue.poll(deadline).completion_type != cygrpc.CompletionType.queue_shutdown:
            if seconds_until(deadline) < 0:
                break

    def _on_wake(self, _event: Any) -> None:
        # Reset this first: an action that is delivered from here on needs another event.
        self._waking = False
        while self._delivered:
            self._delivered.popleft()()

    def _write_to_self(self) -> None:
        self.wake()


def new_completion_queue_loop(
    kind: type[CompletionQueueLoop] = CompletionQueueLoop,
) -> CompletionQueueLoop:
    """Create an event loop. Raises CompletionQueueUnavailable."""
    if not on_this_system():
        raise CompletionQueueUnavailable("the system has no epoll or no eventfd")
    check_version()
    wait_without_slices()
    try:
        queue = cygrpc.CompletionQueue()
        waker = _make_waker(queue)
    except (AttributeError, TypeError, ValueError, RuntimeError, OSError) as error:
        raise CompletionQueueUnavailable(str(error)) from error
    return kind(queue, waker)


# On macOS, this module can be imported, but no loop is created.
if TYPE_CHECKING or hasattr(selectors, "EpollSelector"):
    _FileSelector = selectors.EpollSelector
else:
    _FileSelector = selectors.SelectSelector


class _CompletionQueueSelector(_FileSelector):
    """Wait at gRPC's queue itself, and for files through a thread."""

    def __init__(self, loop: CompletionQueueLoop) -> None:
        super().__init__()
        self._loop = loop
        self._poll: Callable[[float | None], Any] = loop.queue.poll
        self._files_ready = False
        self._is_idle = False  # the last wait was for IDLE_POLL_S, and nothing happened
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
        # Use a list, because `any` would stop at the first source that had an event.
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
        """Wait for the next event of the queue and return it."""
        wait_s = LONGEST_WAIT_S if timeout is None else min(timeout, LONGEST_WAIT_S)
        is_idle, self._is_idle = self._is_idle, False
        unarmed = [source for source in self._loop.sources if not source.armed]
        due = [source for source in unarmed if is_idle or source.urgent]
        if due:
            event = self._poll(0.0)
            if event.completion_type != _NONE:
                return event
            for source in due:
                source.arm()
        if len(due) < len(unarmed) and wait_s > IDLE_POLL_S:
            event = self._poll(deadline_in(IDLE_POLL_S))
            self._is_idle = event.completion_type == _NONE
            return event
        return self._poll(deadline_in(wait_s))

    def _handle_from(self, event: Any) -> None:
        """Handle `event` and the events after it in the queue, up to a limit."""
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
    """Return the server side of a finished call that this process made to itself.

    An empty batch of operations on that call completes at once, and its event goes to `queue`.
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
    """Open a channel to `target` and begin one call."""
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
