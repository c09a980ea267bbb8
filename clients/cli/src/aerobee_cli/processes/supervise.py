"""Child processes that never outlive this one: start, read what they say, stop. Knows no service.

A child runs under `aerobee_cli.processes.tether`, as the leader of a session of its own, so that
Ctrl-C in a terminal reaches this process only, which then stops its children in its own order.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from aerobee_cli.errors import ProcessEnded

LineSink = Callable[[str], None]

READY = "ready"
# A service loads in about a second; recovery of a large store after a crash takes longer.
READY_TIMEOUT_S = 120.0
STOP_GRACE_S = 15.0
# What a child started has so long to notice that the child is gone.
REST_GRACE_S = 10.0
EXIT_POLL_S = 1.0
# Lines of a log may be long; asyncio's default limit is 64 KiB.
LINE_LIMIT = 1024 * 1024
ERROR_PREFIX = "error: "


class Child:
    """`python -m MODULE ARGUMENT…`: launched, told its last arguments, ready, stopped.

    `on_line` gets every line that it prints, without the newline; its OSError is let pass. A line
    on stderr that starts with "error: " is kept for the message of ProcessEnded instead, and passed
    on only when the child does not fail.
    """

    def __init__(self, name: str, module: str, arguments: Sequence[str], on_line: LineSink) -> None:
        self.name = name
        self.ready: dict[str, Any] = {}
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
        """Starts it. It loads its code and then waits for `begin`."""
        self._process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=LINE_LIMIT,
        )
        self._ended = asyncio.create_task(self._read_until_end(self._process))

    async def begin(self, *arguments: str) -> None:
        """Gives it its last arguments, and lets it run."""
        assert self._process is not None and self._process.stdin is not None, "not launched"
        # When it is gone already, `until_ready` and `wait` tell why.
        with suppress(ConnectionError):
            self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
            await self._process.stdin.drain()

    async def until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> dict[str, Any]:
        """The fields of its ready line. Raises ProcessEnded."""
        assert self._ended is not None, "not launched"
        ready = asyncio.create_task(self._is_ready.wait())
        try:
            await asyncio.wait(
                {ready, self._ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ready.cancel()
        if self._ended.done():
            raise self.failure()
        if not self._is_ready.is_set():
            raise ProcessEnded(f"{self.name} is not ready after {timeout_s:g} s: see its log")
        return self.ready

    async def wait(self) -> int:
        """Returns its exit code once it has ended and all that it said was passed on."""
        assert self._ended is not None, "not launched"
        return await asyncio.shield(self._ended)

    def failure(self) -> ProcessEnded:
        """What to tell about a child that ended unasked."""
        assert self._process is not None, "not launched"
        code = self._process.returncode
        how = f"with exit code {code}" if code is None or code >= 0 else f"by {_signal_name(-code)}"
        if self._errors:
            return ProcessEnded(f"{self.name}: {self._errors[-1].removeprefix(ERROR_PREFIX)}")
        return ProcessEnded(f"{self.name} ended {how}: see its log")

    async def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """SIGTERM to it and what it started, later SIGKILL; returns when it is gone."""
        if self._ended is None:
            return
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, None)):
            if self._ended.done():
                break
            with suppress(ProcessLookupError):  # it ended this moment
                os.killpg(self.pid, number)
            await asyncio.wait({self._ended}, timeout=wait_s)
        await self._ended

    async def _read_until_end(self, process: asyncio.subprocess.Process) -> int:
        assert process.stdout is not None and process.stderr is not None
        reading = asyncio.gather(
            self._read(process.stdout, self._hear), self._read(process.stderr, self._hear_error)
        )
        # Not process.wait(): that waits for the ends of the pipes as well.
        while process.returncode is None and not reading.done():
            await asyncio.wait({reading}, timeout=EXIT_POLL_S)
        # What it started and still holds its pipes ends with it, or is ended.
        _, left = await asyncio.wait({reading}, timeout=REST_GRACE_S)
        if left and process.returncode is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await reading
        code = await process.wait()
        if code == 0:
            for line in self._errors:
                self._pass_on(line)
        return code

    async def _read(self, stream: asyncio.StreamReader, hear: LineSink) -> None:
        while True:
            try:
                raw = await stream.readline()
            except ValueError:  # longer than LINE_LIMIT: left out, so that the next ones come
                continue
            if not raw:
                return
            hear(raw.decode("utf-8", "replace").rstrip("\n"))

    def _pass_on(self, line: str) -> None:
        # A log that cannot be written (a full disk, nobody reads it) ends no service.
        with suppress(OSError):
            self._on_line(line)

    def _hear(self, line: str) -> None:
        self._pass_on(line)
        if not self._is_ready.is_set() and (fields := ready_fields(line)) is not None:
            self.ready = fields
            self._is_ready.set()

    def _hear_error(self, line: str) -> None:
        if line.startswith(ERROR_PREFIX):
            self._errors.append(line)
        else:
            self._pass_on(line)


def ready_fields(line: str) -> dict[str, Any] | None:
    """The fields of a service's ready line; None when `line` is another one."""
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return dict(fields) if fields.get("event") == READY else None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
