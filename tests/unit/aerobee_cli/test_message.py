"""Test `aerobee message`: receive, search and send."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

import click
import pytest

from aerobee_cli.commands import message
from aerobee_cli.commands.message import begin_of
from aerobee_cli.errors import INCOMPLETE
from aerobee_cli.message_lines import text_of
from aerobee_cli.options import BadOption, NamesrvOptions
from aerobee_cli.progress import Progress
from aerobee_cli.receiving import Received, Request, receive_all
from aerobee_cli.sending import ManySends
from aerobee_client import Message, ReceivedMessage, SendResult
from aerobee_client.admin.descriptions import SearchResult
from aerobee_wire.status import Code, MqError

# ---- test receiving ----
#
# `aerobee message consume`: when it ends, what it settles, and how a message is shown.


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


# ---- test searching ----
#
# `aerobee message tail`: it names brokers that stop answering, and exits with their code.


NOTHING = SearchResult((), {}, (), (), scanned=0, unreadable=0, silent={})
LOST = MqError(Code.BROKER_UNREACHABLE, "broker-b is unreachable")


@dataclass
class Admin:
    """An admin client whose user presses Ctrl-C before a message arrives."""

    found: SearchResult = NOTHING
    lost: list[MqError] = field(default_factory=list)  # while the topic is followed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def search_messages(self, *_: Any, **__: Any) -> SearchResult:
        return self.found

    def follow_messages(
        self, topic: str, *, on_error: Callable[[MqError], object], **_: Any
    ) -> Iterator[ReceivedMessage]:
        for error in self.lost:
            on_error(error)
        yield from ()
        raise KeyboardInterrupt


def exit_code_of_tail(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: admin)
    try:
        options = NamesrvOptions(context=click.Context(click.Command("tail")))
        message.tail(topic="orders", limit=1, options=options)
    except click.exceptions.Exit as end:
        return end.exit_code
    return 0


def test_ctrl_c_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert exit_code_of_tail(Admin(), monkeypatch) == 0


def test_a_broker_that_stops_answering_is_named_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of_tail(Admin(lost=[LOST]), monkeypatch) == INCOMPLETE
    assert capsys.readouterr().err.count(LOST.message) == 1


def test_a_broker_that_did_not_answer_the_search_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = replace(NOTHING, silent={"broker-b": LOST})
    assert exit_code_of_tail(Admin(found), monkeypatch) == INCOMPLETE
    assert capsys.readouterr().err.count(LOST.message) == 1


# ---- test sending ----
#
# `aerobee message send --count`: what is counted, how fast it sends, and how it is interrupted.


MESSAGE = Message("orders", b"x")


class Sender:
    """Answers at once; sends whose number is in `failing` fail, and one raises an interrupt."""

    def __init__(self, failing: dict[int, Exception] | None = None, interrupt: int = -1) -> None:
        self.sent = 0
        self._failing = failing or {}
        self._interrupt = interrupt

    def send_async(self, message: Message) -> Future[SendResult]:
        if self.sent == self._interrupt:
            raise KeyboardInterrupt
        answer: Future[Any] = Future()
        if self.sent in self._failing:
            answer.set_exception(self._failing[self.sent])
        else:
            answer.set_result(None)
        self.sent += 1
        return answer


def run_send(sender: Sender, count: int, rate: float | None = None) -> tuple[Any, list[float]]:
    now_s, sleeps = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        now_s[0] += seconds

    sends = ManySends(sender, MESSAGE, count=count, rate=rate, now_s=lambda: now_s[0], sleep=sleep)
    return sends.run(Progress(io.StringIO(), lambda: now_s[0])), sleeps


def test_every_send_is_counted() -> None:
    done, sleeps = run_send(Sender(), 2_500)
    assert (done.sent, done.failed, sleeps) == (2_500, 0, [])


def test_a_rate_spreads_the_sends() -> None:
    done, sleeps = run_send(Sender(), 5, rate=10)
    assert sleeps == pytest.approx([0.1] * 4) and done.seconds == pytest.approx(0.4)


def test_failures_are_counted_and_the_first_is_kept() -> None:
    first = MqError(Code.SYSTEM_BUSY, "busy")
    done, _ = run_send(Sender({1: first, 2: MqError(Code.NO_PERMISSION, "no")}), 5)
    assert (done.sent, done.failed, done.error) == (3, 2, first)


def test_a_defect_is_not_counted_as_a_failure() -> None:
    with pytest.raises(ZeroDivisionError):
        run_send(Sender({0: ZeroDivisionError()}), 2)


def test_an_interrupt_ends_the_sends_and_counts_those_before() -> None:
    done, _ = run_send(Sender(interrupt=3), 10)
    assert (done.sent, done.is_interrupted) == (3, True)
