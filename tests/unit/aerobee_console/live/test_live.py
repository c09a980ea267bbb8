"""Live pages: one stream of each broker, and one read of a page, for all visitors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any

import pytest

from aerobee_console.web.live import READ_AGAIN_S
from support.console.visitor import Visitor


def opened(visitor: Visitor, address: str) -> AsyncGenerator[bytes, None]:
    async def render(address: str) -> bytes:
        return (await visitor.get(address)).body

    return visitor.console.live.events(address, render)


async def event(events: AsyncGenerator[bytes, None], name: str) -> Any:
    """Return the data of the next event of this name."""
    async for each in events:
        head, _, data = each.decode().partition("\ndata: ")
        if head == f"event: {name}":
            return json.loads(data)
    raise AssertionError("the stream has ended")


def calls(visitor: Visitor, method: str) -> int:
    return visitor.transport.calls.count(("a", method))


async def test_a_page_is_sent_again_if_it_differs(visitor: Visitor) -> None:
    async with aclosing(opened(visitor, "/topics")) as events:
        assert "orders" in (await event(events, "page"))["content"]
        visitor.topic("invoices")
        assert "invoices" in (await event(events, "page"))["content"]
        before = calls(visitor, "ListTopics")
        await asyncio.sleep(2.5 * READ_AGAIN_S)
        assert calls(visitor, "ListTopics") == before + 2


async def test_ten_visitors_share_the_calls_and_the_stream_of_each_broker(
    visitor: Visitor,
) -> None:
    async with AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(aclosing(opened(visitor, "/topics"))) for _ in range(10)
        ]
        for each in streams:
            await event(each, "page")
        assert calls(visitor, "ListTopics") == 1 and calls(visitor, "WatchStats") == 1
    await asyncio.sleep(3 * READ_AGAIN_S)
    assert calls(visitor, "ListTopics") == 1 and calls(visitor, "WatchStats") == 1


async def test_a_page_that_nobody_looks_at_any_more_is_not_read(visitor: Visitor) -> None:
    first, second = opened(visitor, "/topics"), opened(visitor, "/topics")
    await event(first, "page")
    await event(second, "page")
    await first.aclose()
    visitor.topic("invoices")
    assert "invoices" in (await event(second, "page"))["content"]
    await second.aclose()
    before = len(visitor.transport.calls)
    await asyncio.sleep(3 * READ_AGAIN_S)
    assert len(visitor.transport.calls) == before


async def test_the_rates_of_the_topics_on_a_page_come_each_second(visitor: Visitor) -> None:
    async def sample() -> None:
        while True:
            await visitor.brokers["a"].send("orders", b"x", b"y")
            for broker in visitor.brokers.values():
                await broker.broker.sampler.sample()
            await asyncio.sleep(1)

    sampling = asyncio.create_task(sample())
    async with aclosing(opened(visitor, "/topics/orders")) as events:
        rates: dict[str, str] = {}
        for _ in range(100):
            rates = (await event(events, "rates"))["rates"]
            if rates:
                break
    sampling.cancel()
    assert rates["topic orders messages_in"] == "2.0"


async def test_a_page_without_an_answer_of_a_broker_says_so_and_recovers(visitor: Visitor) -> None:
    visitor.transport.away = {"b"}
    async with aclosing(opened(visitor, "/groups")) as events:
        assert "Not complete" in (await event(events, "page"))["content"]
        visitor.transport.away = set()
        assert "Not complete" not in (await event(events, "page"))["content"]


async def test_a_page_whose_read_fails_is_stale_until_it_is_read_again(
    visitor: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error neither ends the reads nor leaves old content in silence."""
    failing = True

    async def render(address: str) -> bytes:
        if failing:
            raise KeyError("odd data")
        return (await visitor.get(address)).body

    stream = visitor.console.live.events("/topics", render)
    async with asyncio.timeout(60), aclosing(stream) as events:
        await event(events, "stale")
        await asyncio.sleep(2 * READ_AGAIN_S)
        await event(events, "stale")
        assert caplog.text.count("the live page /topics cannot be read") == 1
        failing = False
        assert "orders" in (await event(events, "page"))["content"]
        assert "rates" in await event(events, "rates")
        failing = True
        await event(events, "stale")


async def test_rates_recover_after_an_unexpected_error(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = visitor.admin
    failures: list[Any] = []
    watch_stats = admin.watch_stats

    def fail_once(**names: Any) -> Any:
        if not failures:
            failures.append(names)
            raise ValueError("odd data")
        return watch_stats(**names)

    monkeypatch.setattr(admin, "watch_stats", fail_once)
    async with aclosing(opened(visitor, "/topics")) as events:
        await event(events, "page")
        await asyncio.sleep(READ_AGAIN_S)
    assert failures and calls(visitor, "WatchStats")


@pytest.mark.parametrize(
    ("page", "status"),
    [("/none", 404), ("/topics/a/change", 404), ("/static/console.js", 404), ("x" * 5_000, 400)],
)
async def test_only_pages_have_a_stream(page: str, status: int, visitor: Visitor) -> None:
    assert (await visitor.get(f"/live?page={page}")).status == status
