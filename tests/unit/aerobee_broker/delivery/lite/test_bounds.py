"""What one answer of lite topics holds: it is bounded in bytes, and passes nothing over."""

from __future__ import annotations

from support.broker.harness import Begin
from support.lite.broker_client import (
    ADD,
    LEAVE,
    LiteConsumer,
    bind,
    bodies,
    make_parent,
    send_lite,
)


async def test_a_message_that_does_not_fit_into_an_answer_comes_with_the_next(begin: Begin) -> None:
    """Messages of other lite topics lie between; the answer is bounded in bytes."""
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    consumer = LiteConsumer(harness)
    await consumer.sync(ADD, "a")
    large = [b"%d" % number * 3_000 for number in range(4)]
    for body in large:
        await send_lite(harness, "a", body)
        await send_lite(harness, "b", b"b")
    await send_lite(harness, "a", b"last")
    found: list[bytes] = []
    while got := await consumer.pop(max_bytes=5_000):
        found += bodies(got)
        assert not any(await consumer.ack(got))
    assert found == [*large, b"last"]


async def test_of_a_client_that_waits_for_nothing_it_subscribed_to_nothing_is_kept(
    begin: Begin,
) -> None:
    """Such as one whose subscription ended before its last receive came."""
    harness = await begin()
    await make_parent(harness)
    await bind(harness)
    for number in range(10):
        gone = LiteConsumer(harness, f"gone-{number}")
        await gone.sync(ADD, "a")
        await gone.sync(LEAVE)
        assert await gone.pop(poll_ms=1_000) == []
    assert not harness.broker.lite.dispatch.ready._queues
