"""Start child processes, read their output and stop them. They never outlive this process.

This module does not depend on a service. A child runs under `aerobee_cli.processes.tether`, as the
leader of its own session. Therefore Ctrl-C in a terminal reaches only this process. `StopSignals`
then cancels the coroutines of this process, which stop the children in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from aerobee_cli.errors import ProcessEnded
from aerobee_cli.processes.log_lines import event_fields

LineSink = Callable[[str], None]

READY = "ready"
# A service loads in about a second; recovery of a large store after a crash takes longer.
READY_TIMEOUT_S = 120.0
STOP_GRACE_S = 15.0
# The time in which grandchildren must end after the child.
REST_GRACE_S = 10.0
EXIT_POLL_S = 1.0
# The maximum length of a log line. asyncio's default limit is 64 KiB.
LINE_LIMIT = 1024 * 1024
ERROR_PREFIX = "error: "


class Child:
    """A child process `python -m MODULE ARGUMENT…`.

    Call `launch`, then `begin` with its last arguments, then `until_ready`, and finally `stop`.
    `on_line` is called with every line that the child prints, without the newline; its OSError is
    ignored. A line on stderr that starts with "error: " is kept for the message of ProcessEnded.
    Such a line is passed to `on_line` only if the child succeeds. The child inherits the open files
    `pass_fds`.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        on_line: LineSink,
        *,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._pass_fds = tuple(pass_fds)
        self.ready: dict[str, Any] = {}
        # What the child logged as a hint for the user before it was ready.
        self.hints: list[str] = []
        self._command = [sys.executable, "-m", "aerobee_cli.processes.tether", module, *arguments]
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[int] | None = None
        self._is_ready = asyncio.Event()
        self._errors: list[str] = []

    @property
    def pid(self) -> int:
        assert self._process is not None, "not launched"
        return self._process.pid

    async def launch(self) -> None:
        """Start the process. It loads its module and then waits for `begin`."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "AEROBEE_LOG_FORMAT": "json"},  # the ready line is JSON
            start_new_session=True,
            pass_fds=self._pass_fds,
            limit=LINE_LIMIT,
        )
        self._ended = asyncio.create_task(self._read_until_end(self._process))

    async def begin(self, *arguments: str) -> None:
        """Send the waiting process its remaining arguments, so that it continues to start."""
        assert self._process is not None and self._process.stdin is not None, "not launched"
        # If the process has ended already, `until_ready` raises the reason.
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
            await self._process.stdin.drain()

    async def until_ready(self) -> dict[str, Any]:
        """Wait for the ready line of the process, and return its fields.

        Raises ProcessEnded if the process ends or is not ready in time.
        """
        assert self._ended is not None, "not launched"
        ready = asyncio.create_task(self._is_ready.wait())
        try:
            await asyncio.wait(
                {ready, self._ended}, timeout=READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if self._ended.done():
            raise self.failure()
        if not self._is_ready.is_set():
            raise ProcessEnded(f"{self.name} is not ready after {READY_TIMEOUT_S:g} s: see its log")
        return self.ready

    async def wait(self) -> int:
        """Wait until the process has ended and `on_line` has its output. Return the exit code."""
        assert self._ended is not None, "not launched"
        return await asyncio.shield(self._ended)

    def failure(self) -> ProcessEnded:
        """Return the error for a process that ended although it was not stopped."""
        assert self._process is not None, "not launched"
        code = self._process.returncode
        how = f"with exit code {code}" if code is None or code >= 0 else f"by {_signal_name(-code)}"
        if self._errors:
            return ProcessEnded(f"{self.name}: {self._errors[-1].removeprefix(ERROR_PREFIX)}")
        return ProcessEnded(f"{self.name} ended {how}: see its log")

    def kill(self) -> None:
        """Send SIGKILL to the process and its children. `wait` returns when it has ended."""
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(self.pid, signal.SIGKILL)

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Send SIGTERM to the process and its children, and SIGKILL after `grace_s`.

        Return when the process has ended.
        """
        if self._ended is None:
            return
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
            if self._ended.done():
                break
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(self.pid, number)
            await asyncio.wait({self._ended}, timeout=wait_s)
        await self._ended

    async def _read_until_end(self, process: asyncio.subprocess.Process) -> int:
        assert process.stdout is not None and process.stderr is not None
        reading = asyncio.gather(
            self._read(process.stdout, self._on_stdout),
            self._read(process.stderr, self._on_stderr),
        )
        # process.wait() would also wait until the pipes are closed.
        while process.returncode is None and not reading.done():
            await asyncio.wait({reading}, timeout=EXIT_POLL_S)
        # Grandchildren may keep the pipes open. They are killed after REST_GRACE_S.
        _, left = await asyncio.wait({reading}, timeout=REST_GRACE_S)
        if left and process.returncode is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await reading
        code = await process.wait()
        if code == 0:
            for line in self._errors:
                self._forward(line)
        return code

    async def _read(self, stream: asyncio.StreamReader, on_line: LineSink) -> None:
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # longer than LINE_LIMIT: skipped
                continue
            if not raw:
                return
            on_line(raw.decode("utf-8", "replace").rstrip("\n"))

    def _forward(self, line: str) -> None:
        # A failing log (a full disk, a closed pipe) must not stop a service.
        with suppress(OSError):
            self._on_line(line)

    def _on_stdout(self, line: str) -> None:
        self._forward(line)
        if self._is_ready.is_set() or (fields := event_fields(line)) is None:
            return
        if fields.get("event") == READY:
            self.ready = fields
            self._is_ready.set()
        elif "hint" in fields:
            self.hints.append(str(fields["hint"]))

    def _on_stderr(self, line: str) -> None:
        if line.startswith(ERROR_PREFIX):
            self._errors.append(line)
        else:
            self._forward(line)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class Stopped(Exception):
    """A signal requested the stop of this program."""


class StopSignals:
    """Handles SIGINT, SIGTERM and SIGHUP in the running loop. Only the first signal counts."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[Stopped] = loop.create_future()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._stop, number)

    def _stop(self, number: signal.Signals) -> None:
        if not self._stopped.done():
            self._stopped.set_result(Stopped(f"stopped by {number.name}"))

    async def guard(self, *works: Coroutine[Any, Any, None]) -> None:
        """Run `works` concurrently until the first of them ends, then cancel the others.

        Raises the error of the work that ended first, or Stopped if a signal arrived before.
        """
        tasks = {asyncio.create_task(work) for work in works}
        waits: set[asyncio.Future[Any]] = {*tasks, self._stopped}
        try:
            ended, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            # The results of the others are ignored: they were cancelled.
            await asyncio.gather(*tasks, return_exceptions=True)
        for first in ended - {self._stopped}:
            first.result()
        if self._stopped in ended:
            raise self._stopped.result()
