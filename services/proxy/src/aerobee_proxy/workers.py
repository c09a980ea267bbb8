"""Several processes on one port, where one core is not enough: `workers=N`.

The port is bound here, a socket for each worker, and the kernel deals connections out to them. A
worker is a whole proxy; proxies share nothing, and a client may talk to several. This process only
watches over them: it starts another when one ends, whose connections wait meanwhile, and ends them
all when it is told to, or is killed.
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

RESTART_MS = 1_000  # between two starts of one worker
STOP_MS = 10_000  # for the workers to end in order
FAILED = 1


@dataclass(slots=True)
class Worker:
    number: int
    pid: int
    news: int  # what it tells, once it serves: the fields of its ready line
    ready: dict[str, object] = field(default_factory=dict)
    gone: bool = False  # it tells nothing any more


def run(options: ProxyOptions) -> int:
    """Until SIGTERM or SIGINT; returns the exit code."""
    try:
        listeners = _listeners(options)
    except StartError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return _Parent(options, listeners).run()


def _listeners(options: ProxyOptions) -> list[list[socket.socket]]:
    """Of each worker. Raises PortInUse, also where others would share the port."""
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
        self._due: dict[int, int] = {}  # number of a worker → when to start it, milliseconds
        # A worker that reads the end of it knows that this process is no more.
        self._tether, self._tether_end = os.pipe()
        self._woken, wake = os.pipe()
        for descriptor in (self._woken, wake):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._wake = wake
        self._stopping = self._all_ready = False

    def run(self) -> int:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for worker in range(self._options.workers):
            self._start(worker)
        code = 0
        while not self._stopping:
            self._wait()
            if self._reap() and not self._all_ready:
                code = FAILED  # it said why
                break
            self._start_again()
        self._stop()
        structlog.get_logger().info("stopped")
        return code

    def _told_to_stop(self, *_: object) -> None:
        self._stopping = True

    # ---- workers ----

    def _start(self, number: int) -> None:
        """Raises OSError where there is no room for another process."""
        sys.stdout.flush()
        news, tell = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(news)
            os.close(tell)
            raise
        if pid == 0:
            self._become(number, news, tell)  # does not return
        os.close(tell)
        self._workers[pid] = Worker(number, pid, news)

    def _become(self, number: int, news: int, tell: int) -> None:
        """The life of a worker: this process is one from here on."""
        code = FAILED
        try:
            signal.set_wakeup_fd(-1)
            for one in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
                signal.signal(one, signal.SIG_DFL)
            for worker in self._workers.values():
                os.close(worker.news)
            listeners = self._listeners.pop(number)
            self._close_listeners()
            for descriptor in (news, self._tether_end, self._woken, self._wake):
                os.close(descriptor)
            structlog.contextvars.bind_contextvars(worker=number)
            threading.Thread(target=_end_with, args=(self._tether,), daemon=True).start()

            def ready(fields: Mapping[str, object]) -> None:
                os.write(tell, json.dumps(fields).encode() + b"\n")

            options = _options_of(self._options, number)
            code = process.run(
                lambda: ProxyApp(options, listeners=listeners),
                options.grpc_transport,
                on_ready=ready,
            )
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            structlog.get_logger().exception("worker failed")
            sys.stdout.flush()
        finally:
            os._exit(code)

    def _reap(self) -> bool:
        """Whether a worker ended that should not have."""
        ended = False
        # Whatever ended: in a container this is process 1, and so heir to a lost worker's relay.
        for pid, status in iter(_ended_child, (0, 0)):
            worker = self._workers.get(pid)
            if worker is None:
                continue
            ended = True
            self._forget(worker)
            self._due[worker.number] = self._clock.monotonic_ms() + RESTART_MS
            if not self._stopping:
                structlog.get_logger().error(
                    "a worker ended",
                    worker=worker.number,
                    exit_code=os.waitstatus_to_exitcode(status),
                )
        return ended

    def _start_again(self) -> None:
        now = self._clock.monotonic_ms()
        for number, due in list(self._due.items()):
            if due <= now and not self._stopping:
                try:
                    self._start(number)
                    del self._due[number]
                except OSError as error:  # the others go on serving
                    self._due[number] = now + RESTART_MS
                    structlog.get_logger().error(
                        "a worker cannot start", worker=number, reason=error.strerror
                    )

    def _forget(self, worker: Worker) -> None:
        del self._workers[worker.pid]
        os.close(worker.news)

    # ---- waiting ----

    def _wait(self) -> None:
        """Until a signal, until a worker says that it serves, or until one is to be started."""
        workers = self._workers.values()
        silent = {one.news: one for one in workers if not (one.ready or one.gone)}
        due = min(self._due.values(), default=None)
        timeout_s = None if due is None else max(0, due - self._clock.monotonic_ms()) / 1_000
        heard, _, _ = select.select([self._woken, *silent], [], [], timeout_s)
        for descriptor in heard:
            if descriptor in silent:
                self._hear(silent[descriptor])
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4_096)

    def _hear(self, worker: Worker) -> None:
        line = os.read(worker.news, 65_536)
        if not line:  # it ended: SIGCHLD tells
            worker.gone = True
            return
        worker.ready = json.loads(line)
        if self._all_ready:
            structlog.get_logger().info("a worker serves again", worker=worker.number)
        elif all(one.ready for one in self._workers.values()):
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

    def _stop(self) -> None:
        self._stopping = True
        structlog.get_logger().info("stopping")
        self._close_listeners()
        self._signal(signal.SIGTERM)
        end = self._clock.monotonic_ms() + STOP_MS
        while self._workers and (left := end - self._clock.monotonic_ms()) > 0:
            select.select([self._woken], [], [], left / 1_000)
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4_096)
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
    """Process id and status of one; (0, 0) when there is none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _end_with(tether: int) -> None:
    """Ends this process, in order, when the other side of the pipe is no more."""
    os.read(tether, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _options_of(options: ProxyOptions, number: int) -> ProxyOptions:
    """Those of one worker: each has metrics of its own, on ports that follow one another."""
    port = options.metrics_prom_exporter_port
    return options.model_copy(
        update={"metrics_prom_exporter_port": port + number if port else 0, "workers": 1}
    )
