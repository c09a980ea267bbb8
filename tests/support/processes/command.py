"""The command `aerobee` in processes of its own: run one, or keep `aerobee up` running."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Self

from support.processes.prepared import ForkedProcess, fork

COMMAND = (sys.executable, "-m", "aerobee_cli")
RUN_TIMEOUT_S = 60.0
END_TIMEOUT_S = 60.0
OF_THIS_MACHINE = {"disk", "memory"}  # what the doctor also checks; tests run on full disks too


def found_by_doctor(json_text: str) -> list[dict[str, str]]:
    """Return the findings of `doctor --json` about a cluster, without those about this machine."""
    findings: list[dict[str, str]] = json.loads(json_text)
    return [each for each in findings if each["check"] not in OF_THIS_MACHINE]


def aerobee(
    *arguments: str, namesrv: str | None = None, input_bytes: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Its stdin is not a terminal."""
    env = {**os.environ, **({"NAMESRV_ADDR": namesrv} if namesrv else {})}
    with tempfile.TemporaryFile() as given:
        given.write(input_bytes or b"")
        given.seek(0)
        if (forked := fork("aerobee_cli", arguments, env, given.fileno())) is not None:
            return _end_of(forked)
    done = subprocess.run(
        [*COMMAND, *arguments],
        input=input_bytes or b"",
        capture_output=True,
        env=env,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def _end_of(process: ForkedProcess) -> subprocess.CompletedProcess[str]:
    with ThreadPoolExecutor(1) as reader:
        err = reader.submit(process.stderr.read)
        with process.stdout, process.stderr:
            try:
                with _killed_after(process, RUN_TIMEOUT_S) as is_late:
                    out = process.stdout.read()
                    shown = err.result()
                    code = process.wait()
            finally:
                process.kill()
    if is_late.is_set():
        raise subprocess.TimeoutExpired(process.args, RUN_TIMEOUT_S, out, shown)
    return subprocess.CompletedProcess(process.args, code, out.decode(), shown.decode())


@contextlib.contextmanager
def _killed_after(process: ForkedProcess, seconds: float) -> Iterator[threading.Event]:
    """Kill the process if the block takes longer, and set the event."""
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        process.kill()

    timer = threading.Timer(seconds, end)
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()


def aerobee_json(*arguments: str, namesrv: str) -> Any:
    """What a command prints with --json. Fails the test when the command fails."""
    done = aerobee(*arguments, "--json", namesrv=namesrv)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class Running:
    """A command that goes on until it is told to stop; killed at the latest on leaving `with`."""

    def __init__(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            text=True,
            start_new_session=True,
        )
        self._changed = threading.Condition()
        self._lines: dict[str, list[str]] = {"out": [], "err": []}
        self._open = 2
        self._readers = [
            threading.Thread(target=self._read, args=(name, stream), daemon=True)
            for name, stream in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for reader in self._readers:
            reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for reader in self._readers:
            reader.join(END_TIMEOUT_S)
        if error is not None:
            print(f"--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}")

    @property
    def stdout(self) -> str:
        with self._changed:
            return "\n".join(self._lines["out"])

    @property
    def stderr(self) -> str:
        with self._changed:
            return "\n".join(self._lines["err"])

    def line(self, start: str, timeout_s: float = RUN_TIMEOUT_S) -> str:
        """The first line of stdout that starts so, once it is there."""

        def found() -> str | None:
            return next((line for line in self._lines["out"] if line.startswith(start)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() is not None or not self._open, timeout_s)
            line = found()
            assert line is not None, f"no line {start!r}; so far: {self._lines}"
            return line

    def end(self, number: signal.Signals, timeout_s: float = END_TIMEOUT_S) -> int:
        """Sends a signal to it alone; returns its exit code."""
        self.process.send_signal(number)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Its exit code once it has ended and said everything."""
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(END_TIMEOUT_S)
        return code

    def service_pid(self, module: str) -> int:
        """The child that runs this module."""
        for pid in children(self.process.pid):
            if module in command_line(pid):
                return pid
        raise AssertionError(f"no child runs {module}")

    def _read(self, name: str, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                with self._changed:
                    self._lines[name].append(line.rstrip("\n"))
                    self._changed.notify_all()
        with self._changed:
            self._open -= 1
            self._changed.notify_all()


class Up(Running):
    """`aerobee up` on free ports, ready when the constructor returns."""

    def __init__(self, data: Path, *arguments: str) -> None:
        super().__init__(
            *("up", "--data", str(data), "--namesrv-port", "0", "--broker-port", "0"),
            *("--proxy-port", "0", *arguments),
            *(() if "--secure" in arguments else ("--console-port", "0")),
        )
        self.data = data
        addresses = dict(item.split("=") for item in self.line("ready ").split()[1:])
        self.namesrv = addresses["namesrv"]
        self.broker = addresses["broker"]
        self.proxy = addresses["proxy"]
        self.console = ""
        if "--secure" not in arguments:
            self.console = self.line("console http://").split()[1].removeprefix("http://")


def children(pid: int) -> list[int]:
    """Child processes of a process, whichever thread started them."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return found


def command_line(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")


def is_alive(pid: int) -> bool:
    """A zombie is not: its parent has yet to read the exit code."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
