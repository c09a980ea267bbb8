"""A server's connection against recorded frames: calls, windows, limits, hostile clients."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_http2 import frames, server
from aerobee_http2.calls import PREFIX
from aerobee_http2.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    frame,
)
from aerobee_http2.hpack import decode, encoded
from aerobee_http2.request_head import trailers
from aerobee_http2.server import CONNECTION_WINDOW, ServerLimits
from support.client.http2_client import BLOCK, FIELDS, FakeClient
from support.client.http2_server import Frame, data, headers, message

OPENING = encoded(((":status", "200"), ("content-type", "application/grpc")))
OK = encoded((("grpc-status", "0"),))
DEFAULT = 65_535


def begun(stream: int = 1, block: bytes = BLOCK, flags: int = 0) -> bytes:
    return headers(stream, block, END_HEADERS | flags)


def block_with(*fields: tuple[str, str], without: str = "") -> bytes:
    return encoded((*(each for each in FIELDS if each[0] != without), *fields))


# ---- a call ----


async def test_a_connection_begins_with_settings_and_a_window() -> None:
    client = FakeClient(opens=False)
    kinds = [each.kind for each in client.opening]
    assert kinds == [frames.SETTINGS, frames.WINDOW_UPDATE]
    values = frames.read_settings(client.opening[0].payload)
    assert values[frames.MAX_CONCURRENT_STREAMS] == 10_000
    assert values[frames.INITIAL_WINDOW_SIZE] == DEFAULT
    assert client.made == [client.server] and not client.server.opened


async def test_a_unary_call_is_answered_by_one_write() -> None:
    client = FakeClient()
    call = client.ask(1, b"question")
    assert call.messages == [b"question"]
    assert call.answer(b"answer")
    assert call.cancelled is False
    assert client.taken() == [
        Frame(HEADERS, END_HEADERS, 1, OPENING),
        Frame(frames.DATA, 0, 1, message(b"answer")),
        Frame(HEADERS, END_HEADERS | END_STREAM, 1, OK),
    ]


async def test_headers_that_repeat_are_read_twice_at_most_and_others_do_not_displace_them() -> None:
    client = FakeClient()
    client.ask(1, b"")
    repeated = [client.ask(stream, b"").head for stream in (3, 5)]
    assert repeated[0] is repeated[1]
    for number in range(1_000):
        client.send(begun(7 + 2 * number, block_with(("call", str(number)))))
    assert client.ask(2_007, b"").head is repeated[0]
    assert client.calls[-2].head.metadata["call"] == "999"


async def test_a_request_may_arrive_in_any_pieces() -> None:
    whole = frames.PREFACE + frames.settings() + begun() + data(1, message(b"abc"), END_STREAM)
    whole += begun(3) + data(3, message(bytes(300)), END_STREAM)
    for size in range(1, len(whole)):
        client = FakeClient(opens=False)
        for at in range(0, len(whole), size):
            client.send(whole[at : at + size])
        assert [call.messages for call in client.calls] == [[b"abc"], [bytes(300)]]


async def test_headers_may_have_padding_priority_and_continuations() -> None:
    client = FakeClient()
    padded = b"\x03" + bytes(5) + BLOCK[:4] + bytes(3)
    client.send(
        frame(HEADERS, PADDED | HAS_PRIORITY, 1, padded),
        frame(CONTINUATION, 0, 1, BLOCK[4:6]),
        frame(CONTINUATION, END_HEADERS, 1, BLOCK[6:]),
        data(1, b"\x02" + message(b"a") + bytes(2), PADDED | END_STREAM),
    )
    assert client.calls[0].messages == [b"a"]
    assert client.calls[0].head.path == "/test.Service/Method"


async def test_a_head_has_metadata_timeout_and_encoding() -> None:
    client = FakeClient()
    block = block_with(
        ("grpc-timeout", "1500m"), ("grpc-encoding", "gzip"), ("x-a", "1"), ("x-a", "2"),
        ("key-bin", "AAA"), ("user-agent", "test"),
    )  # fmt: skip
    client.send(begun(1, block))
    head = client.calls[0].head
    assert head.metadata == {"x-a": "2", "user-agent": "test"}
    assert (head.timeout_s, head.encoding) == (1.5, "gzip")


@pytest.mark.parametrize("value", ["", "1", "-1S", "123456789S", "1x", "S"])
async def test_an_invalid_timeout_is_none(value: str) -> None:
    client = FakeClient()
    client.send(begun(1, block_with(("grpc-timeout", value))))
    assert client.calls[0].head.timeout_s is None


async def test_blocks_with_a_dynamic_table_mean_what_their_connection_says() -> None:
    client = FakeClient()
    literal = b"\x40" + b"\x03x-a" + b"\x011"  # a new entry of the table
    for stream, block in ((1, BLOCK + literal), (3, BLOCK + b"\xbe"), (5, BLOCK + b"\xbe")):
        client.send(begun(stream, block))
    other = b"\x40" + b"\x03x-a" + b"\x012"
    for stream, block in ((7, BLOCK + other), (9, BLOCK + b"\xbe"), (11, BLOCK + b"\xbf")):
        client.send(begun(stream, block))
    values = [call.head.metadata["x-a"] for call in client.calls]
    assert values == ["1", "1", "1", "2", "2", "1"]


async def test_a_failure_is_one_frame_with_percent_encoding() -> None:
    client = FakeClient()
    call = client.ask()
    call.end(trailers("NOT_FOUND", "50 % für\n", (("x-code", "7"),)))
    (frame_,) = client.taken()
    assert frame_.flags == END_HEADERS | END_STREAM
    assert dict(decode(frame_.payload)) == {
        ":status": "200", "content-type": "application/grpc", "grpc-status": "5",
        "grpc-message": "50 %25 f%C3%BCr%0A", "x-code": "7",
    }  # fmt: skip


async def test_long_trailers_are_continued() -> None:
    client = FakeClient()
    client.ask().end(trailers("UNKNOWN", "x" * 40_000))
    found = client.taken()
    assert [each.kind for each in found] == [HEADERS, CONTINUATION, CONTINUATION]
    assert [each.flags for each in found] == [END_STREAM, 0, END_HEADERS]
    assert dict(decode(b"".join(each.payload for each in found)))["grpc-message"] == "x" * 40_000


# ---- calls that are not served ----


async def test_an_unknown_method_ends_with_its_status() -> None:
    client = FakeClient()
    client.send(begun(1, block_with((":path", "/other"), without=":path"), END_STREAM))
    client.send(begun(3, block_with((":path", "/other"), without=":path")))
    found = client.taken()
    assert [each.kind for each in found] == [HEADERS, HEADERS, frames.RST_STREAM]
    assert dict(decode(found[0].payload))["grpc-status"] == "12"
    assert client.ask(5).messages == [b"q"]


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (block_with((":method", "GET"), without=":method"), "405"),
        (block_with(("content-type", "text/plain"), without="content-type"), "415"),
        (block_with(("content-type", "application/grpcx"), without="content-type"), "415"),
    ],
)
async def test_a_request_that_is_not_grpc_gets_an_http_status(block: bytes, status: str) -> None:
    client = FakeClient()
    client.send(begun(1, block, END_STREAM))
    assert client.statuses() == {1: {":status": status}}
    assert not client.calls


@pytest.mark.parametrize(
    "block",
    [
        block_with(without=":path"),
        block_with(without=":method"),
        block_with(("Upper", "a")),
        block_with(("x-a", "a\nb")),
        block_with(("connection", "close")),
    ],
)
async def test_headers_that_violate_http_reset_their_stream(block: bytes) -> None:
    client = FakeClient()
    client.send(begun(1, block))
    assert client.taken() == [Frame(frames.RST_STREAM, 0, 1, frames.NUMBER.pack(1))]
    assert client.ask(3).messages == [b"q"]


async def test_headers_above_the_limit_end_their_call_and_not_the_connection() -> None:
    client = FakeClient()
    entry = b"\x40\x03x-a" + b"\x7f\x81\x1e" + b"v" * 3_968
    client.send(begun(1, BLOCK + entry + b"\xbe" * 4_000))
    assert client.statuses()[1]["grpc-status"] == "8"
    client.send(begun(3, BLOCK + b"\xbe"))
    assert client.calls[0].head.metadata == {"x-a": "v" * 3_968}


async def test_calls_above_the_limit_of_streams_are_refused() -> None:
    client = FakeClient(limits=ServerLimits(streams=2))
    client.send(begun(1), begun(3), begun(5))
    refused = Frame(frames.RST_STREAM, 0, 5, frames.NUMBER.pack(frames.REFUSED_STREAM))
    assert client.taken() == [refused]
    client.calls[0].end()
    client.send(begun(7))
    assert len(client.calls) == 3


# ---- messages ----


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [("gzip", gzip.compress(b"text", mtime=0)), ("deflate", zlib.compress(b"text"))],
)
async def test_compressed_messages_are_read(encoding: str, packed: bytes) -> None:
    client = FakeClient()
    client.send(begun(1, block_with(("grpc-encoding", encoding))))
    client.send(data(1, PREFIX.pack(1, len(packed)) + packed + message(b"plain")))
    (call,) = client.calls
    call.ask()
    assert call.messages == [b"text", b"plain"]


@pytest.mark.parametrize(
    ("encoding", "sent", "status"),
    [
        ("identity", PREFIX.pack(1, 1) + b"a", "INTERNAL"),
        ("gzip", PREFIX.pack(2, 1) + b"a", "INTERNAL"),
        ("gzip", PREFIX.pack(1, 3) + b"abc", "INTERNAL"),
        ("gzip", PREFIX.pack(1, 20) + gzip.compress(b"text" * 9, mtime=0)[:20], "INTERNAL"),
        ("identity", PREFIX.pack(0, 2**20 + 1), "RESOURCE_EXHAUSTED"),
        ("identity", PREFIX.pack(0, 2**32 - 1), "RESOURCE_EXHAUSTED"),
    ],
)
async def test_messages_that_cannot_be_read_end_their_call(
    encoding: str, sent: bytes, status: str
) -> None:
    client = FakeClient()
    client.send(begun(1, block_with(("grpc-encoding", encoding))), data(1, sent))
    (call,) = client.calls
    assert call.problem is not None and call.problem[0] == status
    assert not call.messages
    assert client.ask(3).messages == [b"q"]


async def test_a_bomb_is_decompressed_only_up_to_the_limit() -> None:
    client = FakeClient()
    packed = gzip.compress(bytes(64 * 1024 * 1024), mtime=0)
    client.send(begun(1, block_with(("grpc-encoding", "gzip"))))
    (call,) = client.calls
    tracemalloc.start()
    for at in range(0, len(packed), 10_000):
        part = packed[at : at + 10_000]
        client.send(data(1, (b"" if at else PREFIX.pack(1, len(packed))) + part))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert call.problem is not None and call.problem[0] == "RESOURCE_EXHAUSTED"
    assert peak < 4 * 1024 * 1024


async def test_a_request_that_ends_without_its_message() -> None:
    client = FakeClient()
    client.send(begun(1, flags=END_STREAM))
    client.send(begun(3), data(3, message(b"abc")[:6], END_STREAM))
    client.send(begun(5), data(5, b"\0\0", END_STREAM))
    assert client.calls[0].messages == [None]
    assert [call.problem and call.problem[0] for call in client.calls] == [
        None, "INTERNAL", "INTERNAL",
    ]  # fmt: skip


async def test_messages_of_a_stream_are_passed_on_one_by_one() -> None:
    client = FakeClient(asks=False)
    client.send(begun(1), data(1, message(b"a") + message(b"") + message(b"b")[:3]))
    (call,) = client.calls
    assert call.messages == []
    for _ in range(3):
        call.ask()
    assert call.messages == [b"a", b""]
    client.send(data(1, message(b"b")[3:], END_STREAM))
    call.ask()
    assert call.messages == [b"a", b"", b"b", None]


# ---- windows ----


async def test_a_request_gets_credit_only_when_it_is_read() -> None:
    client = FakeClient(asks=False)
    client.send(begun(1))
    first = PREFIX.pack(0, 200_000) + bytes(DEFAULT - 5)
    for at in range(0, DEFAULT, 16_000):
        client.send(data(1, first[at : at + 16_000]))
    (call,) = client.calls
    assert client.taken() == []
    call.ask()
    left = 200_000 - (DEFAULT - 5)
    assert client.taken() == [Frame(frames.WINDOW_UPDATE, 0, 1, frames.NUMBER.pack(left))]
    for _ in range(0, left, 16_000):
        client.send(data(1, bytes(min(left, 16_000))))
        left -= min(left, 16_000)
    assert call.messages == [bytes(200_000)]


async def test_data_beyond_a_window_ends_the_connection() -> None:
    client = FakeClient(asks=False)
    client.send(begun(1), data(1, PREFIX.pack(0, 2**20) + bytes(DEFAULT - 4)))
    assert client.farewell()[0] == frames.FLOW_CONTROL_ERROR
    assert client.calls[0].cancelled is True


async def test_the_window_of_the_connection_is_refilled() -> None:
    client = FakeClient()
    size = 1_000_000
    more = 0
    for stream in range(1, 61, 2):
        client.send(begun(stream))
        client.send(frame(frames.RST_STREAM, 0, stream, bytes(4)))
        for _ in range(4):  # of a stream that has ended
            client.send(data(stream, bytes(size // 4)))
        more += sum(
            int.from_bytes(each.payload)
            for each in client.taken()
            if each.kind == frames.WINDOW_UPDATE and not each.stream
        )
    assert 30 * size - CONNECTION_WINDOW < more <= 30 * size


async def test_an_answer_waits_for_windows_and_ends_whole() -> None:
    client = FakeClient()
    call = client.ask()
    body = bytes(range(256)) * 1_000
    assert not call.answer(body)
    found = client.taken()
    sent = b"".join(each.payload for each in found if each.kind == frames.DATA)
    assert len(sent) == DEFAULT == call.sent_bytes
    assert max(len(each.payload) for each in found) == frames.DEFAULT_FRAME_BYTES
    client.send(frames.window_update(1, 10_000))
    assert client.taken() == []  # the window of the connection is used up
    client.send(frames.window_update(0, 300_000))
    sent += b"".join(each.payload for each in client.taken())
    assert len(sent) == DEFAULT + 10_000
    client.send(frames.window_update(1, 300_000))
    found = client.taken()
    sent += b"".join(each.payload for each in found if each.kind == frames.DATA)
    assert sent == message(body)
    assert found[-1] == Frame(HEADERS, END_HEADERS | END_STREAM, 1, OK)
    assert call.cancelled is False


async def test_streams_share_a_connection_in_turns() -> None:
    client = FakeClient((frames.INITIAL_WINDOW_SIZE, 2**30))
    calls = [client.ask(1), client.ask(3)]
    client.taken()
    for call in calls:
        call.answer(bytes(10_000_000))
    shares = {1: 0, 3: 0}
    for _ in range(8):
        client.send(frames.window_update(0, server.WRITE_BYTES * 2))
        for each in client.taken():
            shares[each.stream] += len(each.payload)
    assert min(shares.values()) > 0.4 * sum(shares.values())


async def test_a_socket_that_takes_no_more_holds_answers_back() -> None:
    client = FakeClient()
    call = client.ask()
    client.server.pause_writing()
    assert not call.answer(b"a")
    assert [each.kind for each in client.taken()] == [HEADERS]
    client.server.resume_writing()
    assert [each.kind for each in client.taken()] == [frames.DATA, HEADERS]


async def test_new_settings_change_windows_of_running_calls() -> None:
    client = FakeClient((frames.INITIAL_WINDOW_SIZE, 0))
    call = client.ask()
    call.answer(b"abc")
    assert [each.kind for each in client.taken()] == [HEADERS]
    client.send(frames.settings((frames.INITIAL_WINDOW_SIZE, 100)))
    assert [each.kind for each in client.taken()] == [frames.SETTINGS, frames.DATA, HEADERS]


async def test_a_call_that_is_cut_ends_with_its_status() -> None:
    client = FakeClient()
    call = client.ask()
    call.answer(bytes(200_000))
    client.taken()
    call.cut("RESOURCE_EXHAUSTED", "too slow")
    assert client.statuses()[1]["grpc-status"] == "8"
    assert call.sent_bytes == 200_005  # with those that were discarded


async def test_a_writer_waits_until_its_messages_are_sent() -> None:
    client = FakeClient((frames.INITIAL_WINDOW_SIZE, 10))
    call = client.ask()
    waiter = client.server._loop.create_future()
    call.queue([b"12345", b"67890"])
    call.wait(waiter)
    client.server.send(call)
    assert not waiter.done()
    client.send(frames.window_update(1, 10))
    client.taken()
    assert waiter.done() and not waiter.cancelled()
    other = client.server._loop.create_future()
    call.queue([b"12345"])
    call.wait(other)
    client.send(frame(frames.RST_STREAM, 0, 1, bytes(4)))
    assert other.cancelled()


# ---- the end of calls and connections ----


async def test_a_reset_cancels_a_call_once() -> None:
    client = FakeClient()
    call = client.ask()
    client.send(frame(frames.RST_STREAM, 0, 1, bytes(4)))
    assert call.cancelled is True
    client.send(frame(frames.RST_STREAM, 0, 1, bytes(4)), frames.window_update(1, 5))
    client.send(begun(1))  # as if it came late
    call.end()
    assert client.taken() == [] and len(client.calls) == 1


async def test_an_answer_before_the_end_of_its_request_stops_the_client() -> None:
    client = FakeClient()
    client.send(begun(1), data(1, message(b"q")))
    client.calls[0].answer(b"a")
    last = client.taken()[-1]
    assert last == Frame(frames.RST_STREAM, 0, 1, bytes(4))


async def test_a_connection_drains_after_its_last_call() -> None:
    client = FakeClient()
    call = client.ask()
    client.server.drain()
    client.server.drain()
    goaway, ping = client.taken()
    assert int.from_bytes(goaway.payload[:4]) == frames.MAX_STREAM
    late = client.ask(3)  # it was on its way
    client.send(frame(frames.PING, ACK, 0, ping.payload))
    (goaway,) = client.taken()
    assert int.from_bytes(goaway.payload[:4]) == 3
    client.send(begun(5))
    assert client.taken()[0].kind == frames.RST_STREAM
    late.answer(b"late")
    assert not client.end()
    call.answer(b"last")
    assert client.end() == "closed"
    assert [each.kind for each in client.taken()] == [HEADERS, frames.DATA, HEADERS] * 2
    client.server.connection_lost(None)
    assert client.closed == [client.server]


async def test_a_lost_connection_cancels_its_calls() -> None:
    client = FakeClient()
    calls = client.ask(1), client.ask(3)
    client.server.connection_lost(OSError("reset"))
    assert [call.cancelled for call in calls] == [True, True]
    calls[0].end()
    calls[1].answer(b"a")
    assert client.taken() == [] and client.closed == [client.server]


async def test_a_peer_without_settings_is_closed() -> None:
    for sent in (b"", frames.PREFACE[:9], frames.PREFACE):
        client = FakeClient(opens=False)
        client.send(sent)
        assert client.server.check(client.now_s + 9.9) == client.now_s + 10
        assert not client.end()
        client.server.check(client.now_s + 10)
        assert client.end() == "aborted"


async def test_a_silent_peer_is_pinged_and_closed() -> None:
    client = FakeClient()
    began_s = client.now_s
    assert client.server.check(began_s + 59) == began_s + 60
    assert client.server.check(began_s + 60) == began_s + 90
    (ping,) = client.taken()
    assert ping.kind == frames.PING and not ping.flags
    client.now_s += 70
    client.send(frame(frames.PING, ACK, 0, ping.payload))
    assert client.server.check(began_s + 90) == began_s + 130
    client.server.check(began_s + 130)
    assert client.server.check(began_s + 159) == began_s + 160
    assert not client.end()
    client.server.check(began_s + 160)
    assert client.end() == "aborted"


async def test_a_closed_connection_that_is_not_read_is_aborted() -> None:
    client = FakeClient()
    client.server.drain()
    client.send(frame(frames.PING, ACK, 0, client.taken()[-1].payload))
    assert client.end() == "closed"
    client.transport.closed = ""
    client.server.check(client.now_s + server.CLOSE_S)
    assert client.end() == "aborted"


# ---- hostile clients ----


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (data(1, b"x"), frames.PROTOCOL_ERROR),
        (begun(2), frames.PROTOCOL_ERROR),
        (begun(0), frames.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, bytes(4)), frames.PROTOCOL_ERROR),
        (frames.window_update(1, 1), frames.PROTOCOL_ERROR),
        (frames.window_update(0, 0), frames.FLOW_CONTROL_ERROR),
        (frames.window_update(0, frames.MAX_WINDOW), frames.FLOW_CONTROL_ERROR),
        (frame(frames.PUSH_PROMISE, 0, 1, bytes(8)), frames.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, bytes(7)), frames.FRAME_SIZE_ERROR),
        (frame(frames.GOAWAY, 0, 0, bytes(7)), frames.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 0, bytes(5)), frames.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1, b""), frames.PROTOCOL_ERROR),
        (frames.settings((frames.ENABLE_PUSH, 2)), frames.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1, BLOCK), frames.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(frames.PING, 0, 0, bytes(8)), frames.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1, BLOCK) + frame(CONTINUATION, 0, 3, b"a"), frames.PROTOCOL_ERROR),
        (begun(1, b"\xff\xff\xff\xff\x0f"), frames.COMPRESSION_ERROR),
        (begun(1, b"\x3f\xe1\xff\xff\xff\x07"), frames.COMPRESSION_ERROR),
        (begun(1) + begun(1), frames.PROTOCOL_ERROR),
        (begun(1, flags=END_STREAM) + data(1, b"x"), frames.STREAM_CLOSED),
        (frames.HEAD.pack(2**24 - 1 << 8 | frames.DATA, 0, 1), frames.FRAME_SIZE_ERROR),
        (frames.HEAD.pack(20_000 << 8 | frames.PING, 0, 0), frames.FRAME_SIZE_ERROR),
        (frames.HEAD.pack(100_000 << 8 | HEADERS, 0, 1), frames.ENHANCE_YOUR_CALM),
    ],
)
async def test_violations_end_the_connection(sent: bytes, code: int) -> None:
    client = FakeClient(asks=False)
    client.send(sent)
    assert client.farewell()[0] == code
    assert client.end()
    client.send(begun(9))
    assert len(client.calls) <= 1


@pytest.mark.parametrize("name", [b"\xff", b"\xc3\xa9", b"a b", b"Upper"])
async def test_a_name_of_metadata_that_is_not_text_ends_its_call_alone(
    name: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """No line of the log has it: a caller could fill the log."""
    client = FakeClient()
    client.send(begun(1, BLOCK + bytes((0, len(name))) + name + b"\x01a"))
    (reset,) = (each for each in client.taken() if each.kind == frames.RST_STREAM)
    assert int.from_bytes(reset.payload) == frames.PROTOCOL_ERROR
    client.ask(3)
    assert len(client.calls) == 1 and not client.end() and not caplog.records


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", frames.PREFACE + bytes(9)])
async def test_another_protocol_is_closed(sent: bytes) -> None:
    client = FakeClient(opens=False)
    client.send(sent)
    assert client.farewell()[0] == frames.PROTOCOL_ERROR and client.end()


async def test_window_updates_of_a_stream_that_are_invalid_reset_it() -> None:
    client = FakeClient()
    calls = client.ask(1), client.ask(3)
    client.send(frames.window_update(1, 0), frames.window_update(3, frames.MAX_WINDOW))
    resets = [each for each in client.taken() if each.kind == frames.RST_STREAM]
    assert [int.from_bytes(each.payload) for each in resets] == [
        frames.PROTOCOL_ERROR, frames.FLOW_CONTROL_ERROR,
    ]  # fmt: skip
    assert all(call.cancelled for call in calls) and not client.end()


async def test_headers_that_do_not_end_are_bounded() -> None:
    client = FakeClient()
    client.send(frame(HEADERS, 0, 1, BLOCK))
    for _ in range(65):
        client.send(frame(CONTINUATION, 0, 1, b"a"))
    assert client.farewell()[0] == frames.ENHANCE_YOUR_CALM


async def test_pings_that_come_too_early_end_the_connection() -> None:
    client = FakeClient()
    ping = frame(frames.PING, 0, 0, bytes(8))
    for _ in range(100):
        client.now_s += 1.0
        client.send(ping)
    client.send(ping * 20)
    assert not client.end()
    client.ask().answer(b"a")  # an answer allows pings again
    client.send(ping * 20)
    assert len(client.taken()) == 143 and not client.end()
    client.send(ping)
    assert client.farewell() == (frames.ENHANCE_YOUR_CALM, b"too_many_pings")


async def test_calls_that_are_reset_at_once_end_the_connection() -> None:
    client = FakeClient()
    for stream in range(1, 2 * server.MAX_RESETS + 1, 2):
        client.send(begun(stream), frame(frames.RST_STREAM, 0, stream, bytes(4)))
        client.calls.clear()
    assert not client.end()
    client.now_s += 1.0
    stream = 2 * server.MAX_RESETS + 1
    for _ in range(int(server.RESETS_A_S) + 1):
        assert not client.end()
        client.send(begun(stream), frame(frames.RST_STREAM, 0, stream, bytes(4)))
        stream += 2
    assert client.farewell()[0] == frames.ENHANCE_YOUR_CALM


async def test_frames_of_a_peer_that_does_not_read_are_not_read() -> None:
    client = FakeClient()
    client.server.pause_writing()
    client.transport.unread = server.MAX_UNSENT_BYTES
    client.send(frames.settings())
    assert not client.transport.reads and not client.end()
    client.server.resume_writing()
    assert client.transport.reads


FRAMES = st.builds(
    frame,
    st.integers(0, 11),
    st.integers(0, 255),
    st.sampled_from([0, 1, 2, 3, 5, 2**31 - 1]),
    st.one_of(st.binary(max_size=40), st.just(BLOCK), st.just(message(b"abc"))),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(FRAMES, max_size=20), st.integers(1, 60))
async def test_no_sequence_of_frames_breaks_the_connection(sent: list[bytes], size: int) -> None:
    client = FakeClient()
    whole = begun(1) + b"".join(sent)
    for at in range(0, len(whole), size):
        client.send(whole[at : at + size])
    for call in client.calls:
        call.ask()
        call.answer(b"a")
    client.taken()
    client.server.connection_lost(None)
    assert all(call.cancelled is not None for call in client.calls)
    assert client.closed == [client.server]
