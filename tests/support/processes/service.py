"""A service in a process of its own: start it, know its address, read its log, stop or kill it.

For `python -m aerobee_namesrv` and its like, which say that they serve with one JSON line
`{"event": "ready", "address": "127.0.0.1:PORT", …}` on stdout. Everything here blocks: inside a
coroutine that shares its loop with others, use `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Self

from support.processes.prepared import ForkedProcess, fork
from support.running import canary, secure

START_TIMEOUT_S = 30.0
STOP_GRACE_S = 15.0
DRAIN_TIMEOUT_S = 60.0
SMALL_LOG = "--set=mappedFileSizeCommitLog=67108864"
METRICS = ("--set=metricsExporterType=PROM", "--set=metricsPromExporterPort=0")


def _closed(module: str, arguments: Sequence[str]) -> dict[str, str]:
    """Return the variables that close a service, if tests run so."""
    closed = secure.enabled()
    return {} if closed is None else closed.service_environment(module, arguments)


def run(
    module: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE ARGUMENT…` to its end: for a start that fails, and for what only prints."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        env={**os.environ, **(env or {}), **_closed(module, arguments)},
        text=True,
        timeout=timeout_s,
        check=False,
    )


class StartFailure(AssertionError):
    """The process ended or stayed silent before its ready line. The message holds its output."""


class ServiceProcess:
    """`python -m MODULE ARGUMENT…`, started on entry of `with`, gone on exit.

        with ServiceProcess("aerobee_namesrv", "--port", "0", "--data", str(tmp_path)) as namesrv:
            stub = stub_for(namesrv.address)

    A `--port 0` becomes the port that was bound at the first start, so that `restart` keeps it.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix`: the command starts with it; it is to become the service, by exec."""
        self.module = module
        self.python = sys.executable  # of the next start: another one may have another version
        self.arguments = list(arguments)
        self._prefix = prefix
        self.ready: dict[str, Any] = {}
        own = {"PYTHONUNBUFFERED": "1", **(env or {}), **_closed(module, arguments)}
        self.environment = {**os.environ, **own}
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        self._readers: list[threading.Thread] = []
        self._pipes: list[_Pipe] = []  # stdout and stderr, while they are open
        self._changed = threading.Condition()
        self._out: list[str] = []
        self._parsed = 0  # lines of it that are in the log
        self._log: list[dict[str, Any]] = []
        self._err: list[str] = []

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(self, *error: object) -> None:
        looks = secure.enabled() is not None and error[0] is None
        if looks and self.is_running:
            canary.check_command_line(self.pid)
        self.stop()
        if error is not None:
            print(self.output)  # pytest shows it with the failure
        if looks:
            canary.check_text(self.output, self.module)
            for option, folder in pairwise(self.arguments):
                if option == "--data":
                    canary.check_files(Path(folder))

    # ---- what it says ----

    @property
    def address(self) -> str:
        """The "host:port" of the ready line."""
        return str(self.ready["address"])

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    @property
    def log(self) -> list[dict[str, Any]]:
        """The JSON lines of stdout, over all starts, up to the last one that it has written."""
        with self._changed:
            self._take()
            new = self._out[self._parsed :]
            self._parsed += len(new)
            self._log += [json.loads(line) for line in new if line.startswith("{")]
            return list(self._log)

    def events(self, event: str) -> list[dict[str, Any]]:
        """The log lines of this event."""
        return [line for line in self.log if line.get("event") == event]

    @property
    def stderr(self) -> str:
        with self._changed:
            self._take()
            return "".join(self._err)

    @property
    def output(self) -> str:
        with self._changed:
            return f"--- {self.module} stdout\n{''.join(self._out)}--- stderr\n{''.join(self._err)}"

    # ---- its life ----

    def start(self, timeout_s: float = START_TIMEOUT_S) -> str:
        """Starts it and waits for the ready line; returns the address. Raises StartFailure."""
        process = self.launch()
        with self._changed:
            self._changed.wait_for(lambda: self.ready or not self._pipes, timeout_s)
        if not self.ready:
            self.kill()
            code = process.returncode
            raise StartFailure(f"{self.module} was not ready (exit code {code}):\n{self.output}")
        self._keep_port()
        return self.address

    def launch(self) -> subprocess.Popen[bytes] | ForkedProcess:
        """Starts it and waits for nothing: for a start that is meant to fail (`wait`)."""
        assert self._process is None, "already started"
        self.ready = {}
        is_ours = self.python == sys.executable and not self._prefix
        forked = fork(self.module, self.arguments, self.environment) if is_ours else None
        self._process = forked or subprocess.Popen(
            [*self._prefix, self.python, "-m", self.module, *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
        )
        assert self._process.stdout is not None and self._process.stderr is not None
        pipes = [_Pipe(self._process.stdout, self._out), _Pipe(self._process.stderr, self._err)]
        self._pipes = list(pipes)
        self._readers = [
            threading.Thread(target=self._read, args=(pipe,), daemon=True) for pipe in pipes
        ]
        for reader in self._readers:
            reader.start()
        return self._process

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Waits until it ends by itself; returns the exit code. Raises TimeoutExpired."""
        assert self._process is not None, "not started"
        code = self._process.wait(timeout_s)
        self._finish()
        return code

    def stop(self, grace_s: float = STOP_GRACE_S) -> int | None:
        """SIGTERM, and SIGKILL when it has not ended after `grace_s`; returns the exit code.

        None when it was not running.
        """
        return self._end(signal.SIGTERM, grace_s)

    def kill(self) -> int | None:
        """SIGKILL; returns the exit code, or None when it was not running."""
        return self._end(signal.SIGKILL, STOP_GRACE_S)

    def restart(self) -> str:
        """Stops it if it runs, and starts it with the same arguments on the same port."""
        self.stop()
        return self.start()

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, for example SIGSTOP."""
        os.kill(self.pid, number)

    def _end(self, number: signal.Signals, grace_s: float) -> int | None:
        process = self._process
        if process is None:
            return None
        process.send_signal(number)
        try:
            code = process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        self._finish()
        return code

    def _finish(self) -> None:
        for reader in self._readers:
            reader.join(STOP_GRACE_S)
        self._process = None

    def _keep_port(self) -> None:
        for place, argument in enumerate(self.arguments[:-1]):
            if argument == "--port" and self.arguments[place + 1] == "0":
                self.arguments[place + 1] = str(self.port)

    def _read(self, pipe: _Pipe) -> None:
        while pipe.is_open:
            pipe.wait()
            with self._changed:
                self._take(pipe)
        pipe.close()

    def _take(self, *more: _Pipe) -> None:
        """Take the new output of the process, and of `more` pipes. Called under the lock.

        A pipe of an earlier process stays open if a child of it still runs.
        """
        for pipe in {*self._pipes, *more}:
            new = pipe.take()
            if pipe not in self._pipes:
                continue
            if pipe.lines is self._out:
                self.ready = next((json.loads(line) for line in new if _is_ready(line)), self.ready)
            if not pipe.is_open:
                self._pipes.remove(pipe)
        self._changed.notify_all()


class _Pipe:
    """An end of a pipe, and the `lines` that came out of it."""

    def __init__(self, stream: IO[bytes], lines: list[str]) -> None:
        os.set_blocking(stream.fileno(), False)
        self._stream = stream
        self._torn = b""  # the begin of a line
        self._readable = select.poll()
        self._readable.register(stream, select.POLLIN)
        self.lines = lines
        self.is_open = True

    def wait(self) -> None:
        """Waits until there is something to take, or the other end is closed."""
        self._readable.poll()

    def take(self) -> list[str]:
        """Takes what is there; returns the new lines."""
        parts = [self._torn]
        with contextlib.suppress(BlockingIOError):
            while part := os.read(self._stream.fileno(), 1 << 16):
                parts.append(part)
            self.is_open = False
        *new, self._torn = b"".join(parts).splitlines(keepends=True) or [b""]
        if not self.is_open or self._torn.endswith(b"\n"):
            new, self._torn = [*new, self._torn], b""
        lines = [line.decode(errors="replace") for line in new if line]
        self.lines += lines
        return lines

    def close(self) -> None:
        self._stream.close()


def _is_ready(line: str) -> bool:
    return line.startswith("{") and json.loads(line).get("event") == "ready"


def namesrv_process(data: Path, *arguments: str) -> ServiceProcess:
    return ServiceProcess("aerobee_namesrv", "--port", "0", "--data", str(data), *arguments)


def broker_process(data: Path, *arguments: str, namesrv: str = "") -> ServiceProcess:
    """Named broker-a, with a small log; without a name server unless one is given."""
    return ServiceProcess(
        *("aerobee_broker", "--port", "0", "--data", str(data)),
        *unless_set(("--set=brokerName=broker-a", SMALL_LOG), arguments),
        *arguments,
        *(("--namesrv", namesrv) if namesrv else ()),
    )


def named_broker(data: Path, name: str, *arguments: str, namesrv: str) -> ServiceProcess:
    """One of several brokers, in the folder of its name below `data`."""
    return broker_process(data / name, f"--set=brokerName={name}", *arguments, namesrv=namesrv)


def drain(service: ServiceProcess) -> None:
    """Move the clients of a service that has METRICS to others, as preStop does in Kubernetes."""
    endpoints = service.ready["metrics"]
    run_drain = run(
        "aerobee_chassis.drain",
        *("--pid", str(service.pid)),
        *([endpoints] if isinstance(endpoints, str) else endpoints),
        str(int(DRAIN_TIMEOUT_S)),
        timeout_s=DRAIN_TIMEOUT_S + START_TIMEOUT_S,
    )
    assert run_drain.returncode == 0, run_drain.stderr


def unless_set(defaults: Iterable[str], arguments: Sequence[str]) -> list[str]:
    """Return the `defaults`, "--set=KEY=VALUE", whose key `arguments` do not set: a service refuses
    a key that is set twice."""
    return [each for each in defaults if each.rpartition("=")[0] not in _keys_set(arguments)]


def _keys_set(arguments: Sequence[str]) -> set[str]:
    """Of "--set=KEY=VALUE", and of "--set" followed by "KEY=VALUE"."""
    joined = [f"{one}={other}" for one, other in pairwise(arguments) if one == "--set"]
    return {"=".join(each.split("=")[:2]) for each in (*arguments, *joined)}


def proxy_process(
    namesrv: str, *arguments: str, env: Mapping[str, str] | None = None
) -> ServiceProcess:
    return ServiceProcess("aerobee_proxy", "--port", "0", "--namesrv", namesrv, *arguments, env=env)


@contextlib.contextmanager
def namesrv_and_broker(
    data: Path, *broker_arguments: str
) -> Iterator[tuple[ServiceProcess, ServiceProcess]]:
    with (
        namesrv_process(data) as namesrv,
        broker_process(data, *broker_arguments, namesrv=namesrv.address) as broker,
    ):
        yield namesrv, broker


@contextlib.contextmanager
def namesrv_and_brokers(
    data: Path, *broker_arguments: str, names: Iterable[str] = ("broker-a", "broker-b")
) -> Iterator[tuple[ServiceProcess, dict[str, ServiceProcess]]]:
    with contextlib.ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(data))
        brokers = {
            name: stack.enter_context(
                named_broker(data, name, *broker_arguments, namesrv=namesrv.address)
            )
            for name in names
        }
        yield namesrv, brokers
