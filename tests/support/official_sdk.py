"""The official RocketMQ SDKs, unmodified, each in an environment of its own below build/sdk.

They cannot load into this process: their generated protocol code and ours declare the same names.
`make test` installs them; a test that finds one missing is skipped and says so.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).resolve().parents[2]
SDKS = ROOT / "build" / "sdk"
AGENT = ROOT / "tests" / "conformance" / "sdk" / "python_agent.py"
ANSWER_TIMEOUT_S = 90.0  # beyond the longest long poll


def python_interpreter() -> Path:
    """The interpreter that has the official Python SDK. Skips the test when it is not there."""
    if not (SDKS / "python" / ".installed").is_file():
        pytest.skip("no official Python SDK: run `make build/sdk/python/.installed`")
    return SDKS / "python" / "bin" / "python"


class SdkError(Exception):
    """What the SDK raised. `code` is the code of the public protocol, or None."""

    def __init__(self, kind: str, code: int | None, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.code = code


class PythonSdk:
    """The official Python SDK in a process of its own (tests/conformance/sdk/python_agent.py).

        with PythonSdk("127.0.0.1:8081", tmp_path) as sdk:
            sdk.do("producer", id="p", topics=["orders"])

    `home` takes the log that the SDK keeps, `credentials` are access key and secret key. Everything
    here blocks.
    """

    def __init__(self, endpoints: str, home: Path, credentials: tuple[str, str] = ("", "")) -> None:
        self._process = subprocess.Popen(
            [python_interpreter(), AGENT, endpoints, *credentials],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOME": str(home), "PYTHONUNBUFFERED": "1"},
            text=True,
        )
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Not asked to end: a push consumer takes up to its long poll to say goodbye.
        self._process.kill()
        self._process.wait()
        self._reader.join()

    @property
    def pid(self) -> int:
        return self._process.pid

    def do(self, command: str, **arguments: Any) -> Any:
        """The answer. Raises SdkError."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        if "error" in line:
            raise SdkError(line["error"], line["code"], line["text"])
        return line["answer"]

    def events(self, kind: str, client: str) -> list[dict[str, Any]]:
        """What the SDK called back so far, e.g. "delivered", for one of its clients."""
        return [
            event
            for event in list(self._events)
            if (event["event"], event.get("id")) == (kind, client)
        ]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "event" in line:
                self._events.append(line)
            else:
                self._answers.put(line)
        self._answers.put({"error": "Ended", "code": None, "text": "the SDK's process has ended"})
