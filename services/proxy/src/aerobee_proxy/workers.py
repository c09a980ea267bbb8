"""Run several proxy processes on one port to use more than one core (option `workers=N`).

The parent process binds the port, with a listening socket for each worker, and the kernel spreads
connections over these sockets. A worker is a complete proxy. Workers do not share state, and a
client may have connections to several workers.

The parent only supervises. When a worker ends, the parent starts another worker on the same socket.
New connections wait on that socket meanwhile. When the parent is stopped or killed, all workers
stop.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from aerobee_chassis import process
from aerobee_chassis.addresses import join_address
from aerobee_chassis.clock import SystemClock
from aerobee_chassis.errors import StartError
from aerobee_chassis.tls_port.supervisor import listen
from aerobee_proxy.app import ProxyApp
from aerobee_proxy.config import ProxyOptions

RESTART_MS = 1_000  # between the end of a worker and its next start
STOP_MS = 10_000  # time for the workers to end in order; then they are killed
FAILED = 1


@dataclass(slots=True)
class Worker:
    number: int
    pid: int
    ready_pipe: int  # the worker writes the fields of its ready line to it, as JSON
    ready: dict[str, object] = field(default_factory=dict)
    ready_pipe_closed: bool = False


def run(options: ProxyOptions) -> int:
    """Run until SIGTERM or SIGINT. Return the exit code."""
    try:
        listeners = _listeners(options)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return _Parent(options, listeners).run()


def _listeners(options: ProxyOptions) -> list[list[socket.socket]]:
    """Return the listening sockets of each worker.

    Raises PortInUse if another process listens on the port, even if that process shares the port,
    and StartError on other systems than Linux, which give all connections to one of the sockets.
    """
    if sys.platform != "linux":
        raise StartError(f"workers={options.workers} needs Linux: use workers=1", "workers")
    host = options.bind_address
    alone = listen(host, options.grpc_server_port)
    port = alone[0].getsockname()[1]
    for listener in alone:
        listener.close()
    return [listen(host, port, reuse_port=True) for _ in range(options.workers)]


class _Parent:
    def __init__(self, options: ProxyOptions, listeners: list[list[socket.socket]]) -> None:
        self._options = options
        self._clock = SystemClock()
        self._listeners = listeners
        self._workers: dict[int, Worker] = {}
        self._restart_ms: dict[int, int] = {}  # number of a worker → when to start it, monotonic
        # Workers wait for the end of this pipe. It closes when this process ends for any reason.
        self._tether, self._tether_end = os.pipe()
        self._wakeup, wake = os.pipe()  # signals write to it
        for descriptor in (self._wakeup, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._wake = wake
        self._stopping = self._all_ready = self._draining = False

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop_signal)
        signal.signal(signal.SIGUSR1, self._on_drain_signal)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for worker in range(self._options.workers):
            self._start(worker)
        code = 0
        while not self._stopping:
            self._wait()
            if self._reap() and not self._all_ready:
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
        self._workers[pid] = Worker(number, pid, ready_pipe)

    def _become(self, number: int, ready_pipe: int, report: int) -> None:
        """Turn this process into a worker. Does not return."""
        code = FAILED
        try:
            signal.set_wakeup_fd(-1)
            for reset in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(reset, signal.SIG_DFL)
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the worker handles it
            for worker in self._workers.values():
                os.close(worker.ready_pipe)
            listeners = self._listeners.pop(number)
            self._close_listeners()
            for descriptor in (ready_pipe, self._tether_end, self._wakeup, self._wake):
                os.close(descriptor)
            structlog.contextvars.bind_contextvars(worker=number)
            threading.Thread(target=_stop_at_end_of, args=(self._tether,), daemon=True).start()

            def ready(fields: Mapping[str, object]) -> None:
                os.write(report, json.dumps(fields).encode() + b"\n")

            options = _options_of(self._options, number)
            code = process.run(
                lambda: ProxyApp(options, listeners=listeners),
                options.grpc_transport,
                on_ready=ready,
            )
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            structlog.get_logger().exception("worker_failed")
            sys.stdout.flush()
        finally:
            os._exit(code)

    def _reap(self) -> bool:
        """Collect child processes that ended. Return whether a worker was among them."""
        ended = False
        # Wait for any child, because in a container this parent is process 1. Process 1 inherits
        # the relay process of a dead worker.
        for pid, status in iter(_ended_child, (0, 0)):
            worker = self._workers.get(pid)
            if worker is None:
                continue
            ended = True
            self._forget(worker)
            self._restart_ms[worker.number] = self._clock.monotonic_ms() + RESTART_MS
            if not self._stopping:
                structlog.get_logger().error(
                    "worker_ended",
                    worker=worker.number,
                    exit_code=os.waitstatus_to_exitcode(status),
                )
        return ended

    def _restart(self) -> None:
        now = self._clock.monotonic_ms()
        for number, restart_ms in list(self._restart_ms.items()):
            if restart_ms <= now and not self._stopping:
                try:
                    self._start(number)
                    del self._restart_ms[number]
                except OSError as error:  # the other workers continue
                    self._restart_ms[number] = now + RESTART_MS
                    structlog.get_logger().error(
                        "worker_not_started", worker=number, reason=error.strerror
                    )

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
        line = os.read(worker.ready_pipe, 65_536)
        if not line:  # the worker ended: SIGCHLD follows
            worker.ready_pipe_closed = True
            return
        worker.ready = json.loads(line)
        if self._all_ready:
            structlog.get_logger().info("worker_serves_again", worker=worker.number)
        elif all(worker.ready for worker in self._workers.values()):
            self._all_ready = True
            structlog.get_logger().info("ready", **self._ready_fields())
            sys.stdout.flush()

    def _ready_fields(self) -> dict[str, object]:
        port = self._listeners[0][0].getsockname()[1]
        fields: dict[str, object] = {
            "address": join_address(self._options.bind_address, port),
            "tls": self._options.tls_server_mode,
            "workers": sorted(self._workers),
        }
        workers = sorted(self._workers.values(), key=lambda worker: worker.number)
        if metrics := [worker.ready["metrics"] for worker in workers if "metrics" in worker.ready]:
            fields["metrics"] = metrics
        return fields

    # ---- the end ----

    def _drain(self) -> None:
        """Let the workers move their clients. A worker that ends is not started again."""
        self._restart_ms.clear()
        if self._listeners:
            self._close_listeners()  # connections to a socket that only this process has would hang
            self._listeners.clear()
            self._signal(signal.SIGUSR1)

    def _stop(self) -> None:
        self._stopping = True
        structlog.get_logger().info("stopping")
        self._close_listeners()
        self._signal(signal.SIGTERM)
        end = self._clock.monotonic_ms() + STOP_MS
        while self._workers and (left := end - self._clock.monotonic_ms()) > 0:
            select.select([self._wakeup], [], [], left / 1_000)
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4_096)
            self._reap()
        self._signal(signal.SIGKILL)
        for worker in list(self._workers.values()):
            os.waitpid(worker.pid, 0)
            self._forget(worker)

    def _close_listeners(self) -> None:
        for listener in itertools.chain.from_iterable(self._listeners):
            listener.close()

    def _signal(self, number: signal.Signals) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, number)


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


def _options_of(options: ProxyOptions, number: int) -> ProxyOptions:
    """Return the options of one worker.

    Each worker serves its own metrics. The workers use consecutive ports for them. Each one writes
    an audit log of its own: the lines of a log have one writer.
    """
    port = options.metrics_prom_exporter_port
    audit = options.audit_log_path
    return options.model_copy(
        update={
            "metrics_prom_exporter_port": port + number if port else 0,
            "audit_log_path": f"{audit}-worker-{number}" if audit and number else audit,
            "workers": 1,
        }
    )
