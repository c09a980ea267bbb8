"""The history of a run: what each client told, as JSON lines in a file of its own.

Times are seconds of the machine's monotonic clock, which no fault moves.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from fault.replication.namespaces.load import SDK, SHIPMENTS
from support.proxy.official_sdk import OfficialSdk, Sdk, SdkError
from support.proxy.sdk_cluster import ALL, INVISIBLE_S

LOAD = "fault.replication.namespaces.load"
END_S = 60.0
BETWEEN_SENDS_S = 0.1

Report = dict[str, Any]


class LoadProcess:
    """`load.py` in a role, whose lines go to `history`. `prefix`: its command starts with it."""

    def __init__(
        self, role: str, namesrv: str, seed: int, history: Path, prefix: Sequence[str]
    ) -> None:
        self.reported: list[Report] = []
        self._role = role
        self._errors = history.with_suffix(".stderr")
        with history.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", LOAD, role, namesrv, str(seed)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._lines = history.open("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        self._lines.close()

    def refresh(self) -> list[Report]:
        """All lines until now. Raises AssertionError when the process has failed."""
        code = self._process.poll()
        for line in self._lines.read().splitlines(keepends=True):
            if line.endswith(b"\n"):
                self.reported.append(json.loads(line))
            else:  # the rest is about to be written
                self._lines.seek(-len(line), os.SEEK_CUR)
        assert code in (None, 0), f"{self._role} ended with {code}: {self._errors.read_text()}"
        return self.reported

    def end_of_sending(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    def wait(self) -> list[Report]:
        """To its end; returns all lines."""
        self._process.wait(END_S)
        return self.refresh()


class SdkLoad:
    """An official SDK that sends to a topic of its own, receives and acknowledges, all the time, in
    the same words. Its agent does one thing at a time: two processes."""

    def __init__(
        self, official: OfficialSdk, proxy: str, home: Path, history: Path, prefix: Sequence[str]
    ) -> None:
        self.reported: list[Report] = []
        self._history = history.open("w")
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._producer, self._consumer = (
            self._stack.enter_context(Sdk(official, proxy, home, prefix=prefix)) for _ in range(2)
        )
        self._sending = threading.Event()
        self._sending.set()
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._send, self._receive)
        ]

    def __enter__(self) -> Self:
        self._producer.do("producer", id="p", topics=[SHIPMENTS])
        filters = {SHIPMENTS: ALL}
        self._consumer.do("simple", id="c", group=SDK, subscriptions=filters, await_s=2)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._sending.clear()
        self._stack.close()
        for thread in self._threads:
            thread.join()
        self._history.close()

    def refresh(self) -> list[Report]:
        return self.reported

    def end_of_sending(self) -> None:
        self._sending.clear()

    def _report(self, event: str, **more: Any) -> None:
        reported = {"event": event, "at": time.monotonic(), **more}
        with self._lock:
            self.reported.append(reported)
            self._history.write(f"{json.dumps(reported)}\n")

    def _send(self) -> None:
        number = 0
        while self._sending.is_set():
            key, began = f"sdk-{number}", time.monotonic()
            number += 1
            try:
                self._producer.do("send", id="p", topic=SHIPMENTS, body=key, keys=key)
                self._report("acknowledged", key=key, began=began)
            except SdkError as error:
                self._report("not sent", key=key, began=began, code=str(error)[:200])
            time.sleep(BETWEEN_SENDS_S)
        self._report("sending ended")

    def _receive(self) -> None:
        while not self._consumer.ended:
            try:
                for found in self._consumer.do("receive", id="c", most=16, invisible_s=INVISIBLE_S):
                    self._report("received", key=found["body"], attempt=found["attempt"])
                    self._acknowledge(found)
            except SdkError as error:
                if not self._consumer.ended:
                    self._report("failed", code=str(error)[:200])
                    time.sleep(BETWEEN_SENDS_S)

    def _acknowledge(self, found: dict[str, Any]) -> None:
        try:
            self._consumer.do("ack", id="c", message_id=found["message_id"])
        except SdkError:
            self._report("in doubt", key=found["body"])
            raise
        self._report("acked", key=found["body"])
