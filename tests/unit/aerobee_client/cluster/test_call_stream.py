"""Unary calls over one stream, as the client makes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from aerobee.call.v1.call_pb2 import AnswerFrame, CallFrame

from aerobee_client.cluster import call_stream
from aerobee_client.cluster.call_stream import CallStream, Unsupported
from aerobee_client.errors import BrokerUnreachable, RequestTimeout

PATH = "/package.Service/Method"
ADDRESS = "10.0.0.11:10911"


class FakeStream:
    """A stream whose server is the test."""

    def __init__(self) -> None:
        self.written: list[CallFrame] = []
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.answers: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.error: type[Exception] | None = None
        self.is_cancelled = False

    async def write(self, frame: bytes) -> None:
        await self.can_write.wait()
        self.written.append(CallFrame.FromString(frame))

    async def read(self) -> bytes | None:
        return await self.answers.get()

    def failure(self) -> Exception:
        return Unsupported() if self.error is Unsupported else BrokerUnreachable(ADDRESS, "gone")

    def cancel(self) -> None:
        self.is_cancelled = True
        self.answers.put_nowait(None)

    def answer(self, number: int, response: bytes) -> None:
        self.answers.put_nowait(AnswerFrame(id=number, response=response).SerializeToString())


class Opened:
    """The calls under test, and the streams that they opened."""

    def __init__(self) -> None:
        self.streams: list[FakeStream] = []
        self.calls = CallStream(self.open, lambda timeout_s: RequestTimeout(ADDRESS, timeout_s))

    def open(self) -> FakeStream:
        self.streams.append(FakeStream())
        return self.streams[-1]

    def call(self, request: bytes, timeout_s: float = 60.0) -> asyncio.Task[AnswerFrame]:
        return asyncio.create_task(self.calls.call(PATH, request, {"key": "value"}, timeout_s))


@pytest.fixture
async def opened() -> AsyncIterator[Opened]:
    opened = Opened()
    yield opened
    await opened.calls.close()


async def turns() -> None:
    """Let the tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_call_gets_its_own_answer(opened: Opened) -> None:
    calls = [opened.call(b"a"), opened.call(b"b", 2.5)]
    await turns()
    (stream,) = opened.streams
    first, second = stream.written
    assert (first.path, first.request, dict(first.metadata)) == (PATH, b"a", {"key": "value"})
    assert (first.timeout_ms, second.timeout_ms) == (60_000, 2_500)
    stream.answer(second.id, b"B")
    stream.answer(first.id, b"A")
    stream.answer(first.id, b"twice")  # no call waits for it
    assert [(await call).response for call in calls] == [b"A", b"B"]


async def test_one_frame_is_written_at_a_time(opened: Opened) -> None:
    first = opened.call(b"a")
    await turns()
    (stream,) = opened.streams
    stream.answer(stream.written[0].id, b"A")
    await first
    stream.can_write.clear()
    calls = [opened.call(b"b"), opened.call(b"c")]
    await turns()
    assert len(stream.written) == 1
    stream.can_write.set()
    await turns()
    assert [frame.request for frame in stream.written] == [b"a", b"b", b"c"]
    for call in calls:
        call.cancel()


async def test_at_the_end_of_a_stream_calls_fail_and_the_next_call_opens_another(
    opened: Opened,
) -> None:
    calls = [opened.call(b"a"), opened.call(b"b")]
    await turns()
    opened.streams[0].answers.put_nowait(None)
    failures = [await asyncio.gather(call, return_exceptions=True) for call in calls]
    assert [type(error) for (error,) in failures] == [BrokerUnreachable] * 2
    assert failures[0][0] is not failures[1][0]  # a caller may add to the text of its own error
    third = opened.call(b"c")
    await turns()
    opened.streams[1].answer(opened.streams[1].written[0].id, b"C")
    assert (await third).response == b"C"


async def test_a_server_without_streams_is_reported(opened: Opened) -> None:
    call = opened.call(b"a")
    await turns()
    opened.streams[0].error = Unsupported
    opened.streams[0].answers.put_nowait(None)
    with pytest.raises(Unsupported):
        await call


async def test_a_cancelled_call_is_cancelled_at_the_server(opened: Opened) -> None:
    call, other = opened.call(b"a"), opened.call(b"b")
    await turns()
    call.cancel()
    await turns()
    (stream,) = opened.streams
    first, second, cancellation = stream.written
    assert (cancellation.id, cancellation.cancel) == (first.id, True)
    stream.answer(second.id, b"B")
    assert (await other).response == b"B"


async def test_a_call_that_is_not_written_yet_is_not_sent_after_its_cancellation(
    opened: Opened,
) -> None:
    first = opened.call(b"a")
    await turns()
    (stream,) = opened.streams
    stream.can_write.clear()
    second, third = opened.call(b"b"), opened.call(b"c")  # b is being written
    await turns()
    third.cancel()
    await turns()
    stream.can_write.set()
    await turns()
    assert [(frame.request, frame.cancel) for frame in stream.written] == [
        (b"a", False),
        (b"b", False),
    ]
    for call in (first, second):
        call.cancel()


async def test_a_call_without_an_answer_in_time_expires(opened: Opened) -> None:
    with pytest.raises(RequestTimeout):
        await opened.call(b"a", timeout_s=0.0)
    await turns()
    assert opened.streams[0].written[-1].cancel or not opened.streams[0].written


async def test_an_old_stream_ends_after_its_calls(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_stream, "RENEW_S", 0.0)
    first = opened.call(b"a")
    await turns()
    second = opened.call(b"b")
    await turns()
    former, present = opened.streams
    assert [frame.request for frame in present.written] == [b"b"]
    assert [former.is_cancelled, present.is_cancelled] == [False, False]
    former.answer(former.written[0].id, b"A")
    assert (await first).response == b"A"
    await turns()
    assert [former.is_cancelled, present.is_cancelled] == [True, False]
    present.answer(present.written[0].id, b"B")
    await second


async def test_a_retired_stream_ends_at_once_if_it_is_idle(opened: Opened) -> None:
    call = opened.call(b"a")
    await turns()
    (stream,) = opened.streams
    stream.answer(stream.written[0].id, b"A")
    await call
    opened.calls.retire()
    assert stream.is_cancelled


async def test_close_fails_the_calls_in_progress(opened: Opened) -> None:
    call = opened.call(b"a")
    await turns()
    await opened.calls.close()
    with pytest.raises(BrokerUnreachable):
        await call
    assert opened.streams[0].is_cancelled
