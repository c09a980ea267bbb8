"""Run a redrive: read dead letters, and send them again in windows.

The dead letters stay in the dead-letter topic. Up to WINDOWS windows are in flight at once. In the
meantime, the next window is read and prepared. With a journal, a window is announced on the disk
before its first message is sent.
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

# The maximum number of windows in flight. The broker stores the first one, the request or answer of
# the second one is in transit, and the third one waits for the disk of the journal. With two
# windows, the broker or the client would wait.
WINDOWS = 3
MAX_WINDOW = MAX_IN_FLIGHT // WINDOWS
# The bytes of bodies in a window. All windows together are below a producer's default limit.
WINDOW_BYTES = 8 * 1024 * 1024
# With a rate, the windows in flight hold the sends of this many seconds.
IN_FLIGHT_S = 0.25
# The number of dead letters that are prepared in one iteration of the event loop. Between two
# iterations, windows are sent and answers arrive.
SLICE = 64
# After this number of consecutive failed sends the redrive ends, because no message is the cause.
MAX_FAILED_IN_A_ROW = 1_024
Interruption = MqError | OSError | asyncio.CancelledError


def reads_retries(clients: Sequence[ClientDescription], consumer_group: str) -> bool:
    """Return whether a connected client of a group subscribes to the group's retry topic.

    Return True if no client is connected.
    """
    topic = retry_topic(consumer_group)
    return not clients or any(topic in client.subscriptions for client in clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a redrive.

    `rate` is the maximum number of sends per second; None for no limit. `limit` is the maximum
    number of sends; 0 for all. With `dry_run`, each message is checked like a send, but not sent.
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
    """Dead letters that are sent together.

    `entries` has one entry for each dead letter, in the order of the read. `sends` are the entries
    that are to be sent.
    """

    entries: list[Outcome | Send] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    body_bytes: int = 0
    last: ReceivedMessage | None = None

    def fill(
        self, letters: Iterator[tuple[ReceivedMessage | Missing, Outcome | Send]], most_sends: int
    ) -> bool:
        """Add dead letters while the window is not full. Return whether it is full."""
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
    one by one, and `futures` belong to the first of them. If the redrive was cancelled or the
    journal could not be written, `sends` is longer than `futures`: the remaining messages were not
    sent.
    """

    window: _Window
    sends: Sequence[Send]
    leaving: asyncio.Task[None] | None = None
    runs: Sequence[asyncio.Task[None]] = ()
    futures: list[asyncio.Future[SendResult]] = field(default_factory=list)

    async def left(self) -> OSError | None:
        """Wait until all sends have started, or until it is certain that they will not start.

        Return the error of the journal, if any. A cancellation does not cancel the sends.
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
        """Wait until all sends have ended. Return the error of the journal, if any.

        A cancellation does not cancel the sends.
        """
        error = await self.left()
        await wait_for((*self.runs, *self.futures))
        return error

    def stop(self) -> None:
        """Prevent sends that have not started yet."""
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
    letter of the windows that are complete.
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
        self._flights = deque[_Flight]()  # in flight, oldest first
        self._to_send = 0  # dead letters that were taken for sending so far
        self._failed_in_a_row = 0
        self.tally = Tally()
        self.last: ReceivedMessage | None = None

    async def run(
        self, pages: AsyncIterator[Sequence[ReceivedMessage | Missing]]
    ) -> AsyncGenerator[list[Outcome]]:
        """Send the dead letters of `pages`. Each message id is sent once, even if several have it.

        Yield the outcomes of each window, in the order of the dead letters. The run ends early if
        it is cancelled, if reading or the journal fails, or if MAX_FAILED_IN_A_ROW sends fail. It
        then yields the outcomes of all sent messages, and raises the error.
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

    @property
    def limit_is_reached(self) -> bool:
        """Return whether the limit of the settings ends the redrive."""
        return 0 < self._settings.limit <= self._to_send

    async def _windows(
        self, pages: AsyncIterator[Sequence[ReceivedMessage | Missing]]
    ) -> AsyncGenerator[_Window]:
        """Yield windows. If reading fails, first yield the dead letters that were read before."""
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
        """Yield the dead letters to prepare in one iteration of the event loop, up to the limit."""
        limit = self._settings.limit
        async for page in pages:
            start = 0
            while start < len(page):
                most = min(SLICE, limit - self._to_send) if limit else SLICE
                yield page[start : start + most]
                start += most
                if self.limit_is_reached:
                    return
                await asyncio.sleep(0)

    def _entries(self, letters: Sequence[ReceivedMessage | Missing]) -> list[Outcome | Send]:
        """Return for each dead letter the message to send, or the outcome if it is not sent."""
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
        """Start to send a window, and add it to the windows in flight.

        Return the error or cancellation that interrupted the redrive, if any. If the redrive was
        cancelled or the journal cannot be written, the window is not added.
        """
        sends, flights = window.sends, self._flights
        flight = _Flight(window, sends)
        if self._settings.dry_run:
            await check_all(self._producer, sends)
        elif sends:
            try:
                # Announcements must reach the disk in the order of the windows.
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
        """Start the sends of a window after they are announced in the journal on the disk.

        If it raises OSError, no message was sent.
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
        """Wait for the answers of a window in flight. Each send has its own timeout.

        Return its outcomes, and the error or cancellation that interrupted the redrive, if any. If
        `patient`, continue to wait after the first cancellation. After the second one, sends
        without an answer have no outcome.
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
                run.result()  # raises errors that are not an MqError
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
        """Write the outcomes of a window into the journal. Return the error if that fails.

        Unsent messages are in `outcomes` as failed, so that they do not count as in flight.
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
            elif outcome.status is Status.SENT or outcome.status is Status.WOULD_SEND:
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
