"""Calls with bad requests, many at once over few connections; what each is answered with.

A case is numbered. Its random numbers come from the seed, the service and the number alone, so the
same seed sends the same requests.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import grpc

from aerobee_wire.status import CODE_KEY
from fuzz.requests import FuzzedRpc, Requests

AT_ONCE = 32
DEADLINE_S = 120.0  # far more than a call takes: one that takes longer does not end
WAIT_S = 0.05  # of calls that wait for messages or notices by their contract
OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
WAITING = frozenset({"Pull", "Pop", "LitePop", "Notification", "ReceiveMessage", "PullMessage"})
# What gRPC and the chassis answer before a handler runs, or to what a case did itself.
BY_TRANSPORT = frozenset({"OK", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "CANCELLED"})
# gRPC's own client, if the server has ended a stream of requests while the client still sends.
BY_CLIENT = "Internal error from Core"

Metadata = tuple[tuple[str, str], ...]


@dataclass
class Finding:
    """A case that was not answered as the contract says, or something else that may not be."""

    what: str
    service: str
    rpc: str = ""
    case: int = -1
    request: str = ""


@dataclass
class Tally:
    """Cases and codes by RPC, and findings."""

    codes: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    _seen: set[tuple[str, str]] = field(default_factory=set)

    @property
    def cases(self) -> int:
        return sum(sum(counter.values()) for counter in self.codes.values())

    def count(self, rpc: str, code: str) -> None:
        self.codes.setdefault(rpc, Counter())[code] += 1

    def find(self, finding: Finding) -> None:
        """Keep a finding, once for what it is about."""
        key = finding.rpc, finding.what
        if key not in self._seen:
            self._seen.add(key)
            self.findings.append(finding)


class Caller:
    """Sends bad requests to a service. `read` returns the code within an answer, or "" for none."""

    def __init__(
        self,
        service: str,
        address: str,
        seed: str,
        requests: Requests,
        tally: Tally,
        *,
        read: Callable[[FuzzedRpc, bytes], str] = lambda _rpc, _answer: "",
        metadata: Callable[[random.Random], Metadata] = lambda _chance: (),
    ) -> None:
        self._service, self._address, self._seed = service, address, seed
        self._requests, self._tally = requests, tally
        self._read, self._metadata = read, metadata
        self._channel: Any = None

    def run(self, rpcs: Sequence[FuzzedRpc], cases: range, *, raw: bool = False) -> None:
        """Send the cases with these numbers, to one RPC after the other. Blocks."""
        asyncio.run(self._run(rpcs, cases, raw))

    async def _run(self, rpcs: Sequence[FuzzedRpc], cases: range, raw: bool) -> None:
        numbers = iter(cases)
        async with grpc.aio.insecure_channel(self._address, OPTIONS) as self._channel:
            workers = [self._work(rpcs, numbers, raw) for _ in range(AT_ONCE)]
            await asyncio.gather(*workers)

    async def _work(self, rpcs: Sequence[FuzzedRpc], numbers: Iterator[int], raw: bool) -> None:
        for number in numbers:
            rpc = rpcs[number % len(rpcs)]
            chance = random.Random(f"{self._seed}:{self._service}:{number}")
            make = self._requests.raw if raw else self._requests.bytes_of
            request = make(rpc.descriptor, chance)
            code = await self._code(rpc, request, self._metadata(chance))
            self._tally.count(rpc.name, code)
            if code not in rpc.codes and code not in BY_TRANSPORT:
                what = f"{rpc.name} answered {code}, which its contract does not list"
                self._tally.find(
                    Finding(what, self._service, rpc.name, number, request.hex()[:2_000])
                )

    async def _code(self, rpc: FuzzedRpc, request: bytes, metadata: Metadata) -> str:
        waits = rpc.name in WAITING or _streams(rpc)
        try:
            answer = await self._answer(rpc, request, metadata, WAIT_S if waits else DEADLINE_S)
        except asyncio.CancelledError:  # gRPC's client, if the server ends the stream meanwhile
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            return "CANCELLED"
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not waits:
                return "no answer"
            if error.details() == BY_CLIENT:
                return "CANCELLED"
            trailers = dict(
                cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
            )
            return str(trailers.get(CODE_KEY, error.code().name))
        return (answer is not None and self._read(rpc, answer)) or "OK"

    async def _answer(
        self, rpc: FuzzedRpc, request: bytes, metadata: Metadata, timeout_s: float
    ) -> bytes | None:
        one, many = rpc.descriptor.client_streaming, rpc.descriptor.server_streaming
        channel = self._channel
        if not one and not many:
            call = channel.unary_unary(rpc.path)
            return cast("bytes", await call(request, timeout=timeout_s, metadata=metadata))
        if one:
            requests = iter((request, request[: len(request) // 2]))
            call = channel.stream_stream if many else channel.stream_unary
            running = call(rpc.path)(requests, timeout=timeout_s, metadata=metadata)
            if not many:
                return cast("bytes", await running)
        else:
            running = channel.unary_stream(rpc.path)(request, timeout=timeout_s, metadata=metadata)
        async for answer in running:
            running.cancel()
            return cast("bytes", answer)
        return None


def _streams(rpc: FuzzedRpc) -> bool:
    return bool(rpc.descriptor.client_streaming or rpc.descriptor.server_streaming)


class GoodClient:
    """Uses a service in a thread, as its contract says, until the block ends.

    `use` makes a few calls and raises an exception at an answer that is not the expected one.
    """

    def __init__(self, service: str, use: Callable[[], None], tally: Tally) -> None:
        self._service, self._use, self._tally = service, use, tally
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.served = 0

    def __enter__(self) -> GoodClient:
        self._use()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self.use_once()

    def use_once(self) -> None:
        try:
            self._use()
            self.served += 1
        except Exception as error:
            what = f"a well-behaved client was not served: {type(error).__name__}: {error}"
            self._tally.find(Finding(what[:500], self._service))

    def _run(self) -> None:
        while not self._end.wait(0.05):
            self.use_once()
