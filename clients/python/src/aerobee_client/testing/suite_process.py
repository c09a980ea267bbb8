"""Run name server, broker and proxy for tests in a child process that ends with its parent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Self

from aerobee_wire.status import Code, MqError

# 64 MiB per log file and plaintext only: tests need neither a gigabyte nor TLS.
SMALL = ("mappedFileSizeCommitLog=67108864", "proxy.tlsServerMode=disabled")
STOP_TIMEOUT_S = 10.0
LAST_LINES = 20


def unless_given(defaults: Iterable[str], sets: Sequence[str]) -> list[str]:
    """Return the items of `defaults` ("key=value") whose key is not in `sets`.

    This is needed because a service refuses a key that is given twice.
    """
    given = {_key(item) for item in sets}
    return [item for item in defaults if _key(item) not in given]


def _key(item: str) -> str:
    return item.partition("=")[0].removeprefix("broker.").lower()


class SuiteProcess:
    """A cluster for tests in a child process, on free ports. Use it in a `with` block.

    Args:
        data: The folder for its data and its log.
        sets: Options as "key=value" for the broker, "proxy.key=value" and "namesrv.key=value".
    """

    def __init__(self, data: Path, sets: Sequence[str] = ()) -> None:
        self.namesrv = self.broker = self.proxy = ""
        self.log = data / "suite.log"
        self._data = data
        self._sets = (*unless_given(SMALL, sets), *sets)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start the services. Return when they accept calls.

        Raises:
            MqError: SERVICE_NOT_AVAILABLE if they do not start, with the end of their log.
        """
        if find_spec("aerobee_suite") is None:
            raise MqError(
                Code.SERVICE_NOT_AVAILABLE,
                "aerobee_suite is not installed here: pip install 'aerobee-client[testing]'",
            )
        self._data.mkdir(parents=True, exist_ok=True)
        arguments = [arg for item in self._sets for arg in ("--set", item)]
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "aerobee_suite", "--data", str(self._data)),
                *("--namesrv-port", "0", "--broker-port", "0", "--proxy-port", "0"),
                *("--until-stdin-ends", "--test-control", *arguments),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "AEROBEE_LOG_FORMAT": "json"},  # the ready line is read below
            text=True,
            start_new_session=True,  # Ctrl-C goes to the tests only, which then stop the suite
        )
        assert self._process.stdout is not None
        ready = self._until_ready(self._process.stdout)
        if ready is None:
            self.stop()
            raise MqError(Code.SERVICE_NOT_AVAILABLE, f"the suite does not start:\n{self._tail()}")
        self.namesrv, self.broker, self.proxy = (
            str(ready[name]) for name in ("namesrv", "broker", "proxy")
        )

    def stop(self) -> None:
        """Stop the services gracefully, or kill them after 10 s. May be called more than once."""
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    def _until_ready(self, lines: IO[str]) -> dict[str, Any] | None:
        log = self.log.open("w", encoding="utf-8", buffering=1)
        for line in lines:
            log.write(line)
            fields = _ready_fields(line)
            if fields is not None:
                self._reader = threading.Thread(target=_copy, args=(lines, log), daemon=True)
                self._reader.start()
                return fields
        log.close()
        return None

    def _tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8").splitlines()[-LAST_LINES:])


def _ready_fields(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    fields = json.loads(line)
    return dict(fields) if fields.get("event") == "ready" else None


def _copy(lines: IO[str], log: IO[str]) -> None:
    with log:
        for line in lines:
            log.write(line)
