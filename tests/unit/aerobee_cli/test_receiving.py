"""`aerobee message consume`: when it ends, what it settles, and how a message is shown."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from aerobee_cli.commands.message import begin_of
from aerobee_cli.message_lines import text_of
from aerobee_cli.options import BadOption
from aerobee_cli.receiving import Received, Request, receive_all
from aerobee_client import ReceivedMessage

REQUEST = Request(namesrv="", topic="orders")
ITEM: dict[str, Any] = {
    "message_id": "C0000202667E26BE0FE98E729CAA0001",
    "broker_name": "broker-a",
    "queue_id": 3,
    "queue_offset": 12,
    "store_timestamp_ms": 1_764_345_289_155,
    "tag": "",
    "keys": [],
}


class Numbers:
    """A source of numbers. A receive without any takes its whole wait."""

    def __init__(self, available: int, stop_after: int | None = None) -> None:
        self.now_s = 0.0
        self.settled: list[object] = []
        self.stopping = asyncio.Event()
        self._left = list(range(available))
        self._stop_after = stop_after

    async def receive(self, max_messages: int, wait_s: float) -> Sequence[ReceivedMessage]:
        taken, self._left = self._left[:max_messages], self._left[max_messages:]
        self.now_s += 0.0 if taken else wait_s
        return cast("list[ReceivedMessage]", taken)

    async def settle(self, messages: Sequence[ReceivedMessage]) -> None:
        self.settled += messages
        if self._stop_after is not None and len(self.settled) >= self._stop_after:
            self.stopping.set()


async def run(source: Numbers, request: Request) -> tuple[Received, list[object]]:
    shown: list[object] = []
    done = await receive_all(
        source, request, shown.append, source.stopping, now_s=lambda: source.now_s
    )
    return done, shown


async def test_it_ends_after_count_messages_and_takes_no_further_one() -> None:
    source = Numbers(100)
    done, shown = await run(source, replace(REQUEST, count=40))
    assert (done.messages, done.is_short) == (40, False)
    assert shown == source.settled == list(range(40))


async def test_a_timeout_before_the_count_is_short() -> None:
    done, shown = await run(Numbers(2), replace(REQUEST, count=3, timeout_s=1.2))
    assert (done.messages, done.seconds, done.is_short) == (2, 1.2, True) and len(shown) == 2


async def test_a_timeout_without_a_count_is_an_end() -> None:
    done, _ = await run(Numbers(2), replace(REQUEST, timeout_s=1.0))
    assert (done.messages, done.is_short) == (2, False)


async def test_a_stop_settles_what_was_shown() -> None:
    source = Numbers(100, stop_after=32)
    done, shown = await run(source, REQUEST)
    assert done.messages == len(shown) == len(source.settled) == 32 and not done.is_short


def test_a_message_is_one_line() -> None:
    shown = text_of({**ITEM, "tag": "paid", "keys": ["a", "b"], "body": "two\nlines\x1b[2J"})
    assert shown == (
        "2025-11-28T15:54:49Z  C0000202667E26BE0FE98E729CAA0001  broker-a/3@12  tag=paid  "
        "keys=a,b  two\\nlines\\x1b[2J"
    )


def test_a_body_that_is_not_text_is_shown_in_hex() -> None:
    for body, text in (
        (b"\xff\x00\x1b", "(3 bytes, not text) ff001b"),
        (b"\xff" * 1_000, f"(1,000 bytes, not text) {' '.join(['ffffffff'] * 8)} …"),
    ):
        item = {**ITEM, "body_base64": base64.b64encode(body).decode()}
        assert text_of(item).endswith(f"  {text}")


def test_a_long_body_is_cut_only_for_people() -> None:
    item = {**ITEM, "body": "x" * 5_000}
    assert text_of(item).endswith("x" * 5_000)
    assert text_of(item, 10).endswith("  xxxxxxxxxx… (5,000 characters)")


def test_the_first_message_is_earliest_latest_or_of_a_time() -> None:
    assert begin_of("latest") is None
    assert begin_of("earliest") == 0
    assert begin_of("2025-06-01T00:00:00Z") == 1_748_736_000_000
    with pytest.raises(BadOption, match="--from"):
        begin_of("soon")
