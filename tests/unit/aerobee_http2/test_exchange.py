"""Streams of requests against recorded frames: windows, the end of each side, hostile servers."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_http2 import frames
from aerobee_http2.calls import CallFailed, Exchange, UnaryCall
from aerobee_http2.connection import Times
from aerobee_http2.frames import END_HEADERS, END_STREAM, frame
from aerobee_http2.hpack import encoded
from support.client.http2_server import (
    BLOCK,
    FakeServer,
    Frame,
    data,
    headers,
    message,
    response,
    trailers,
)

LARGE = bytes(range(256)) * 400  # 102,400 bytes: more than the first window
CANCELLED = bytes([0, 0, 0, frames.CANCEL])


def exchange(server: FakeServer) -> Exchange:
    call = Exchange(asyncio.get_running_loop())
    server.client.begin(call, BLOCK, None)
    return call


async def writing(call: Exchange, body: bytes) -> asyncio.Task[None]:
    """Return a write that has begun."""
    task = asyncio.ensure_future(call.write(body))
    await asyncio.sleep(0)
    return task


def sent(server: FakeServer) -> bytes:
    return b"".join(each.payload for each in server.taken() if each.kind == frames.DATA)


async def test_each_message_is_a_frame_and_the_end_is_an_empty_one() -> None:
    server = FakeServer()
    call = exchange(server)
    await call.write(b"a")
    await call.write(b"")
    call.done_writing()
    call.done_writing()
    assert server.taken() == [
        Frame(frames.HEADERS, END_HEADERS, 1, BLOCK),
        Frame(frames.DATA, 0, 1, message(b"a")),
        Frame(frames.DATA, 0, 1, message(b"")),
        Frame(frames.DATA, END_STREAM, 1, b""),
    ]
    server.send(response(1, b"b"))
    assert [await call.read(), await call.read()] == [b"b", None]
    assert server.taken() == [] and server.client.is_idle


async def test_both_sides_write_in_turns() -> None:
    server = FakeServer()
    call = exchange(server)
    server.send(headers(1))
    for body in (b"a", b"b"):
        await call.write(body)
        server.send(data(1, message(body.upper())))
        assert await call.read() == body.upper()
    assert not call.has_ended


async def test_a_write_waits_for_both_windows() -> None:
    server = FakeServer((frames.INITIAL_WINDOW_SIZE, 10_000))
    call = exchange(server)
    task = await writing(call, LARGE)
    arrived = sent(server)
    assert len(arrived) == 10_000
    server.send(frames.window_update(1, 2**20))
    arrived += sent(server)
    assert len(arrived) == frames.DEFAULT_WINDOW
    await asyncio.sleep(0)
    assert not task.done()
    server.send(frames.window_update(0, 2**20))
    arrived += sent(server)
    await task
    assert arrived == message(LARGE)
    await call.write(b"more")
    assert sent(server) == message(b"more")


async def test_a_write_waits_while_the_socket_takes_no_more() -> None:
    server = FakeServer()
    call = exchange(server)
    server.taken()
    server.client.pause_writing()
    task = await writing(call, b"a")
    assert not task.done() and server.taken() == []
    server.client.resume_writing()
    await task
    assert sent(server) == message(b"a")


async def test_the_end_follows_a_message_that_waits() -> None:
    server = FakeServer((frames.INITIAL_WINDOW_SIZE, 10))
    call = exchange(server)
    server.taken()
    task = await writing(call, bytes(100))
    call.done_writing()
    assert [each.flags for each in server.taken()] == [0]
    server.send(frames.window_update(1, 1_000))
    (last,) = server.taken()
    assert (last.flags, len(last.payload)) == (END_STREAM, 95)
    await task


async def test_a_stream_that_is_blocked_does_not_block_other_calls() -> None:
    server = FakeServer((frames.INITIAL_WINDOW_SIZE, 100))
    blocked = await writing(exchange(server), LARGE)
    other = UnaryCall(asyncio.get_running_loop())
    server.client.begin(other, BLOCK, b"q")
    server.send(response(3, b"a"))
    assert other.outcome.result() == b"a" and not blocked.done()
    server.client.connection_lost(None)
    with pytest.raises(CallFailed):
        await blocked


@pytest.mark.parametrize("ends", [False, True])
async def test_what_is_written_before_the_call_has_a_stream_follows_its_headers(ends: bool) -> None:
    server = FakeServer((frames.MAX_CONCURRENT_STREAMS, 1))
    first, second, third = exchange(server), exchange(server), exchange(server)
    first.done_writing()
    task = await writing(second, b"a")
    if ends:
        second.done_writing()
        third.done_writing()
    server.taken()
    server.send(trailers(1))
    assert server.taken() == [
        Frame(frames.HEADERS, END_HEADERS, 3, BLOCK),
        Frame(frames.DATA, END_STREAM if ends else 0, 3, message(b"a")),
    ]
    await task
    server.send(trailers(3))
    opened = server.taken()
    if not ends:  # the server has ended a call whose request had not ended
        assert opened.pop(0) == Frame(frames.RST_STREAM, 0, 3, bytes(4))
    assert opened.pop(0) == Frame(frames.HEADERS, END_HEADERS, 5, BLOCK)
    assert opened == ([Frame(frames.DATA, END_STREAM, 5, b"")] if ends else [])


async def test_an_ok_status_ends_reads_and_fails_writes() -> None:
    server = FakeServer()
    call = exchange(server)
    server.taken()
    server.send(headers(1), data(1, message(b"a")), trailers(1))
    assert server.taken() == [Frame(frames.RST_STREAM, 0, 1, bytes(4))]
    assert [await call.read(), await call.read()] == [b"a", None]
    with pytest.raises(CallFailed) as caught:
        await call.write(b"b")
    assert caught.value.status == "UNAVAILABLE"
    call.done_writing()
    assert server.taken() == []


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (trailers(1, encoded([("grpc-status", "5")])), "NOT_FOUND"),
        (trailers(1), "UNAVAILABLE"),
        (frames.reset(1, frames.CANCEL), "CANCELLED"),
        (frame(frames.GOAWAY, 0, 0, bytes(8)), "UNAVAILABLE"),
        (frames.window_update(1, 2**31 - 1), "UNAVAILABLE"),
    ],
)
async def test_a_write_that_waits_ends_with_the_call(ending: bytes, status: str) -> None:
    server = FakeServer((frames.INITIAL_WINDOW_SIZE, 100))
    call = exchange(server)
    task = await writing(call, LARGE)
    server.send(ending)
    with pytest.raises(CallFailed) as caught:
        await task
    assert caught.value.status == status
    with pytest.raises(CallFailed) as caught:
        await call.write(b"b")
    assert caught.value.status == status
    server.taken()
    server.send(frames.window_update(0, 100_000))
    assert server.taken() == [] and call.unsent == ()


@pytest.mark.parametrize("reads", [False, True])
async def test_a_read_or_write_that_is_cancelled_resets_the_call(reads: bool) -> None:
    server = FakeServer((frames.INITIAL_WINDOW_SIZE, 100))
    call = exchange(server)
    task: asyncio.Task[object] = asyncio.ensure_future(call.read() if reads else call.write(LARGE))
    await asyncio.sleep(0)
    server.taken()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert server.taken() == [Frame(frames.RST_STREAM, 0, 1, CANCELLED)]
    for operation in (call.read(), call.write(b"a")):
        with pytest.raises(CallFailed) as caught:
            await operation
        assert caught.value.status == "CANCELLED"
    assert server.client.is_idle


async def test_an_exchange_is_pinged_and_an_idle_connection_only_if_asked_for() -> None:
    ping = Frame(frames.PING, 0, 0, bytes(8))
    server = FakeServer(times=Times(keepalive_s=10, silence_s=60, pings_idle=False))
    await asyncio.sleep(100)
    assert server.taken() == []
    exchange(server)
    server.taken()
    await asyncio.sleep(11)
    assert server.taken() == [ping]
    server.send(frame(frames.PING, frames.ACK, 0, bytes(8)), trailers(1))
    server.taken()
    await asyncio.sleep(100)
    assert server.taken() == [] and server.client.accepts


KINDS = st.integers(0, 9)
FRAMES = st.builds(frame, KINDS, st.integers(0, 255), st.integers(0, 3), st.binary(max_size=20))
LIKELY = st.sampled_from([
    headers(1), trailers(1), data(1, message(b"abc")), frames.window_update(0, 50_000),
    frames.window_update(1, 30_000), frames.reset(1, 8), headers(3), trailers(3),
    frames.settings((frames.INITIAL_WINDOW_SIZE, 100)),
    frames.settings((frames.INITIAL_WINDOW_SIZE, 100_000)),
    frame(frames.GOAWAY, 0, 0, bytes([0, 0, 0, 1, 0, 0, 0, 0])),
])  # fmt: skip
OURS = st.sampled_from(["write", "end", "pause", "resume", "abandon"])


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.one_of(FRAMES, LIKELY, OURS), max_size=40))
def test_no_order_of_frames_and_writes_breaks_an_exchange(steps: list[bytes | str]) -> None:
    """Each write has an outcome, and the server gets whole messages in order, then their end."""

    async def run() -> None:
        server = FakeServer()
        call = exchange(server)
        task: asyncio.Task[None] | None = None
        written = b""
        got = list[Frame]()
        for step in steps:
            match step:
                case "write" if (task is None or task.done()) and call.more_follows:
                    body = bytes([len(written) % 251]) * 40_000
                    task = await writing(call, body)
                    written += message(body)
                case "end":
                    call.done_writing()
                case "pause":
                    server.client.pause_writing()
                case "resume":
                    server.client.resume_writing()
                case "abandon":
                    call.abandon(CallFailed("CANCELLED", "given up"))
                case bytes():
                    server.send(step)
            got += server.taken()
            await asyncio.sleep(0)
        own = [each for each in got if each.stream == 1 and each.kind == frames.DATA]
        arrived = b"".join(each.payload for each in own)
        assert written.startswith(arrived)
        assert not any(each.flags for each in own[:-1])
        if own and own[-1].flags:
            assert not call.more_follows and len(arrived) == len(written)
        server.client.connection_lost(None)
        await asyncio.sleep(0)
        assert call.has_ended and call.unsent == ()
        if task is not None:
            assert task.done()
            task.exception()

    asyncio.run(run())
