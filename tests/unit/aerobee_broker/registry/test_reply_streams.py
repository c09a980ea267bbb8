"""Replies on their way to the clients that wait for them."""

from __future__ import annotations

import asyncio

import pytest

from aerobee_broker.registry import reply_streams
from aerobee_broker.registry.reply_streams import RETURN_MS, Reply, ReplyStreams
from aerobee_wire.status import Code, MqError
from support.clock.manual_clock import ManualClock
from support.codes import raises_code

REPLY = Reply("1", b"x")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def streams(clock: ManualClock) -> ReplyStreams:
    return ReplyStreams(clock, max_body_size=100)


async def drop(reply: Reply) -> None:
    """Of a client whose replies are of no interest here."""


async def refusal(streams: ReplyStreams, client_id: str = "c") -> tuple[Code, bool]:
    """Code, and whether it is worth another try."""
    with pytest.raises(MqError) as caught:
        await streams.pass_on(client_id, REPLY)
    return caught.value.code, caught.value.retryable


async def test_a_reply_goes_along_the_newest_stream(streams: ReplyStreams) -> None:
    old: list[Reply] = []
    new: list[Reply] = []

    def into(place: list[Reply]) -> reply_streams.Write:
        async def write(reply: Reply) -> None:
            place.append(reply)

        return write

    first = streams.open("c", into(old))
    streams.open("c", into(new))
    streams.close(first)  # its end is noticed late
    await streams.pass_on("c", REPLY)
    assert (old, new) == ([], [REPLY])


async def test_who_may_come_back_is_waited_for(clock: ManualClock, streams: ReplyStreams) -> None:
    gone, back = (Code.CONSUMER_NOT_ONLINE, False), (Code.CONSUMER_NOT_ONLINE, True)
    assert await refusal(streams) == back, "the broker has just started"
    clock.advance(RETURN_MS)
    assert await refusal(streams) == gone
    for client_id in ("c", "left"):
        streams.close(streams.open(client_id, drop))
    streams.client_left("left")
    assert await refusal(streams) == back
    assert await refusal(streams, "left") == gone
    clock.advance(RETURN_MS)
    assert await refusal(streams) == gone


async def test_a_stream_that_ends_meanwhile(streams: ReplyStreams) -> None:
    async def write(reply: Reply) -> None:
        raise asyncio.CancelledError  # as the transport does when its caller has gone

    streams.open("c", write)
    assert await refusal(streams) == (Code.CONSUMER_NOT_ONLINE, True)


async def test_a_client_that_does_not_read(
    streams: ReplyStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_streams, "MAX_WAITING", 2)
    reads = asyncio.Event()

    async def write(reply: Reply) -> None:
        await reads.wait()

    streams.open("c", write)
    waiting = [asyncio.create_task(streams.pass_on("c", REPLY)) for _ in range(3)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()  # its replier has gone
    with raises_code(Code.FLOW_CONTROL):
        await waiting[2]
    reads.set()
    outcomes = await asyncio.gather(*waiting[:2], return_exceptions=True)
    assert isinstance(outcomes[0], asyncio.CancelledError) and outcomes[1] is None
    await streams.pass_on("c", REPLY)


async def test_a_reply_over_the_limit(streams: ReplyStreams) -> None:
    with raises_code(Code.MESSAGE_ILLEGAL):
        await streams.pass_on("c", Reply("1", bytes(101)))
