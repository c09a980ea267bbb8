"""An address that guesses gets late answers, and others behind it are served meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from aerobee_chassis.clock import SystemClock
from aerobee_chassis.rpc.access import Access
from aerobee_chassis.rpc.audit import Audit
from aerobee_chassis.rpc.audit_log import AuditLog
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.guesses import FAILURES, Guesses
from aerobee_chassis.rpc.in_flight import InFlight, failure_of
from aerobee_chassis.rpc.server import Server
from aerobee_chassis.rpc.services import bind
from aerobee_wire.access.signature import AUTHORIZATION_KEY, Signatures, Signer
from aerobee_wire.access.users import User
from aerobee_wire.audit import Chain
from aerobee_wire.permissions import TABLE, Permissions, Row
from support.chassis import descriptors
from support.clock.polling import until

SERVICE = descriptors.service("Guessing", Ask=(False, False), Read=(False, True))
ASK, READ = (f"/{SERVICE.full_name}/{name}" for name in ("Ask", "Read"))
SECRET = b"s3cret"
NEVER_S = 3_600.0
ROW = Row(is_open=True)


class Handlers:
    """`read` delays its answer itself, as handlers that check signatures do."""

    async def ask(self, request: StringValue, call: Call) -> StringValue:
        return request

    async def read(self, request: StringValue, call: Call) -> StringValue:
        call.delay_answer(0.05 if len(request.value) < 10 else NEVER_S)
        return StringValue(value="last")


@asynccontextmanager
async def serving(
    delay_s: float, audit: Audit | None = None, in_flight: InFlight | None = None
) -> AsyncIterator[tuple[grpc.aio.Channel, Guesses]]:
    clock = SystemClock()
    guesses = Guesses(clock, delay_s)
    users = {"billing": User("billing", (SECRET,), super=True)}
    checks = Access(
        Permissions("prod", table={**TABLE, ASK: ROW, READ: ROW}),
        enforced=True,
        signatures=Signatures(users.get, clock.now_ms, clock.monotonic_ms),
        guesses=guesses,
        audit=audit,
    )
    server = Server(
        [bind(SERVICE, Handlers())],
        host="127.0.0.1",
        port=0,
        failure_of=failure_of,
        access=checks,
        in_flight=in_flight,
        grace_s=0,
    )
    await server.start()
    async with grpc.aio.insecure_channel(server.address) as channel:
        yield channel, guesses
    await server.stop()


def ask(
    channel: grpc.aio.Channel, name: str, secret: bytes
) -> grpc.aio.UnaryUnaryCall[bytes, bytes]:
    header = Signer(name, lambda: secret, SystemClock().now_ms).sign(ASK)
    return channel.unary_unary(ASK, None, None)(
        b"", metadata=((AUTHORIZATION_KEY, header),), timeout=60
    )


async def is_refused(call: grpc.aio.UnaryUnaryCall[bytes, bytes]) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    assert failed.value.code() is grpc.StatusCode.PERMISSION_DENIED
    return str(failed.value.details()).partition("'")[2].partition("'")[2]


async def test_guessing(tmp_path: Path) -> None:
    """Unknown names and wrong secrets have one answer; a valid signature never waits for them."""
    log = AuditLog(tmp_path / "audit.log", max_bytes=1 << 20, keep=2)
    audit = Audit(log, "prod", SystemClock())
    await audit.start()
    async with serving(NEVER_S, audit) as (channel, guesses):
        answers = {await is_refused(ask(channel, "billing", b"wrong")) for _ in range(FAILURES - 1)}
        answers.add(await is_refused(ask(channel, "stranger", SECRET)))
        assert len(answers) == 1
        late = [ask(channel, name, b"wrong") for name in ("billing", "stranger")]
        waiting = [asyncio.ensure_future(is_refused(call)) for call in late]
        await until(lambda: guesses.delayed == 2, "both calls are delayed")
        assert await ask(channel, "billing", SECRET) == b""
        assert not any(each.done() for each in waiting)
        for call in late:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert await ask(channel, "billing", SECRET) == b""
    await audit.stop()
    found = list(Chain().check((tmp_path / "audit.log").open("rb")))
    counts = {
        name: sum(line["count"] for line in found if line.get("claimed_user") == name)
        for name in ("billing", "stranger")
    }
    assert counts == {"billing": FAILURES, "stranger": 2}


async def test_delayed_failure_is_answered_in_the_end() -> None:
    async with serving(0.05) as (channel, guesses):
        for _ in range(FAILURES + 2):
            await is_refused(ask(channel, "billing", b"wrong"))
        assert guesses.delayed == 2


async def test_server_stops_while_answers_are_delayed() -> None:
    async with serving(NEVER_S) as (channel, guesses):
        for _ in range(FAILURES):
            await is_refused(ask(channel, "billing", b"wrong"))
        late = ask(channel, "billing", b"wrong")
        await until(lambda: guesses.delayed == 1, "the call is delayed")
    assert late.done()


async def test_delayed_answer_of_a_handler_holds_no_request() -> None:
    in_flight = InFlight()
    async with serving(NEVER_S, in_flight=in_flight) as (channel, _):
        read = channel.unary_stream(READ, None, None)
        soon = read(StringValue(value="soon").SerializeToString(), timeout=60)
        assert [StringValue.FromString(each).value async for each in soon] == ["last"]
        late = read(StringValue(value="x" * 1_000_000).SerializeToString())
        await until(lambda: in_flight.peak > 1_000_000, "the request was read")
        await until(lambda: in_flight.requests == 0, "the request is forgotten")
        assert not late.done()
        late.cancel()
