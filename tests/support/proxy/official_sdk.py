"""The official RocketMQ SDKs, unmodified, each in a process and an environment of its own below
build/sdk.

They cannot load into this process: their generated protocol code and ours declare the same names.
`make test` installs them; a test whose SDK is missing is skipped.
"""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import threading
from pathlib import Path
from typing import Any, Self

import pytest

ROOT = Path(__file__).resolve().parents[3]
SDKS = ROOT / "build" / "sdk"
AGENTS = ROOT / "tests" / "conformance" / "sdk"
ANSWER_TIMEOUT_S = 90.0  # beyond the longest long poll

Line = dict[str, Any]


def python_interpreter() -> Path:
    """The interpreter that has the official Python SDK. Skips the test where it is missing."""
    if not (SDKS / "python" / ".installed").is_file():
        pytest.skip("no official Python SDK: run `make build/sdk/python/.installed`")
    return SDKS / "python" / "bin" / "python"


def node_modules() -> Path:
    """The folder of the official Node.js SDK. Skips the test where it is missing; fails it where
    AEROBEE_REQUIRE_NODE is set."""
    if (SDKS / "node" / ".installed").is_file():
        return SDKS / "node" / "node_modules"
    missing = "no official Node.js SDK: install npm and run `make build/sdk/node/.installed`"
    if os.environ.get("AEROBEE_REQUIRE_NODE"):
        pytest.fail(f"AEROBEE_REQUIRE_NODE is set, but there is {missing}")
    pytest.skip(missing)


class SdkError(Exception):
    """An exception of the SDK. `code`: of the public protocol, or None."""

    def __init__(self, kind: str, code: int | None, text: str) -> None:
        super().__init__(f"{kind} {code}: {text}")
        self.code = code


class Sdk:
    """An SDK behind its agent (tests/conformance/sdk), which takes commands. Calls block; several
    threads may make them, and the agent runs commands concurrently where the SDK can.

    `home`: the folder for the SDK's log. `credentials`: access key and secret key. With `roots`, a
    file of certificates to trust, it speaks TLS.
    """

    def __init__(
        self,
        endpoints: str,
        home: Path,
        credentials: tuple[str, str] = ("", ""),
        roots: Path | None = None,
    ) -> None:
        command, environment = self._agent()
        if roots is not None:
            # The variable of gRPC alone may be set on any machine.
            environment |= {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots), "SDK_TLS": "on"}
        self._process = subprocess.Popen(
            [*command, endpoints, *credentials],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOME": str(home), **environment},
            text=True,
        )
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, queue.SimpleQueue[Line]] = {}
        self._ended = False
        self._events: list[Line] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # Killed, because a push consumer takes up to its long poll to end.
        self._process.kill()
        self._process.wait()
        self._reader.join()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether its process ended."""
        return self._ended

    def do(self, command: str, **arguments: Any) -> Any:
        """Runs a command of the agent; returns its answer. Raises SdkError."""
        assert self._process.stdin is not None
        answer: queue.SimpleQueue[Line] = queue.SimpleQueue()
        with self._lock:
            if self._ended:
                raise SdkError("Ended", None, "the SDK's process has ended")
            seq = next(self._numbers)
            self._waiting[seq] = answer
            line = {"seq": seq, "do": command, **arguments}
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        line = answer.get(timeout=ANSWER_TIMEOUT_S)
        if "error" in line:
            raise SdkError(line["error"], line["code"], line["text"])
        return line["answer"]

    def events(self, kind: str, client: str) -> list[Line]:
        """The callbacks of one kind so far, e.g. "delivered", for one of the SDK's clients."""
        return [
            event
            for event in list(self._events)
            if (event["event"], event.get("id")) == (kind, client)
        ]

    def _agent(self) -> tuple[list[str | Path], dict[str, str]]:
        """Its command and what its environment has besides ours."""
        raise NotImplementedError

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "event" in line:
                self._events.append(line)
            else:
                with self._lock:
                    self._waiting.pop(line["seq"]).put(line)
        with self._lock:
            self._ended = True
            for answer in self._waiting.values():
                answer.put({"error": "Ended", "code": None, "text": "the SDK's process has ended"})


class PythonSdk(Sdk):
    """The official Python SDK (python_agent.py). Does one thing after another.

    with PythonSdk("127.0.0.1:8081", tmp_path) as sdk:
        sdk.do("producer", id="p", topics=["orders"])
    """

    def _agent(self) -> tuple[list[str | Path], dict[str, str]]:
        return [python_interpreter(), AGENTS / "python_agent.py"], {"PYTHONUNBUFFERED": "1"}


class NodeSdk(Sdk):
    """The official Node.js SDK (node_agent.js)."""

    def _agent(self) -> tuple[list[str | Path], dict[str, str]]:
        return ["node", AGENTS / "node_agent.js"], {"NODE_PATH": str(node_modules())}
