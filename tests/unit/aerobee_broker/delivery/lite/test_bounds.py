"""What one answer of lite topics holds: it is bounded in bytes, and passes nothing over."""

from __future__ import annotations

from support.broker.harness import Begin
from support.lite.broker_client import ADD, LiteConsumer, bind, bodies, make_parent, send_lite


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
