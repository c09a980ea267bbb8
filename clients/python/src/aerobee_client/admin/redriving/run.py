"""Run a redrive: read dead letters, and send them again in windows.

The dead letters stay in the dead-letter topic. Up to WINDOWS windows are in flight at once, and the
next one is read and prepared in the meantime. With a journal, the announcement of a window is on
the disk before its first message leaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT, Journal
from aerobee_client.admin.redriving.listed import Missing
from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.outcome import Outcome, Status, Tally
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.sends import (
    OpenedLetter,
    Redriven,
    Send,
    check_all,
    send_run,
    split,
    wait_for,
)
from aerobee_client.errors import MqError
from aerobee_client.message import ReceivedMessage
from aerobee_client.runtime.clock import Clock
from aerobee_wire.status import Code
from aerobee_wire.topics import retry_topic

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import ClientDescription
    from aerobee_client.producer import AsyncProducer
    from aerobee_client.send_result import SendResult

# Windows in flight: one that the broker stores, one whose request or answer is in transit, and one
# that waits for the journal to be on the disk. With two, one side waits for the other.
WINDOWS = 3
MAX_WINDOW = MAX_IN_FLIGHT // WINDOWS
# Bytes of bodies in a window. All windows together are below the default limit of a producer.
WINDOW_BYTES = 8 * 1024 * 1024
# With a rate, the windows in flight hold the sends of this time.
IN_FLIGHT_S = 0.25
# Dead letters that are prepared in one turn of the loop. Between two turns, windows leave and
# answers arrive.
SLICE = 64
# After this number of consecutive failed sends the redrive ends: the cause is not a message.
MAX_FAILED_IN_A_ROW = 1_024
Interruption = MqError | OSError | asyncio.CancelledError


def reads_retries(clients: Sequence[ClientDescription], consumer_group: str) -> bool:
    """Return whether one of a group's connected clients subscribes to its retry topic.

    True if no client is connected.
    """
    topic = retry_topic(consumer_group)
    return not clients or any(topic in client.subscriptions for client in clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a redrive.

    `rate`: maximum sends per second; None for no limit. `limit`: maximum number of sends; 0 for
    all. `dry_run`: check each message as a send does, without sending it.
    """

    consumer_group: str
    target: Target
    rate: float | None = None
    limit: int = 0
    dry_run: bool = False

    @property
    def window(self) -> int:
        """The maximum number of messages of a window."""
        if self.rate is None:
            return MAX_WINDOW
        return max(1, min(MAX_WINDOW, int(self.rate * IN_FLIGHT_S / WINDOWS)))


@dataclass(slots=True)
class _Window:
    """Dead letters in the order in which they were read, and those of them to send."""

    entries: list[Outcome | Send] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    body_bytes: int = 0
    last: ReceivedMessage | None = None

    def fill(
        self, letters: Iterator[tuple[ReceivedMessage | Missing, Outcome | Send]], most_sends: int
    ) -> bool:
        """Add dead letters while there is room. Return whether the window is full."""
        entries, sends = self.entries, self.sends
        for letter, entry in letters:
            entries.append(entry)
            if isinstance(entry, Send):
                sends.append(entry)
                self.body_bytes += entry.message.size
            if not isinstance(letter, Missing):
                self.last = letter
            if (
                len(sends) >= most_sends
                or self.body_bytes >= WINDOW_BYTES
                or len(entries) >= MAX_WINDOW
            ):
                return True
        return False

    def outcomes(self) -> list[Outcome]:
        """Return the known outcomes, in the order of the dead letters."""
        found = [entry.result if isinstance(entry, Send) else entry for entry in self.entries]
        return [outcome for outcome in found if outcome is not None]


@dataclass(slots=True)
class _Flight:
    """A window whose messages are in flight.

    `leaving` announces the messages and starts their sends. `sends` are the messages that are sent
    alone, and `futures` belong to the first of them. The others were not sent, because the redrive
    was cancelled or the journal could not be written.
    """

    window: _Window
    sends: Sequence[Send]
    leaving: asyncio.Task[None] | None = None
    runs: Sequence[asyncio.Task[None]] = ()
    futures: list[asyncio.Future[SendResult]] = field(default_factory=list)

    async def left(self) -> OSError | None:
        """Wait until all its sends have started, or until it is certain that they will not start.

        Returns the error of the journal, if any. A cancellation does not cancel the sends.
        """
        if self.leaving is None:
            return None
        await wait_for((self.leaving,))
        with suppress(asyncio.CancelledError):  # raised by `stop`
            try:
                self.leaving.result()
            except OSError as error:
                return error
        return None

    async def land(self) -> OSError | None:
        """Wait until all its sends have ended. Returns like `left`.

        A cancellation does not cancel the sends.
        """
        error = await self.left()
        await wait_for((*self.runs, *self.futures))
        return error

    def stop(self) -> None:
        """Start no more sends."""
        if self.leaving is not None:
            self.leaving.cancel()


class Pace:
    """Spaces events so that there are at most `rate` per second."""

    def __init__(self, rate: float | None, now_s: float) -> None:
        self._interval_s = 1 / rate if rate else 0.0
        self._due_s = now_s

    def next_wait(self, now_s: float) -> float:
        """Return the seconds to wait before the next event."""
        due_s = max(self._due_s, now_s)
        self._due_s = due_s + self._interval_s
        return due_s - now_s


class Redrive:
    """One run of a redrive.

    `ids` are the messages that this run or, according to the `journal`, earlier runs have sent. A
    dry run does not write a journal. `tally` counts the outcomes so far. `last` is the last dead
    letter before which all have an outcome.
    """

    def __init__(
        self,
        settings: Settings,
        producer: AsyncProducer,
        *,
        clock: Clock,
        ids: MessageIds,
        journal: Journal | None = None,
    ) -> None:
        self._settings = settings
        self._producer = producer
        self._clock = clock
        self._ids = ids
        self._journal = None if settings.dry_run else journal
        self._pace = Pace(settings.rate, self._now_s())
        self._window_sends = settings.window
        self._flights = deque[_Flight]()  # in flight, and not landed yet
        self._to_send = 0  # dead letters that were taken for sending so far
        self._failed_in_a_row = 0
        self.tally = Tally()
        self.last: ReceivedMessage | None = None

    async def run(
        self, pages: AsyncIterator[Sequence[ReceivedMessage | Missing]]
    ) -> AsyncGenerator[list[Outcome]]:
        """Send the dead letters of `pages`. Each message id is sent once, even if several have it.

        It yields the outcomes of each window, in the order of the dead letters. When it is
        cancelled, reading or the journal fails, or MAX_FAILED_IN_A_ROW sends fail, it first yields
        the outcomes of all sent messages. Then it raises the error.
        """
        flights = self._flights
        interruption: Interruption | None = None
        try:
            async with aclosing(self._windows(pages)) as windows:
                async for window in windows:
                    interruption = await self._launch(window)
                    if interruption is None and len(flights) == WINDOWS:
                        outcomes, interruption = await self._land(flights.popleft())
                        yield outcomes
                    if interruption is not None:
                        break
        except (MqError, OSError, asyncio.CancelledError) as error:
            interruption = error
        while flights:
            if isinstance(interruption, asyncio.CancelledError | OSError):
                for flight in flights:
                    flight.stop()
            outcomes, failed = await self._land(flights.popleft(), patient=interruption is None)
            interruption = interruption or failed
            if outcomes:
                yield outcomes
        if interruption is not None:
            raise interruption

    async def _windows(
        self, pages: AsyncIterator[Sequence[ReceivedMessage | Missing]]
    ) -> AsyncGenerator[_Window]:
        """Yield windows. If reading fails, the dead letters before that form a window too."""
        window = _Window()
        try:
            async with aclosing(self._slices(pages)) as slices:
                async for letters in slices:
                    entries = zip(letters, self._entries(letters), strict=True)
                    while window.fill(entries, self._window_sends):
                        yield window
                        window = _Window()
        except MqError:
            if window.entries:
                yield window
            raise
        if window.entries:
            yield window

    async def _slices(
        self, pages: AsyncIterator[Sequence[ReceivedMessage | Missing]]
    ) -> AsyncGenerator[Sequence[ReceivedMessage | Missing]]:
        """Yield the dead letters to prepare in one turn of the loop, up to the limit."""
        limit = self._settings.limit
        async for page in pages:
            start = 0
            while start < len(page):
                most = min(SLICE, limit - self._to_send) if limit else SLICE
                yield page[start : start + most]
                start += most
                if limit and self._to_send >= limit:
                    return
                await asyncio.sleep(0)

    def _entries(self, letters: Sequence[ReceivedMessage | Missing]) -> list[Outcome | Send]:
        """Return the outcome or the message to send for each dead letter."""
        opened = [each if isinstance(each, Missing) else OpenedLetter(each) for each in letters]
        ids = [
            (each.message_id, each.offset_message_id)
            for each in opened
            if not isinstance(each, Missing)
        ]
        claims, now_ms = iter(self._ids.claim(ids)), self._clock.now_ms()
        return [
            Outcome(*each[:2], "", "", Status.MISSING, each.why)
            if isinstance(each, Missing)
            else self._entry(each, next(claims), now_ms)
            for each in opened
        ]

    def _entry(self, opened: OpenedLetter, claim: Claim, now_ms: int) -> Outcome | Send:
        who = (opened.message_id, opened.offset_message_id, opened.tag)
        if claim is Claim.SENT:
            return Outcome(*who, "", Status.SENT_BEFORE)
        if claim is Claim.TAKEN:
            why = "an earlier dead letter has the same message id"
            return Outcome(*who, "", Status.SKIPPED, why)
        self._to_send += 1
        settings = self._settings
        try:
            message = Redriven(opened, settings.consumer_group, settings.target, now_ms)
        except MqError as error:
            return Outcome(*who, "", Status.FAILED, str(error))
        return Send(*who, message, perhaps_twice=claim is Claim.UNKNOWN)

    async def _launch(self, window: _Window) -> Interruption | None:
        """Send a window, which becomes the last flight.

        Returns what interrupted the redrive, if anything. If the redrive was cancelled or the
        journal cannot be written, the window does not become a flight.
        """
        sends, flights = window.sends, self._flights
        flight = _Flight(window, sends)
        if self._settings.dry_run:
            await check_all(self._producer, sends)
        elif sends:
            try:
                # Announcements reach the disk in the order of the windows.
                error: OSError | asyncio.CancelledError | None = None
                if flights:
                    error = await flights[-1].left()
                if error is None and self._journal is not None:
                    ids = [(send.message_id, send.offset_message_id) for send in sends]
                    self._journal.sending(ids)
            except (OSError, asyncio.CancelledError) as failure:
                error = failure
            if error is not None:
                return error
            flight.leaving = asyncio.create_task(self._leave(flight))
        flights.append(flight)
        return None

    async def _leave(self, flight: _Flight) -> None:
        """Start the sends of a flight once they are in the journal.

        Raises OSError; then nothing was sent.
        """
        if self._journal is not None:
            await asyncio.to_thread(self._journal.sync)
        if self._settings.rate is None:
            runs, flight.sends = split(flight.sends)
            flight.runs = [asyncio.create_task(send_run(self._producer, run)) for run in runs]
        for send in flight.sends:
            wait_s = self._pace.next_wait(self._now_s())
            if wait_s:
                await asyncio.sleep(wait_s)
            flight.futures.append(self._producer.send_async(send.message))

    async def _land(
        self, flight: _Flight, *, patient: bool = True
    ) -> tuple[list[Outcome], Interruption | None]:
        """Wait for the answers of a flight. Each send has its own timeout.

        Returns its outcomes, and what interrupted the redrive, if anything. If `patient`, it
        continues to wait after the first cancellation. After the second one, sends without an
        answer have no outcome.
        """
        interruption: Interruption | None = None
        while True:
            try:
                failed = await flight.land()
                interruption = interruption or failed
                break
            except asyncio.CancelledError as error:
                if not patient:
                    break
                interruption, patient = error, False
                for each in (flight, *self._flights):
                    each.stop()
        for send, future in zip(flight.sends, flight.futures, strict=False):
            if future.done():
                send.answered(future)
        for run in flight.runs:
            if run.done():
                run.result()  # raises what is not an MqError
        outcomes = flight.window.outcomes()
        not_sent = () if self._settings.dry_run else flight.sends[len(flight.futures) :]
        results = [send.result for send in flight.window.sends if send.result is not None]
        results += [send.outcome(Status.FAILED) for send in not_sent]
        interruption = self._finish(results) or interruption
        self.tally.add(outcomes)
        if len(outcomes) == len(flight.window.entries):
            self.last = flight.window.last or self.last
        return outcomes, interruption or self._given_up(outcomes)

    def _finish(self, outcomes: Sequence[Outcome]) -> OSError | None:
        """Write the outcomes of a window into the journal.

        Unsent messages are written as failed, so that they do not count as in flight.
        """
        if self._journal is None:
            return None
        try:
            self._journal.finished(outcomes)
        except OSError as error:
            return error
        return None

    def _given_up(self, outcomes: Sequence[Outcome]) -> MqError | None:
        last = None
        for outcome in outcomes:
            if outcome.status is Status.FAILED:
                self._failed_in_a_row += 1
                last = outcome
            elif outcome.status is Status.SENT:
                self._failed_in_a_row = 0
        if last is None or self._failed_in_a_row < MAX_FAILED_IN_A_ROW:
            return None
        return MqError(
            Code.SYSTEM_ERROR,
            f"{self._failed_in_a_row:,} sends in a row failed, and no more were tried; the last "
            f"one: {last.error}",
        )

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000
