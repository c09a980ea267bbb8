"""Reads of any size, which all connections make into one buffer."""

from __future__ import annotations

import asyncio
import itertools
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_http2 import frames
from aerobee_http2.calls import MAX_MESSAGE_BYTES, PREFIX, UnaryCall
from aerobee_http2.frames import END_HEADERS, END_STREAM, PADDED, frame
from aerobee_http2.framing import receive_buffer
from support.client.http2_client import BLOCK, FakeClient
from support.client.http2_server import FakeServer, data, headers, message, receive, response

SIZES = st.sampled_from([0, 1, 4, 5, 100, 1_023, 3_000, 20_000])
CUTS = st.lists(st.integers(1, 9_000), min_size=1, max_size=12)


def pieces(whole: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes into pieces of these sizes, again from the first size after the last one."""
    found: list[bytes] = []
    at = 0
    for size in itertools.cycle(cuts):
        if at >= len(whole):
            return found
        found.append(whole[at : at + size])
        at += size
    raise AssertionError("a cycle does not end")


@settings(deadline=None)
@given(st.lists(SIZES, max_size=12), CUTS, CUTS)
def test_requests_of_a_stream_arrive_whole_in_any_frames_and_reads(
    sizes: list[int], frame_cuts: list[int], read_cuts: list[int]
) -> None:
    async def run() -> None:
        client = FakeClient(asks=False)
        client.send(headers(1, BLOCK))
        (call,) = client.calls
        bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
        whole = b"".join(map(message, bodies))
        sent = b"".join(data(1, part) for part in pieces(whole, frame_cuts))
        sent += data(1, b"", END_STREAM)
        asked = 0
        for part in pieces(sent, read_cuts):
            client.send(part)
            if len(call.messages) == asked and None not in call.messages:
                call.ask()
                asked += 1
        while None not in call.messages:
            call.ask()
        assert call.messages == [*bodies, None]
        assert not client.end()

    asyncio.run(run())


@settings(deadline=None)
@given(st.integers(0, 700_000), st.lists(st.integers(1, 300_000), min_size=1, max_size=5))
def test_a_large_message_arrives_whole_in_any_reads(size: int, cuts: list[int]) -> None:
    async def run() -> None:
        body = bytes(range(256)) * (size // 256 + 1)
        client, server = FakeClient(), FakeServer()
        answer = UnaryCall(asyncio.get_running_loop())
        server.client.begin(answer, BLOCK, b"q")
        client.send(headers(1, BLOCK))
        window = 60_000  # of each stream, before the server gives more
        parts = [message(body)[at : at + window] for at in range(0, len(body) + 5, window)]
        for part in parts:
            for read in pieces(data(1, part), cuts):
                client.send(read)
        client.send(data(1, b"", END_STREAM))
        for read in pieces(response(1, body), cuts):
            server.send(read)
        assert client.calls[0].messages == [body]
        assert answer.outcome.result() == body

    asyncio.run(run())


async def test_connections_that_share_a_buffer_keep_their_parts_apart() -> None:
    """Both requests arrive byte by byte in turn. One has padding and headers in two frames."""
    buffer = receive_buffer()
    first, second = FakeClient(buffer=buffer), FakeClient(buffer=buffer)
    plain = headers(1, BLOCK) + data(1, message(b"first" * 9), END_STREAM)
    padded = frame(frames.HEADERS, 0, 1, BLOCK[:9])
    padded += frame(frames.CONTINUATION, END_HEADERS, 1, BLOCK[9:])
    padded += data(1, b"\x03" + message(b"second") + bytes(3), PADDED | END_STREAM)
    for one, other in itertools.zip_longest(plain, padded):
        for client, byte in ((first, one), (second, other)):
            if byte is not None:
                receive(client.server, bytes([byte]))
    assert first.calls[0].messages == [b"first" * 9]
    assert second.calls[0].messages == [b"second"]


async def test_a_length_takes_no_memory_before_the_message_arrives() -> None:
    client, server = FakeClient(), FakeServer()
    calls = [UnaryCall(asyncio.get_running_loop()) for _ in range(20)]
    for call in calls:
        server.client.begin(call, BLOCK, b"q")
    streams = range(1, 40, 2)
    for stream in streams:
        client.send(headers(stream, BLOCK))
        server.send(headers(stream))
    client.taken()
    tracemalloc.start()
    try:
        for stream in streams:
            client.send(data(stream, PREFIX.pack(0, 1024 * 1024) + b"x"))
            server.send(data(stream, PREFIX.pack(0, MAX_MESSAGE_BYTES) + b"x"))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 20 * 2 * 2_000
    assert not client.end() and not any(call.outcome.done() for call in calls)
