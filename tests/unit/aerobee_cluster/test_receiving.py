"""A repeated attempt to receive: which source has its messages."""

from __future__ import annotations

import asyncio

from aerobee_cluster.receiving import holder


async def test_the_source_that_knows_the_attempt_is_found() -> None:
    async def is_repeated(source: str) -> bool:
        return source in "bc"

    assert await holder("abc", is_repeated) == "b"
    assert await holder("ad", is_repeated) is None
    assert await holder("", is_repeated) is None


async def test_all_sources_are_asked_at_once() -> None:
    everyone = asyncio.Barrier(3)

    async def is_repeated(source: str) -> bool:
        await everyone.wait()
        return False

    assert await holder("abc", is_repeated) is None
