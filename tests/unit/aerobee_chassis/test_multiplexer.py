"""Streams of calls: their age, their end, and the bytes that they hold."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from aerobee.call.v1 import call_pb2 as pb
from google.protobuf.wrappers_pb2 import StringValue

from aerobee_broker.rpc.frames import FRAMES
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.in_flight import InFlight
from aerobee_chassis.rpc.multiplexer import MAX_METADATA_BYTES, Multiplexer
from aerobee_chassis.rpc.services import Method, Service
from aerobee_chassis.rpc.transport import admit_all

LIMIT = 64 * 1024 * 1024
SAY = "/test.Said/Say"
NONE = "/test.Said/None"


async def forever(*frames: Any) -> AsyncIterator[Any]:
    for frame in frames:
        yield frame
    await asyncio.Event().wait()


async def only(*frames: Any) -> AsyncIterator[Any]:
    for frame in frames:
        yield frame


async def say(*_: Any) -> StringValue:
    return StringValue(value="A")


def multiplexer(
    max_age_s: float | None = None,
    *,
    run: Any = say,
    admit: Any = admit_all,
    in_flight: InFlight | None = None,
) -> Multiplexer:
    return Multiplexer(
        FRAMES,
        [Service("test.Said", (Method("Say", say, StringValue, False, False),))],
        run,
        admit,
        refuse=lambda _method, _error: pytest.fail("no call is refused"),
        in_flight=in_flight or InFlight(LIMIT),
        max_calls=2,
        max_age_s=max_age_s,
    )


class StreamCall:
    """The call of a stream, with its answers."""

    peer = "10.0.0.1:5000"

    def __init__(self) -> None:
        self.answers: list[pb.AnswerFrame] = []
        self.can_write = asyncio.Event()
        self.can_write.set()

    async def write(self, message: Any) -> None:
        await self.can_write.wait()
        self.answers.append(message)


class Waiting:
    """Runs a call that waits for `going_on`, and takes some turns of the loop to end."""

    def __init__(self) -> None:
        self.going_on = asyncio.Event()
        self.begun = self.ended = 0

    async def __call__(self, *_: Any) -> StringValue:
        self.begun += 1
        try:
            await self.going_on.wait()
        finally:
            await turns()
            self.ended += 1
        return StringValue(value="A")


class Request:
    """The bytes of a request that a weak reference can follow."""

    def __len__(self) -> int:
        return 1_000


def frame_to(path: str, followed: list[weakref.ref[Request]]) -> Any:
    """Return a frame, and add a reference to its request to `followed`."""
    request = Request()
    followed.append(weakref.ref(request))
    return SimpleNamespace(
        id=1, path=path, request=request, timeout_ms=0, metadata={}, cancel=False
    )


async def turns() -> None:
    """Let the tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def serve(server: Multiplexer, requests: AsyncIterator[Any], call: Any) -> asyncio.Task[None]:
    serving = asyncio.create_task(server.multiplex(requests, call))
    await turns()
    return serving


async def leave(serving: asyncio.Task[None]) -> None:
    serving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(serving, 60)


async def test_a_stream_ends_at_its_greatest_age() -> None:
    call: Any = StreamCall()
    await asyncio.wait_for(multiplexer(0).multiplex(forever(), call), 60)


async def test_a_caller_that_leaves_cancels_the_stream() -> None:
    await leave(await serve(multiplexer(), forever(), StreamCall()))


async def test_a_close_does_not_cancel_calls_of_a_stream_without_further_requests() -> None:
    run, call = Waiting(), StreamCall()
    server = multiplexer(run=run)
    serving = await serve(server, only(pb.CallFrame(id=1, path=SAY)), call)
    server.close()
    await turns()
    run.going_on.set()
    await asyncio.wait_for(serving, 60)
    (answer,) = call.answers
    assert answer.id == 1 and not answer.HasField("failure")


async def test_a_caller_that_leaves_while_the_server_closes_cancels_its_calls() -> None:
    run = Waiting()
    server = multiplexer(run=run)
    serving = await serve(server, forever(pb.CallFrame(id=1, path=SAY)), StreamCall())
    server.close()
    await leave(serving)
    assert run.begun == run.ended == 1


async def test_a_stream_that_begins_after_the_close_ends_at_once() -> None:
    server, call = multiplexer(), StreamCall()
    server.close()
    stream: Any = call
    await asyncio.wait_for(server.multiplex(forever(), stream), 60)
    assert call.answers == []


async def test_a_stream_ends_after_its_handlers() -> None:
    """Or they would use parts of a server that has stopped."""
    run = Waiting()
    serving = await serve(multiplexer(run=run), forever(pb.CallFrame(id=1, path=SAY)), StreamCall())
    assert run.begun == 1
    await leave(serving)
    assert run.ended == 1


async def test_a_request_that_is_admitted_when_its_stream_ends_holds_no_bytes() -> None:
    in_flight = InFlight(LIMIT)
    in_flight.answering(LIMIT)
    requests = forever(pb.CallFrame(id=1, path=SAY, request=b"a" * 1_000))
    serving = await serve(multiplexer(in_flight=in_flight), requests, StreamCall())
    assert in_flight.waiting == 1
    in_flight.answered(LIMIT)
    await leave(serving)
    assert in_flight.requests == in_flight.waiting == 0


async def test_a_call_with_large_metadata_is_rejected() -> None:
    call = StreamCall()
    for size, status in ((MAX_METADATA_BYTES, ""), (MAX_METADATA_BYTES + 1, "RESOURCE_EXHAUSTED")):
        metadata = {"key": "v" * (size - len("key"))}
        requests = only(pb.CallFrame(id=1, path=SAY, metadata=metadata))
        await (await serve(multiplexer(), requests, call))
        assert call.answers.pop().failure.status == status


@pytest.mark.parametrize("path", [NONE, SAY])
async def test_a_call_without_a_handler_holds_no_request(path: str) -> None:
    """Its bytes do not count as in flight while the answer waits."""

    def reject(_service: str, _method: Method, call: Any) -> Failure:
        call.delay_answer(60)
        return Failure("PERMISSION_DENIED", "no")

    call = StreamCall()
    call.can_write.clear()
    in_flight = InFlight(LIMIT)
    followed: list[weakref.ref[Request]] = []

    async def requests() -> AsyncIterator[Any]:
        yield frame_to(path, followed)
        await asyncio.Event().wait()

    serving = await serve(multiplexer(admit=reject, in_flight=in_flight), requests(), call)
    gc.collect()
    assert followed[0]() is None and in_flight.requests == 0
    await leave(serving)
