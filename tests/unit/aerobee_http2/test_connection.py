"""A connection against recorded frames: calls, windows, limits of the server, hostile servers."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_http2 import connection as connection_module
from aerobee_http2 import frames
from aerobee_http2.calls import (
    MAX_MESSAGE_BYTES,
    PREFIX,
    STREAM_WINDOW,
    Call,
    CallFailed,
    StreamingCall,
    UnaryCall,
)
from aerobee_http2.connection import CONNECTION_WINDOW
from aerobee_http2.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    PADDED,
    frame,
)
from aerobee_http2.hpack import encoded
from support.client.http2_server import (
    BLOCK,
    DONE,
    OK,
    FakeServer,
    Frame,
    data,
    headers,
    message,
    response,
    trailers,
)


def unary(server: FakeServer, request: bytes = b"q") -> UnaryCall:
    call = UnaryCall(asyncio.get_running_loop())
    server.client.begin(call, BLOCK, request)
    return call


def expiring(server: FakeServer, timeout_s: float) -> UnaryCall:
    loop = asyncio.get_running_loop()
    call = UnaryCall(loop, loop.time() + timeout_s)
    server.client.begin(call, BLOCK, b"q")
    return call


def streaming(server: FakeServer) -> StreamingCall:
    call = StreamingCall(asyncio.get_running_loop())
    server.client.begin(call, BLOCK, b"q")
    return call


def failure(call: UnaryCall) -> CallFailed:
    error = call.outcome.exception()
    assert isinstance(error, CallFailed)
    return error


# ---- a call ----


async def test_a_connection_begins_with_preface_and_settings() -> None:
    server = FakeServer(opens=False)
    assert server.opening.startswith(frames.PREFACE)
    states = [(server.client.accepts, server.client.opened.done())]
    server.send(frames.settings())
    states.append((server.client.accepts, server.client.opened.done()))
    assert states == [(False, False), (True, True)]


async def test_a_unary_call_is_two_frames_and_returns_the_message() -> None:
    server = FakeServer()
    call = unary(server, b"question")
    assert server.taken() == [
        Frame(frames.HEADERS, END_HEADERS, 1, BLOCK),
        Frame(frames.DATA, END_STREAM, 1, message(b"question")),
    ]
    server.send(response(1, b"answer"))
    assert call.outcome.result() == b"answer"
    assert server.client.is_idle and server.taken() == []


async def test_a_response_may_arrive_in_any_pieces() -> None:
    server = FakeServer()
    whole = response(1, bytes(range(256))) + response(3, b"")
    for size in range(1, len(whole)):
        server = FakeServer()
        calls = unary(server), unary(server)
        for at in range(0, len(whole), size):
            server.send(whole[at : at + size])
        assert [call.outcome.result() for call in calls] == [bytes(range(256)), b""]


async def test_headers_may_have_padding_priority_and_continuations() -> None:
    server = FakeServer()
    call = unary(server)
    padded = b"\x03" + bytes(5) + OK[:4] + bytes(3)
    server.send(
        frame(frames.HEADERS, PADDED | frames.HAS_PRIORITY, 1, padded),
        frame(CONTINUATION, 0, 1, OK[4:6]),
        frame(CONTINUATION, END_HEADERS, 1, OK[6:]),
        data(1, b"\x02" + message(b"a") + bytes(2), PADDED),
        trailers(1),
    )
    assert call.outcome.result() == b"a"


async def test_an_unknown_frame_is_ignored() -> None:
    server = FakeServer()
    call = unary(server)
    server.send(frame(0xBE, 0xFF, 1, b"new"), frame(frames.PRIORITY, 0, 1, bytes(5)))
    server.send(response(1, b"a"))
    assert call.outcome.result() == b"a"


@pytest.mark.parametrize(
    ("block", "status", "details"),
    [
        (encoded([("grpc-status", "5"), ("grpc-message", "no%20%C3%A9")]), "NOT_FOUND", "no é"),
        (encoded([("grpc-status", "99")]), "UNKNOWN", ""),
        (encoded([("grpc-status", "x")]), "UNKNOWN", ""),
        (encoded([(":status", "503")]), "UNAVAILABLE", "the response has the HTTP status 503"),
        (encoded([("x", "y")]), "UNKNOWN", "the response has no status"),
        (DONE, "INTERNAL", "the response has no message"),
    ],
)
async def test_trailers_alone_are_the_status(block: bytes, status: str, details: str) -> None:
    server = FakeServer()
    call = unary(server)
    server.send(trailers(1, block))
    assert (failure(call).status, failure(call).details) == (status, details)
    assert server.client.accepts


async def test_trailers_carry_text_and_bytes() -> None:
    server = FakeServer()
    call = unary(server)
    fields = [("grpc-status", "8"), ("code", "7"), ("raw-bin", "AAH/,AA"), ("bad-bin", "?")]
    server.send(trailers(1, encoded(fields)))
    assert failure(call).trailers == (("code", "7"), ("raw-bin", b"\0\1\xff"), ("raw-bin", b"\0"))


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (headers(1, encoded([(":status", "200"), ("content-type", "text/html")])), "UNKNOWN"),
        (headers(1, encoded([(":status", "404")])), "UNIMPLEMENTED"),
        (headers(1) + headers(1), "INTERNAL"),
        (data(1, message(b"a")), "INTERNAL"),
        (headers(1) + data(1, PREFIX.pack(1, 1) + b"a"), "INTERNAL"),
        (headers(1) + data(1, PREFIX.pack(0, MAX_MESSAGE_BYTES + 1)), "RESOURCE_EXHAUSTED"),
        (headers(1) + data(1, message(b"a") + message(b"b")), "INTERNAL"),
        (headers(1) + data(1, message(b"a"), END_STREAM), "INTERNAL"),
    ],
)
async def test_a_response_that_is_not_grpc_ends_its_call_alone(sent: bytes, status: str) -> None:
    server = FakeServer()
    call, other = unary(server), unary(server)
    server.taken()
    server.send(sent)
    assert failure(call).status == status
    assert server.taken() == [Frame(frames.RST_STREAM, 0, 1, bytes([0, 0, 0, frames.CANCEL]))]
    server.send(response(3, b"a"), response(1, b"late"))
    assert other.outcome.result() == b"a"


async def test_an_incomplete_message_is_a_failure() -> None:
    server = FakeServer()
    call = unary(server)
    server.send(headers(1), data(1, message(b"abc")[:-1]), trailers(1))
    assert failure(call).status == "INTERNAL" and "incomplete" in failure(call).details


async def test_informational_headers_are_skipped() -> None:
    server = FakeServer()
    call = unary(server)
    server.send(headers(1, encoded([(":status", "103")])), response(1, b"a"))
    assert call.outcome.result() == b"a"


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (frames.REFUSED_STREAM, "UNAVAILABLE"),
        (frames.CANCEL, "CANCELLED"),
        (frames.ENHANCE_YOUR_CALM, "RESOURCE_EXHAUSTED"),
        (frames.INADEQUATE_SECURITY, "PERMISSION_DENIED"),
        (frames.PROTOCOL_ERROR, "INTERNAL"),
    ],
)
async def test_a_reset_has_the_status_of_its_code(code: int, status: str) -> None:
    server = FakeServer()
    call = unary(server)
    server.send(frames.reset(1, code))
    assert failure(call).status == status
    assert failure(call).was_not_processed == (code == frames.REFUSED_STREAM)


async def test_a_call_that_is_given_up_is_reset_once() -> None:
    server = FakeServer()
    call = unary(server)
    server.taken()
    call.abandon(CallFailed("CANCELLED", "given up"))
    call.abandon(CallFailed("CANCELLED", "given up"))
    assert [each.kind for each in server.taken()] == [frames.RST_STREAM]
    assert server.client.is_idle


# ---- requests and the server's limits ----


async def test_a_large_request_waits_for_both_windows() -> None:
    server = FakeServer((frames.INITIAL_WINDOW_SIZE, 10_000))
    request = bytes(range(256)) * 400  # 102,400 bytes
    call = unary(server, request)
    assert sum(len(each.payload) for each in server.taken()[1:]) == 10_000
    server.send(frames.window_update(1, 60_000))
    sent = sum(len(each.payload) for each in server.taken())
    assert sent == frames.DEFAULT_WINDOW - 10_000, "the window of the connection is used up"
    server.send(frames.window_update(0, 200_000))
    sent = sum(len(each.payload) for each in server.taken())
    assert sent == 70_000 - frames.DEFAULT_WINDOW
    server.send(frames.settings((frames.INITIAL_WINDOW_SIZE, 100_000)))
    last = server.taken()
    assert last[-1].flags == END_STREAM and not call.unsent
    server.send(response(1, b"a"))
    assert call.outcome.result() == b"a"


async def test_a_request_arrives_as_it_was_in_frames_of_the_server_s_size() -> None:
    server = FakeServer((frames.INITIAL_WINDOW_SIZE, 2**20), (frames.MAX_FRAME_SIZE, 20_000))
    server.send(frames.window_update(0, 2**20))
    request = bytes(range(256)) * 2_000
    unary(server, request)
    parts = [each.payload for each in server.taken() if each.kind == frames.DATA]
    assert b"".join(parts) == message(request) and max(map(len, parts)) == 20_000


async def test_long_headers_are_continued() -> None:
    server = FakeServer()
    block = encoded([("authorization", "x" * 40_000)])
    server.client.begin(UnaryCall(asyncio.get_running_loop()), block, b"q")
    first, second, third, prefix, last = server.taken()
    assert first.payload + second.payload + third.payload == block
    assert [first.kind, second.kind, third.kind] == [frames.HEADERS, CONTINUATION, CONTINUATION]
    assert [first.flags, second.flags, third.flags] == [0, 0, END_HEADERS]
    assert prefix.payload + last.payload == message(b"q") and last.flags == END_STREAM


async def test_no_more_calls_begin_than_the_server_allows() -> None:
    server = FakeServer((frames.MAX_CONCURRENT_STREAMS, 2))
    calls = [unary(server) for _ in range(5)]
    assert {each.stream for each in server.taken()} == {1, 3}
    calls[2].abandon(CallFailed("DEADLINE_EXCEEDED", ""))  # it has not begun
    server.send(response(1, b"a"))
    assert {each.stream for each in server.taken()} == {5}
    server.send(response(3, b"a"), response(5, b"b"), response(7, b"c"))
    assert calls[3].outcome.result() == b"b" and calls[4].outcome.result() == b"c"


async def test_a_call_that_never_began_keeps_no_memory() -> None:
    server = FakeServer((frames.MAX_CONCURRENT_STREAMS, 0))
    for _ in range(10):
        unary(server, bytes(1_000)).abandon(CallFailed("DEADLINE_EXCEEDED", ""))
    assert server.client.is_idle and server.taken() == []


async def test_calls_wait_while_the_socket_takes_no_more() -> None:
    server = FakeServer((frames.INITIAL_WINDOW_SIZE, 2**20))
    server.send(frames.window_update(0, 2**20))
    server.client.pause_writing()
    call = unary(server, bytes(100_000))
    assert server.taken() == []
    server.client.resume_writing()
    assert sum(len(each.payload) for each in server.taken()[1:]) == 100_005
    assert not call.unsent


async def test_the_rest_of_a_request_is_not_sent_after_its_response() -> None:
    server = FakeServer()
    call = unary(server, bytes(100_000))
    server.taken()
    server.send(trailers(1, encoded([("grpc-status", "7")])))
    assert failure(call).status == "PERMISSION_DENIED"
    (last,) = server.taken()
    assert (last.kind, last.payload) == (frames.RST_STREAM, bytes(4))
    server.send(frames.window_update(0, 100_000))
    assert server.taken() == []


# ---- responses and the client's windows ----


async def test_the_windows_of_a_large_response_are_renewed() -> None:
    server = FakeServer()
    call = unary(server)
    server.taken()
    body = bytes(range(256)) * (MAX_MESSAGE_BYTES // 256)
    whole, piece = message(body), 1_000_000
    server.send(headers(1))
    credit = {0: CONNECTION_WINDOW, 1: STREAM_WINDOW}
    for at in range(0, len(whole), piece):
        part = whole[at : at + piece]
        server.send(data(1, part))
        for stream in credit:
            credit[stream] -= len(part)
        for each in server.taken():
            credit[each.stream] += int.from_bytes(each.payload)
        assert min(credit.values()) >= 0
    server.send(trailers(1))
    assert call.outcome.result() == body


SIZES = st.sampled_from([0, 1, 4, 5, 100, 1_023, 1_024, 3_000])


@settings(deadline=None)
@given(st.lists(SIZES, max_size=12), st.lists(st.integers(1, 2_000), min_size=1, max_size=12))
def test_messages_of_a_stream_arrive_whole_in_any_pieces(sizes: list[int], cuts: list[int]) -> None:
    async def run() -> None:
        server = FakeServer()
        call = streaming(server)
        server.send(headers(1))
        bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
        whole = b"".join(map(message, bodies))
        at, cut = 0, 0
        while at < len(whole):
            size = cuts[cut % len(cuts)]
            server.send(data(1, whole[at : at + size]))
            at, cut = at + size, cut + 1
        server.send(trailers(1))
        got = [await call.read() for _ in bodies]
        assert got == bodies
        assert await call.read() is None

    asyncio.run(run())


async def test_many_small_pieces_of_a_message_are_few_objects() -> None:
    server = FakeServer()
    call = streaming(server)
    server.send(headers(1), data(1, PREFIX.pack(0, 1_000_000)))
    tracemalloc.start()
    try:
        for _ in range(200):
            server.send(data(1, b"ab") * 500)
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 2 * 200_000
    assert not call.has_ended


async def test_an_unread_stream_gets_no_credit() -> None:
    server = FakeServer()
    call = streaming(server)
    server.send(headers(1))
    server.taken()
    part = message(bytes(99_995))
    for _ in range(STREAM_WINDOW // len(part)):
        server.send(data(1, part))
    assert server.taken() == []
    for _ in range(STREAM_WINDOW // len(part)):
        assert await call.read() == bytes(99_995)
    (credit,) = server.taken()
    assert credit.stream == 1 and int.from_bytes(credit.payload) > STREAM_WINDOW // 2
    server.send(trailers(1))
    assert await call.read() is None
    assert await call.read() is None


async def test_a_stream_ends_with_its_status_after_its_messages() -> None:
    server = FakeServer()
    call = streaming(server)
    server.send(headers(1), data(1, message(b"a") + message(b"")))
    server.send(trailers(1, encoded([("grpc-status", "14"), ("grpc-message", "gone")])))
    assert [await call.read(), await call.read()] == [b"a", b""]
    with pytest.raises(CallFailed, match="gone"):
        await call.read()


async def test_padding_counts_in_the_windows() -> None:
    server = FakeServer()
    call = streaming(server)
    server.send(headers(1))
    server.taken()
    padded = data(1, b"\xff" + bytes(255), PADDED)
    for _ in range(STREAM_WINDOW // 256 + 10):  # more than the window, with the credit
        server.send(padded)
    assert {each.kind for each in server.taken()} == {frames.WINDOW_UPDATE}
    assert not call.has_ended


# ---- the end of a connection ----


async def test_a_connection_that_goes_away_ends_its_calls_and_repeats_the_others() -> None:
    server = FakeServer((frames.MAX_CONCURRENT_STREAMS, 2))
    seen, unseen, waiting = unary(server), unary(server), unary(server)
    server.send(frame(frames.GOAWAY, 0, 0, bytes([0, 0, 0, 1, 0, 0, 0, 0])))
    assert not server.client.accepts
    assert failure(unseen).was_not_processed and failure(waiting).was_not_processed
    states = [(seen.outcome.done(), server.transport.closed)]
    server.send(response(1, b"a"))
    states.append((seen.outcome.done(), server.transport.closed))
    assert states == [(False, ""), (True, "aborted")]
    assert seen.outcome.result() == b"a" and server.ended == [server.client]


async def test_a_lost_connection_ends_its_calls() -> None:
    server = FakeServer((frames.MAX_CONCURRENT_STREAMS, 1))
    call, waiting = unary(server), unary(server)
    server.client.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
    assert failure(call).status == "UNAVAILABLE" and not failure(call).was_not_processed
    assert "reset by peer" in failure(call).details
    assert failure(waiting).was_not_processed
    assert server.ended == [server.client]


async def test_the_last_number_of_a_stream_ends_the_connection() -> None:
    server = FakeServer()
    server.client._next_stream = frames.MAX_STREAM
    call, waiting = unary(server), unary(server)
    assert not server.client.accepts
    server.send(response(frames.MAX_STREAM, b"a"))
    assert call.outcome.result() == b"a"
    assert not waiting.outcome.done() or failure(waiting).was_not_processed


async def test_a_ping_is_answered() -> None:
    server = FakeServer()
    server.send(frame(frames.PING, 0, 0, b"12345678"))
    assert server.taken() == [Frame(frames.PING, ACK, 0, b"12345678")]


# ---- hostile servers ----

A_BLOCK = bytes([0x00, 0x01, 0x61, 0x01, 0x61])


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (frames.HEAD.pack(2**24 - 1 << 8, 0, 1), frames.FRAME_SIZE_ERROR),
        (frames.HEAD.pack(20_000 << 8 | frames.PING, 0, 0), frames.FRAME_SIZE_ERROR),
        (frames.HEAD.pack(100_000 << 8 | frames.HEADERS, 4, 1), frames.ENHANCE_YOUR_CALM),
        (headers(2), frames.PROTOCOL_ERROR),
        (headers(99), frames.PROTOCOL_ERROR),
        (data(0, b"a"), frames.PROTOCOL_ERROR),
        (headers(1, b"\xbe"), frames.COMPRESSION_ERROR),
        (headers(1, b"\x3f\xe1\x1f"), frames.COMPRESSION_ERROR),
        (headers(1, OK, 0) + data(1, b"a"), frames.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, OK), frames.PROTOCOL_ERROR),
        (headers(1, OK, 0) + frame(CONTINUATION, 0, 1) * 100, frames.ENHANCE_YOUR_CALM),
        (
            headers(1, OK, 0) + frame(CONTINUATION, 0, 1, A_BLOCK * 3_000) * 10,
            frames.ENHANCE_YOUR_CALM,
        ),
        (data(1, b"\x09a", PADDED), frames.PROTOCOL_ERROR),
        (data(1, b"", PADDED), frames.FRAME_SIZE_ERROR),
        (frame(frames.PUSH_PROMISE, END_HEADERS, 1, bytes(4) + OK), frames.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b"1"), frames.FRAME_SIZE_ERROR),
        (frame(frames.GOAWAY, 0, 0, b"1"), frames.FRAME_SIZE_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b"1"), frames.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"1"), frames.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1), frames.PROTOCOL_ERROR),
        (frames.settings((frames.INITIAL_WINDOW_SIZE, 2**31)), frames.FLOW_CONTROL_ERROR),
        (frames.settings((frames.MAX_FRAME_SIZE, 100)), frames.PROTOCOL_ERROR),
        (frames.settings((frames.ENABLE_PUSH, 1)), frames.PROTOCOL_ERROR),
        (frames.window_update(0, 0), frames.PROTOCOL_ERROR),
        (frames.window_update(0, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
        (frames.window_update(1, 2**31 - 1), frames.FLOW_CONTROL_ERROR),
        (
            frames.window_update(1, 2**31 - 70_000)
            + frames.settings((frames.INITIAL_WINDOW_SIZE, 200_000)),
            frames.FLOW_CONTROL_ERROR,
        ),
    ],
)
async def test_a_violation_ends_connection_and_calls(sent: bytes, code: int) -> None:
    server = FakeServer()
    call, other = unary(server), streaming(server)
    server.send(sent)
    assert server.farewell() == code
    assert server.transport.closed == "aborted" and server.ended == [server.client]
    assert failure(call).status == "UNAVAILABLE"
    with pytest.raises(CallFailed, match="violates HTTP/2"):
        await other.read()
    server.send(response(1, b"late"))
    assert server.taken() == []


async def test_data_beyond_the_window_of_a_call_ends_the_connection() -> None:
    server = FakeServer()
    call = streaming(server)
    server.send(headers(1))
    for _ in range(STREAM_WINDOW // 2**20):
        server.send(data(1, message(bytes(2**20 - 5))))
    ended = [call.has_ended]
    server.send(data(1, b"a"))
    assert [*ended, call.has_ended] == [False, True]
    assert server.farewell() == frames.FLOW_CONTROL_ERROR


@pytest.mark.parametrize(
    "first",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x15\x03\x01\x00\x02\x02\x16plus more",
        headers(1),
        frame(frames.SETTINGS, ACK, 0),
    ],
)
async def test_a_server_must_begin_with_settings(first: bytes) -> None:
    server = FakeServer(opens=False)
    server.send(first)
    error = server.client.opened.exception()
    assert isinstance(error, CallFailed) and error.details == "it does not use HTTP/2"
    assert server.transport.closed == "aborted"


@pytest.mark.parametrize("flood", [frame(frames.PING, 0, 0, bytes(8)), frames.settings()])
async def test_a_flood_that_needs_answers_ends_the_connection(flood: bytes) -> None:
    """The server does not read the answers."""
    server = FakeServer()
    call = unary(server)
    server.client.pause_writing()
    for _ in range(1_000):
        server.send(flood * 200)
        if server.transport.closed:
            break
    assert failure(call).status == "UNAVAILABLE" and "does not read" in failure(call).details
    assert server.transport.unread < connection_module.MAX_REPLY_BYTES + 1_000


async def test_a_server_cannot_make_a_client_store_more_than_its_windows() -> None:
    """Frames that never end, headers that are continued, and data of calls that have ended."""
    server = FakeServer()
    call = streaming(server)
    server.send(headers(1))
    tracemalloc.start()
    try:
        for _ in range(4):
            server.send(data(1, bytes(50_000)))  # empty messages: 5 bytes each
        server.send(frames.HEAD.pack(16_000 << 8 | frames.PING, 0, 0))
        for _ in range(15):
            server.send(bytes(1_000))
        server.taken()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 3 * 200_000
    assert not call.has_ended


KINDS = st.integers(0, 11)
FRAMES = st.builds(frame, KINDS, st.integers(0, 255), st.integers(0, 9), st.binary(max_size=40))
LIKELY = st.sampled_from([
    headers(1), headers(3), trailers(1), trailers(3), data(1, message(b"abc")),
    data(3, message(b"abc")[:6]), frames.window_update(0, 1_000), frames.window_update(1, 70_000),
    frames.settings((frames.MAX_CONCURRENT_STREAMS, 1)), frames.reset(5, 7),
    frames.settings((frames.INITIAL_WINDOW_SIZE, 100)),
    frame(frames.GOAWAY, 0, 0, bytes([0, 0, 0, 3, 0, 0, 0, 0])),
])  # fmt: skip


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.one_of(FRAMES, LIKELY), max_size=30), st.integers(1, 200), st.integers(0, 3))
def test_no_frames_break_a_client(sent: list[bytes], size: int, given_up: int) -> None:
    """Each call has one outcome, nothing escapes, and a closed connection writes nothing."""

    async def run() -> None:
        server = FakeServer()
        calls = [unary(server, b"q" * 70_000), unary(server), unary(server)]
        stream = streaming(server)
        whole = b"".join(sent)
        for number, at in enumerate(range(0, len(whole), size)):
            server.send(whole[at : at + size])
            if number == given_up:
                calls[1].abandon(CallFailed("CANCELLED", "given up"))
        server.taken()
        everything: list[Call] = [*calls, stream]
        server.client.connection_lost(None)
        assert server.ended == [server.client]
        assert all(call.outcome.done() for call in calls) and stream.has_ended
        for call in calls:
            call.outcome.exception()
        assert all(call.connection is None for call in everything)
        assert server.client.is_idle
        server.send(response(1, b"late"))
        assert server.taken() == []

    asyncio.run(run())


# ---- silent servers ----


PING = Frame(frames.PING, 0, 0, bytes(8))


async def test_a_server_that_is_silent_after_a_call_began_is_given_up() -> None:
    """A ping after 2 s, even if more calls begin, and the end 10 s later."""
    server = FakeServer()
    await asyncio.sleep(20)
    call = unary(server)
    await asyncio.sleep(1.5)
    unary(server)
    server.taken()
    await asyncio.sleep(1)
    assert server.taken() == [PING]
    await asyncio.sleep(9)
    assert not call.outcome.done() and server.taken() == []
    await asyncio.sleep(1)
    assert failure(call).details == "it does not answer pings"
    assert server.transport.closed == "aborted"


async def test_a_call_that_the_server_holds_is_pinged_once() -> None:
    server = FakeServer()
    call = unary(server)
    server.taken()
    await asyncio.sleep(3)
    assert server.taken() == [PING]
    server.send(frame(frames.PING, ACK, 0, bytes(8)))
    await asyncio.sleep(25)
    assert server.taken() == []
    server.send(response(1, b"a"))
    assert call.outcome.result() == b"a"


async def test_a_server_without_calls_is_pinged_after_30_s() -> None:
    server = FakeServer()
    await asyncio.sleep(29)
    assert server.taken() == []
    await asyncio.sleep(2)
    assert server.taken() == [PING]
    await asyncio.sleep(10)
    assert server.ended == [server.client]


async def test_a_server_that_answers_pings_is_kept() -> None:
    server = FakeServer()
    for _ in range(3):
        await asyncio.sleep(31)
        assert server.taken() == [Frame(frames.PING, 0, 0, bytes(8))]
        server.send(frame(frames.PING, ACK, 0, bytes(8)))
    assert server.client.accepts and not server.ended
    server.client.close(CallFailed("CANCELLED", "closed"))
    await asyncio.sleep(100)
    assert [each.kind for each in server.taken()] == [frames.GOAWAY]


async def test_a_call_ends_at_its_deadline_and_is_reset() -> None:
    server = FakeServer()
    call = expiring(server, 1)
    server.taken()
    await asyncio.sleep(1.5)
    assert failure(call).status == "DEADLINE_EXCEEDED"
    assert [each.kind for each in server.taken()] == [frames.RST_STREAM]


async def test_each_call_ends_at_its_own_deadline() -> None:
    """The third call waits, because the server accepts two. The last one has no deadline."""
    server = FakeServer((frames.MAX_CONCURRENT_STREAMS, 2))
    calls = [expiring(server, timeout_s) for timeout_s in (3, 2, 1)]
    endless = unary(server)
    for ended in ([False] * 3, [False, False, True], [False, True, True], [True] * 3):
        assert [call.outcome.done() for call in calls] == ended
        await asyncio.sleep(1.1)
    assert {failure(call).status for call in calls} == {"DEADLINE_EXCEEDED"}
    server.send(response(5, b"answer"))
    assert endless.outcome.result() == b"answer"


async def test_a_loop_whose_time_is_moved_ends_no_call_too_early() -> None:
    now_s = 100.0
    server = FakeServer(now_s=lambda: now_s)
    loop = asyncio.get_running_loop()
    calls = [UnaryCall(loop, now_s + timeout_s) for timeout_s in (3, 5)]
    for call in calls:
        server.client.begin(call, BLOCK, b"q")
    await asyncio.sleep(100)  # of the loop
    assert not any(call.outcome.done() for call in calls) and not server.ended
    now_s += 4
    await asyncio.sleep(4)
    assert [call.outcome.done() for call in calls] == [True, False]
    await asyncio.sleep(100)  # the ping since has an answer in time, by the clock
    assert not server.ended
    now_s += 10
    await asyncio.sleep(20)
    assert server.ended, "it does not answer pings"


async def test_deadlines_that_are_close_together_pass_together() -> None:
    server = FakeServer()
    calls = [expiring(server, 1 + number / 100_000) for number in range(500)]
    await asyncio.sleep(1 + 2 * connection_module.SOONEST_S)
    assert {failure(call).status for call in calls} == {"DEADLINE_EXCEEDED"}
