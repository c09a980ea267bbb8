"""The official RocketMQ SDKs, unmodified, each in a process and an environment of its own below
build/sdk.

A folder LANGUAGE/VERSION in tests/conformance/sdk pins one; beside it lie the language's agent and
sdk.toml, which says how the agent is started and what the SDK cannot do. `make test` builds the
newest of each language; a test whose SDK is missing is skipped.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import queue
import subprocess
import threading
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pytest
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code
from packaging.version import Version

from support.running import canary, secure

ROOT = Path(__file__).resolve().parents[3]
SDKS = ROOT / "build" / "sdk"
AGENTS = ROOT / "tests" / "conformance" / "sdk"
TWO_PROXIES = "c3_two_proxies_are_endpoints_of_one_client"  # the scenario
LARGEST_BODY = 4 * 1024 * 1024  # bytes that proxies and SDKs accept
ANSWER_TIMEOUT_S = 90.0  # beyond the longest long poll

Line = dict[str, Any]


@dataclass(frozen=True)
class Inability:
    """Why scenarios do not pass with an SDK. `fault`: whose it is, "SDK" or "Aerobee"."""

    fault: str
    cause: str
    versions: tuple[str, ...]  # of the SDK; empty: all
    cases: tuple[str, ...]  # the names of the scenarios, with numbers where they have parameters
    needing: tuple[str, ...]  # or all that need one of these, e.g. "push"
    in_tls: bool  # in plaintext they pass
    by_timing: bool  # they pass now and then


@dataclass(frozen=True)
class OfficialSdk:
    """One version of one language's SDK."""

    language: str
    version: str

    def __str__(self) -> str:
        return f"{self.language}-{self.version}"

    @property
    def name(self) -> str:
        """As people write it, e.g. "Node.js 1.0.8"."""
        return f"{self._facts['name']} {self.version}"

    @property
    def side_by_side(self) -> bool:
        """Whether one process serves several tests at once."""
        return bool(self._facts["side_by_side"])

    def most_at_once(self, *, tls: bool) -> int | None:
        """Return how many scenarios may run at once in one process of the SDK; None: all."""
        most: int | None = self._facts.get("tls_at_once") if tls else None
        return most

    @property
    def tls_by_default(self) -> bool:
        """Whether a user of the SDK who sets nothing about it gets TLS."""
        return bool(self._facts["tls_by_default"])

    @property
    def speaks_tls(self) -> bool:
        return self.version not in self._facts.get("without_tls", [])

    @property
    def inabilities(self) -> list[Inability]:
        """All that it cannot do."""
        reported = [
            Inability(
                entry["fault"],
                entry["cause"],
                tuple(entry.get("versions", ())),
                tuple(entry.get("cases", ())),
                tuple(entry.get("needing", ())),
                entry.get("in_tls", False),
                entry.get("by_timing", False),
            )
            for entry in self._facts.get("cannot", [])
        ]
        return [found for found in reported if self.version in (found.versions or (self.version,))]

    def inability(self, case: str, needs: str = "", *, tls: bool = True) -> Inability | None:
        """What keeps the scenario from passing, in TLS or in plaintext."""
        for found in self.inabilities:
            if (case in found.cases or needs in found.needing) and (tls or not found.in_tls):
                return found
        return None

    @property
    def can_push(self) -> bool:
        """Whether it has a push consumer."""
        return self.inability("", "push") is None

    def takes_several_proxies(self, *, tls: bool) -> bool:
        return self.inability(TWO_PROXIES, tls=tls) is None

    def list_of(self, proxies: Iterable[str]) -> str:
        """Several proxies, each "host:port", as endpoints of one client."""
        return str(self._facts["separator"]).join(proxies)

    @property
    def built(self) -> Path:
        """Its folder. Skips the test where it is missing; fails it where AEROBEE_REQUIRE_SDKS names
        the language, e.g. "node java"."""
        if not self.is_built:
            missing = f"no official SDK {self.name}: run `make build/sdk/{self}/.installed`"
            if self.is_required:
                pytest.fail(f"AEROBEE_REQUIRE_SDKS names {self.language}, but there is {missing}")
            pytest.skip(missing)
        return self._folder

    @property
    def is_built(self) -> bool:
        return (self._folder / ".installed").is_file()

    @property
    def is_required(self) -> bool:
        return self.language in os.environ.get("AEROBEE_REQUIRE_SDKS", "").split()

    @property
    def _folder(self) -> Path:
        return SDKS / str(self)

    def command(self, home: Path) -> list[str]:
        """What starts its agent, with a folder for its log."""
        return [self._filled(word, home) for word in self._facts["command"]]

    def environment(self, home: Path) -> dict[str, str]:
        """What the environment of its agent is to have."""
        own = {key: self._filled(text, home) for key, text in self._facts["environment"].items()}
        return {**os.environ, "HOME": str(home), **own}

    @property
    def _facts(self) -> dict[str, Any]:
        return facts(self.language)

    def _filled(self, text: str, home: Path) -> str:
        return text.format(built=self.built, agent=AGENTS / self.language, home=home)


@functools.cache
def facts(language: str) -> dict[str, Any]:
    """The sdk.toml of a language."""
    return tomllib.loads((AGENTS / language / "sdk.toml").read_text("utf-8"))


@functools.cache
def official_sdks() -> tuple[OfficialSdk, ...]:
    """All that are pinned, the newest of each language first."""
    pinned = [path for path in AGENTS.glob("*/[0-9]*") if path.is_dir()]
    pinned.sort(key=lambda path: Version(path.name), reverse=True)
    return tuple(
        OfficialSdk(path.parent.name, path.name)
        for path in sorted(pinned, key=lambda path: path.parent.name)
    )


def newest_sdks() -> tuple[OfficialSdk, ...]:
    """One of each language that is built soon enough for every run."""
    return tuple(
        {
            sdk.language: sdk
            for sdk in reversed(official_sdks())
            if not facts(sdk.language).get("slow_to_build")
        }.values()
    )


def available_sdks(*, every: bool = False) -> list[OfficialSdk]:
    """The newest that are built, or have to be; or all versions. Skips the test where there are
    none."""
    pinned = official_sdks() if every else newest_sdks()
    found = [sdk for sdk in pinned if sdk.is_built or sdk.is_required]
    if not found:
        pytest.skip("no official SDK: `make test` builds them")
    return found


def newest(language: str) -> OfficialSdk:
    return next(sdk for sdk in official_sdks() if sdk.language == language)


class SdkError(Exception):
    """An exception of the SDK. `code`: of the public protocol, or None."""

    def __init__(self, kind: str, code: int | None, text: str) -> None:
        super().__init__(f"{kind} {code}: {text}")
        self.code = code


def raises_sdk_code(code: int) -> pytest.RaisesExc[SdkError]:
    """`with raises_sdk_code(40012): …`"""
    return pytest.raises(SdkError, check=lambda error: error.code == code)


class Sdk:
    """An SDK behind its agent (tests/conformance/sdk), which takes commands. Calls block; several
    threads may make them, and the agent runs commands concurrently where the SDK can.

    with Sdk(newest("python"), "127.0.0.1:8081", tmp_path) as sdk:
        sdk.do("producer", id="p", topics=["orders"])

    `home`: the folder for what the SDK logs and prints. `credentials`: access key and secret key.
    With `roots`, a file of certificates to trust, it speaks TLS. `prefix`: the command of the
    agent starts with it.
    """

    def __init__(
        self,
        official: OfficialSdk,
        endpoints: str,
        home: Path,
        credentials: tuple[str, str] = ("", ""),
        roots: Path | None = None,
        *,
        prefix: Sequence[str] = (),
    ) -> None:
        environment = official.environment(home)
        self._mark = ""  # which begins each body
        if (closed := secure.enabled()) is not None:
            self._mark = canary.BODY
            credentials = credentials if any(credentials) else (secure.USER, canary.SECRET)
            roots = roots or closed.roots
        if roots is not None:
            # The variable of gRPC alone may be set on any machine.
            environment |= {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots), "SDK_TLS": "on"}
        with (home / f"{official}.stderr").open("ab") as log:  # some SDKs print much there
            self._process = subprocess.Popen(
                [*prefix, *official.command(home), endpoints, *credentials],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
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
            if arguments.get("body"):
                arguments["body"] = self._marked(arguments["body"])
            if arguments.get("only"):  # bodies that a listener rejects
                arguments["only"] = [self._marked(body) for body in arguments["only"]]
            line = {"seq": seq, "do": command, **arguments}
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
        line = answer.get(timeout=ANSWER_TIMEOUT_S)
        assert line.get("error") != "Panic", line
        if "error" in line:
            code = line["code"]  # of which Rust's SDK tells the name only
            number = Code.Value(code) if isinstance(code, str) else code
            raise SdkError(line["error"], number, line["text"])
        return self._unmarked(line["answer"])

    def _marked(self, body: str) -> str:
        """Return a body with the mark, unless it would be too large with it."""
        fits = len(self._mark) + len(body.encode()) <= LARGEST_BODY
        return self._mark + body if fits else body

    def _unmarked(self, found: Any) -> Any:
        """Return messages of the SDK without the mark of their bodies."""
        if not self._mark:
            return found
        if isinstance(found, list):
            return [self._unmarked(each) for each in found]
        if not isinstance(found, dict) or not str(found.get("body", "")).startswith(self._mark):
            return found
        size = len(self._mark)
        return {**found, "body": found["body"][size:], "size": found["size"] - size}

    def events(self, kind: str, client: str, since: float = 0.0) -> list[Line]:
        """The callbacks of one kind so far, e.g. "delivered", for one of the SDK's clients; since
        a moment in seconds since the epoch."""
        new = itertools.takewhile(
            lambda event: event.get("at", since) >= since, reversed(self._events.copy())
        )
        found = [event for event in new if (event["event"], event.get("id")) == (kind, client)]
        return found[::-1]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            line = json.loads(text)
            if "event" in line:
                self._events.append(self._unmarked(line))
            else:
                with self._lock:
                    self._waiting.pop(line["seq"]).put(line)
        with self._lock:
            self._ended = True
            for answer in self._waiting.values():
                answer.put({"error": "Ended", "code": None, "text": "the SDK's process has ended"})
