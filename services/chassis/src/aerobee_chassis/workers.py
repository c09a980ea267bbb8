"""Run several processes of one service, to use more than one core.

The parent process only supervises. It forks a worker process for each number, and a worker runs the
whole service. Workers do not share state. When a worker ends after all were ready, the parent
starts it again: after a second, and after twice the time at each failure that soon follows. If a
worker ends before that, the parent stops. When the parent is stopped or killed, all workers stop.

A service says by a `WorkerKind` how its workers differ: the workers of a proxy share a port, and
the shards of a broker have a port and a directory each.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from aerobee_chassis.clock import SystemClock
from aerobee_chassis.rpc.peer_tls import PortOptions

RESTART_MS = 1_000  # between the end of a worker and its next start
# The longest wait. A worker that lived longer than this is again started after the shortest one.
LONGEST_RESTART_MS = 30_000
FAILED = 1

O = TypeVar("O", bound=PortOptions)  # noqa: E741
OnReady = Callable[[Mapping[str, object]], None]


class WorkerKind(ABC):
    """How the workers of a service differ, and what they share.

    `name` is the word for a worker in the log. `stop_ms` is the time for the workers to end in
    order; then the parent kills them.
    """

    name: str
    count: int
    stop_ms: int

    @abstractmethod
    def label(self, number: int) -> object:
        """Return what names a worker in the log."""

    @abstractmethod
    def serve(self, number: int, former: Mapping[str, object], on_ready: OnReady) -> int:
        """Run the worker in this process, and return its exit code.

        `former` has the ready fields of the worker that it replaces. It is empty at the first
        start. Pass the worker's own ready fields to `on_ready`.
        """

    @abstractmethod
    def ready_fields(self, ready: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
        """Return the fields of the parent's log line `ready`, from those of all workers."""

    def release(self) -> None:  # noqa: B027  # most kinds hold nothing
        """Close files that the parent holds for the workers. May be called again."""


@dataclass(slots=True)
class Worker:
    number: int
    pid: int
    started_ms: int  # monotonic
    ready_pipe: int  # the worker writes the fields of its ready line to it, as JSON
    ready: dict[str, object] = field(default_factory=dict)
    ready_pipe_closed: bool = False


class Parent:
    """Supervise the workers of one kind."""

    def __init__(self, kind: WorkerKind) -> None:
        self._kind = kind
        self._clock = SystemClock()
        self._workers: dict[int, Worker] = {}
        self._former: dict[int, Mapping[str, object]] = {}  # number → its last ready fields
        self._restart_ms: dict[int, int] = {}  # number of a worker → when to start it, monotonic
        self._failures: Counter[int] = Counter()  # ends of each worker, one soon after the other
        # Workers wait for the end of this pipe. It closes when this process ends for any reason.
        self._tether, self._tether_end = os.pipe()
        self._wakeup, wake = os.pipe()  # signals write to it
        for descriptor in (self._wakeup, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._wake = wake
        self._stopping = self._all_ready = self._draining = self._drain_sent = False

    def run(self) -> int:
        """Run until SIGTERM or SIGINT. Return the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGUSR1, self._on_drain_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Garbage collection in a worker would copy the memory that it shares with this process:
        # 16 MB of the 32 MB of an idle broker.
        gc.collect()
        gc.freeze()
        for worker in range(self._kind.count):
            self._start(worker)
        code = 0
        while not self._stopping:
            self._wait()
            if self._reap() and not self._all_ready and not self._stopping:
                code = FAILED  # the worker logged why
                break
            if self._draining and self._all_ready:
                self._drain()
            else:
                self._restart()
        self._stop()
        structlog.get_logger().info("stopped")
        return code

    def _on_stop_signal(self, *_: object) -> None:
        self._stopping = True

    def _on_drain_signal(self, *_: object) -> None:
        self._draining = True

    # ---- workers ----

    def _start(self, number: int) -> None:
        """Fork a worker process. Raises OSError if the operating system cannot create a process."""
        sys.stdout.flush()
        ready_pipe, report = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(ready_pipe)
            os.close(report)
            raise
        if pid == 0:
            self._become(number, ready_pipe, report)  # does not return
        os.close(report)
        self._workers[pid] = Worker(number, pid, self._clock.monotonic_ms(), ready_pipe)

    def _become(self, number: int, ready_pipe: int, report: int) -> None:
        """Turn this process into a worker. Does not return."""
        code = FAILED
        kind = self._kind
        try:
            signal.set_wakeup_fd(-1)
            for reset in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(reset, signal.SIG_DFL)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the worker handles it
            for worker in self._workers.values():
                os.close(worker.ready_pipe)
            for descriptor in (ready_pipe, self._tether_end, self._wakeup, self._wake):
                os.close(descriptor)
            structlog.contextvars.bind_contextvars(**{kind.name: kind.label(number)})
            threading.Thread(target=_stop_at_end_of, args=(self._tether,), daemon=True).start()

            def on_ready(fields: Mapping[str, object]) -> None:
                os.write(report, json.dumps(fields).encode() + b"\n")

            code = kind.serve(number, self._former.get(number, {}), on_ready)
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            structlog.get_logger().exception(f"{kind.name}_failed")
            sys.stdout.flush()
        finally:
            os._exit(code)

    def _reap(self) -> bool:
        """Collect child processes that ended. Return whether a worker was among them."""
        ended = False
        # Wait for any child, because in a container this parent is process 1. Process 1 inherits
        # the processes of a dead worker.
        for pid, status in iter(_ended_child, (0, 0)):
            worker = self._workers.get(pid)
            if worker is None:
                continue
            ended = True
            self._forget(worker)
            if not self._stopping:
                self._plan_restart(worker)
                exit_code = os.waitstatus_to_exitcode(status)
                self._log_error("ended", worker.number, exit_code=exit_code)
        return ended

    def _plan_restart(self, worker: Worker) -> None:
        now = self._clock.monotonic_ms()
        if now - worker.started_ms > LONGEST_RESTART_MS:
            self._failures[worker.number] = 0
        wait_ms = min(RESTART_MS << self._failures[worker.number], LONGEST_RESTART_MS)
        self._failures[worker.number] += 1
        self._restart_ms[worker.number] = now + wait_ms

    def _restart(self) -> None:
        now = self._clock.monotonic_ms()
        for number, restart_ms in list(self._restart_ms.items()):
            if restart_ms <= now and not self._stopping:
                try:
                    self._start(number)
                    del self._restart_ms[number]
                except OSError as error:  # the other workers continue
                    self._restart_ms[number] = now + RESTART_MS
                    self._log_error("not_started", number, reason=error.strerror)

    def _log_error(self, event: str, number: int, **fields: object) -> None:
        kind = self._kind
        label = {kind.name: kind.label(number)}
        structlog.get_logger().error(f"{kind.name}_{event}", **label, **fields)

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.pid]
        os.close(worker.ready_pipe)

    # ---- waiting ----

    def _wait(self) -> None:
        """Wait until a signal arrives, a worker becomes ready, or a worker must be started."""
        workers = self._workers.values()
        starting = {
            worker.ready_pipe: worker
            for worker in workers
            if not (worker.ready or worker.ready_pipe_closed)
        }
        next_ms = min(self._restart_ms.values(), default=None)
        timeout_s = (
            None if next_ms is None else max(0, next_ms - self._clock.monotonic_ms()) / 1_000
        )
        readable, _, _ = select.select([self._wakeup, *starting], [], [], timeout_s)
        for descriptor in readable:
            if descriptor in starting:
                self._read_ready(starting[descriptor])
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wakeup, 4_096)

    def _read_ready(self, worker: Worker) -> None:
        kind = self._kind
        line = os.read(worker.ready_pipe, 65_536)
        if not line:  # the worker ended: SIGCHLD follows
            worker.ready_pipe_closed = True
            return
        worker.ready = json.loads(line)
        self._former[worker.number] = worker.ready
        if self._all_ready:
            label = {kind.name: kind.label(worker.number)}
            structlog.get_logger().info(f"{kind.name}_serves_again", **label)
        elif all(worker.ready for worker in self._workers.values()):
            self._all_ready = True
            workers = sorted(self._workers.values(), key=lambda worker: worker.number)
            fields = kind.ready_fields([worker.ready for worker in workers])
            pids = {f"{kind.name}s": [worker.pid for worker in workers]}
            structlog.get_logger().info("ready", **fields, **pids)
            sys.stdout.flush()

    # ---- the end ----

    def _drain(self) -> None:
        """Let the workers move their clients. A worker that ends is not started again."""
        self._restart_ms.clear()
        if not self._drain_sent:
            self._drain_sent = True
            self._kind.release()  # connections to a socket that only this process has would hang
            self._signal(signal.SIGUSR1)

    def _stop(self) -> None:
        self._stopping = True
        structlog.get_logger().info("stopping")
        self._kind.release()
        self._signal(signal.SIGTERM)
        end = self._clock.monotonic_ms() + self._kind.stop_ms
        while self._workers and (left := end - self._clock.monotonic_ms()) > 0:
            select.select([self._wakeup], [], [], left / 1_000)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4_096)
            self._reap()
        self._signal(signal.SIGKILL)
        for worker in list(self._workers.values()):
            os.waitpid(worker.pid, 0)
            self._forget(worker)

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)


def options_of_worker(options: O, kind: str, number: int) -> O:
    """Return the options of one worker.

    Each worker serves its own metrics. The workers use consecutive ports for them. Each one writes
    an audit log of its own: the lines of a log have one writer.
    """
    port = options.metrics_prom_exporter_port
    audit = options.audit_log_path
    return options.model_copy(
        update={
            "metrics_prom_exporter_port": port + number if port else 0,
            "audit_log_path": f"{audit}-{kind}-{number}" if audit and number else audit,
        }
    )


def metrics_fields(ready: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Return the addresses of the workers' metrics as a field of `ready`, or no field."""
    found = [each["metrics"] for each in ready if "metrics" in each]
    return {"metrics": found} if found else {}


def _ended_child() -> tuple[int, int]:
    """Return (process id, wait status) of a child that ended, or (0, 0) if no child has ended."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _stop_at_end_of(tether: int) -> None:
    """Wait until the parent's end of the pipe is closed, then stop this process with SIGTERM."""
    os.read(tether, 1)
    os.kill(os.getpid(), signal.SIGTERM)
