"""Hostile and unusual clients: what a server stores and computes for them is bounded."""

from __future__ import annotations

import asyncio
import time
import tracemalloc

import pytest

from aerobee_http2 import frames
from aerobee_http2.calls import PREFIX
from aerobee_http2.frames import END_HEADERS, END_STREAM, PADDED, frame
from aerobee_http2.hpack import encoded
from aerobee_http2.server import MAX_RESETS, MAX_UNSENT_BYTES, ServerLimits
from support.client.http2_client import BLOCK, FakeClient

OTHER = encoded(((":method", "POST"), (":path", "/no/such")))
NEW = b"\x40"  # a literal that is added to the dynamic table, with a new name


def literal(name: str, value: str, first: bytes = NEW) -> bytes:
    return first + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call(stream: int, block: bytes = BLOCK, flags: int = END_HEADERS) -> bytes:
    return frame(frames.HEADERS, flags, stream, block)


# ---- header blocks ----


def test_trailers_change_the_meaning_of_a_remembered_block() -> None:
    """A block that was read before has other fields after trailers changed the dynamic table."""

    async def run() -> None:
        client = FakeClient()
        client.send(call(1, BLOCK + literal("user", "alice")))
        first = BLOCK + b"\xbe"  # the newest entry of the table
        client.send(call(3, first))
        client.send(call(1, literal("user", "bob"), END_HEADERS | END_STREAM))  # trailers
        client.send(call(5, first))
        users = [each.head.metadata["user"] for each in client.calls]
        assert users == ["alice", "alice", "bob"]

    asyncio.run(run())


@pytest.mark.parametrize("fault", ["too large", "malformed"])
def test_a_block_that_is_refused_changes_the_meaning_of_a_remembered_block(fault: str) -> None:
    async def run() -> None:
        client = FakeClient()
        client.send(call(1, BLOCK + literal("user", "alice")))
        first = BLOCK + b"\xbe"
        client.send(call(3, first))
        refused = literal("user", "bob")
        if fault == "malformed":
            refused += literal("Upper", "x", b"\x00")
        else:
            refused = encoded((("big", "x" * 20_000),)) + refused
        client.send(call(5, refused))
        client.send(call(7, first))
        users = [each.head.metadata["user"] for each in client.calls]
        assert users == ["alice", "alice", "bob"]

    asyncio.run(run())


async def test_trailers_that_are_too_large_end_their_call_and_not_the_server() -> None:
    """`buffer_updated` raises nothing: asyncio would log a traceback for each."""
    client = FakeClient()
    client.send(call(1))
    big = encoded((("big", "x" * 20_000),))
    client.send(
        frame(frames.HEADERS, END_STREAM, 1, big[:16_000]),
        frame(frames.CONTINUATION, END_HEADERS, 1, big[16_000:]),
    )
    assert client.calls[0].cancelled or client.end() or client.calls[0].is_half_closed


async def test_remembered_heads_are_small() -> None:
    """A connection keeps at most some 256 KiB of the blocks that it has read."""
    client = FakeClient()
    padding = encoded((("padding", "x" * 10_000),))
    tracemalloc.start()
    try:
        for number in range(60):
            block = padding + BLOCK + literal("n", str(number), b"\x00")
            client.send(call(2 * number + 1, block, END_HEADERS | END_STREAM))
            client.calls[-1].end()
            client.calls.clear()
            client.taken()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 256 * 1024


# ---- memory ----


@pytest.mark.parametrize("kind", ["unknown method", "refused", "malformed", "data of no call"])
async def test_a_client_that_does_not_read_cannot_fill_memory(kind: str) -> None:
    """Each of these frames has an answer."""
    client = FakeClient(limits=ServerLimits(streams=0 if kind == "refused" else 100))
    block = {"unknown method": OTHER, "malformed": literal("Upper", "x", b"\x00")}.get(kind, BLOCK)
    client.server.pause_writing()
    stream = 1
    for _ in range(1_500):
        sent = b""
        for _ in range(200):
            sent += call(stream, block, END_HEADERS | END_STREAM)
            stream += 2
        if kind == "data of no call":
            sent = frame(frames.DATA, PADDED, 1, bytes(200_000)[:16_000])
            if stream == 401:
                client.send(call(1))
                client.send(frames.reset(1, frames.CANCEL))
        client.send(sent)
        client.server._flush()
        if client.end() or not client.transport.reads:
            break
    assert client.transport.unread < 2 * MAX_UNSENT_BYTES


async def test_a_message_in_tiny_parts_takes_little_more_memory() -> None:
    client = FakeClient()
    client.send(call(1), frame(frames.DATA, 0, 1, PREFIX.pack(0, 1_000_000)))
    client.taken()
    part = frame(frames.DATA, 0, 1, b"ab")
    tracemalloc.start()
    try:
        for _ in range(30):
            client.send(part * 500)
        client.taken()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 4 * 30_000


# ---- work ----


async def test_resets_that_a_client_provokes_count_as_its_own() -> None:
    """MadeYouReset (CVE-2025-8671): each call begins, and an invalid frame makes it end."""
    client = FakeClient()
    for number in range(MAX_RESETS + 1_000):
        stream = 2 * number + 1
        client.send(call(stream), frames.window_update(stream, 0))
        if client.end():
            break
        client.calls.clear()
        client.taken()
    assert client.end()


async def test_settings_do_not_cost_the_time_of_all_streams_again_and_again() -> None:
    """18 KiB of settings would take minutes of a server with 10,000 calls."""
    client = FakeClient()
    for number in range(10_000):
        client.send(call(2 * number + 1))
    client.taken()
    flood = b"".join(
        frames.settings((frames.INITIAL_WINDOW_SIZE, 60_000 + number % 2)) for number in range(400)
    )
    began = time.process_time()
    client.send(flood)
    assert client.end() or time.process_time() - began < 0.3


async def test_a_large_padded_frame_that_drips_is_not_copied_again_and_again() -> None:
    client = FakeClient()
    client.send(call(1))
    whole = frame(frames.DATA, PADDED, 1, b"\0" + bytes(60_000))
    began = time.process_time()
    for at in range(0, len(whole), 4):
        client.send(whole[at : at + 4])
    assert time.process_time() - began < 0.6


# ---- the end ----


async def test_a_client_that_does_not_answer_the_ping_of_a_drain_begins_no_more_calls() -> None:
    """Its certificate may have expired: a connection must not outlive its age by silence."""
    client = FakeClient()
    client.server.drain()
    client.taken()
    for number in range(30):
        client.now_s += 10
        client.send(call(2 * number + 1, BLOCK, END_HEADERS | END_STREAM))
        client.server.check(client.now_s)
        if client.calls:
            client.calls[-1].end()
        client.taken()
    assert not client.server.accepts


@pytest.mark.parametrize(
    "sent",
    [
        frame(frames.PING, 0, 1, bytes(8)),
        frame(frames.GOAWAY, 0, 1, bytes(8)),
        frame(frames.SETTINGS, frames.ACK, 0, b"123456"),
    ],
)
async def test_a_frame_of_the_connection_with_a_stream_or_a_wrong_size_is_a_violation(
    sent: bytes,
) -> None:
    client = FakeClient()
    client.send(sent)
    assert client.end()


async def test_data_after_the_end_of_a_request_counts_in_the_window_of_the_connection() -> None:
    """Calls that were answered early, whose clients go on: the window of the connection holds."""
    client = FakeClient()
    client.send(call(1))
    client.calls[0].end()
    client.taken()
    for _ in range(1_100):
        client.send(frame(frames.DATA, 0, 1, bytes(16_000)))
    assert any(each.kind == frames.WINDOW_UPDATE for each in client.taken())
    assert not client.end()
