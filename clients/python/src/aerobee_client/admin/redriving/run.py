"""A redrive: dead letters are read, sent again in windows, and forgotten. The dead letters stay in
the dead-letter topic.

Up to WINDOWS of them are in flight at once, and the next is read and prepared while they travel.
With a journal, it is on the disk that a window is being sent before its first message leaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT, Journal
from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.missing import Missing
from aerobee_client.admin.redriving.outcome import Outcome, Status, Tally
from aerobee_client.admin.redriving.pace import Pace
from aerobee_client.admin.redriving.redriven import OpenedLetter, Redriven
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.sends import Send, check_all, send_run, split, wait_for
from aerobee_client.errors import MqError
from aerobee_client.message import ReceivedMessage
from aerobee_client.runtime.clock import Clock
from aerobee_wire.status import Code
from aerobee_wire.topics import retry_topic

if TYPE_CHECKING:  # slow to import, and only the caller needs them
    from aerobee_client.admin.descriptions import ClientDescription
    from aerobee_client.producer import AsyncProducer
    from aerobee_client.send_result import SendResult

# In flight at once: one that the broker stores, one whose request or answer is on its way, and one
# that waits for the disk to have it in the journal. With two, either side waits for the other.
WINDOWS = 3
MAX_WINDOW = MAX_IN_FLIGHT // WINDOWS
# Bodies of a window; all windows are less than a producer has under way at most.
WINDOW_BYTES = 8 * 1024 * 1024
# With a rate, the windows in flight hold what is sent in this time.
IN_FLIGHT_S = 0.25
# Dead letters that are prepared in one turn of the loop: between two turns windows leave, and their
# answers come.
SLICE = 64
# So many sends in a row that fail end the redrive: something else is wrong than a message.
MAX_FAILED_IN_A_ROW = 1_024
Interruption = MqError | OSError | asyncio.CancelledError


def reads_retries(clients: Sequence[ClientDescription], consumer_group: str) -> bool:
    """Whether one of the connected `clients` of a group subscribes to its retry topic; True when no
    client is connected."""
    topic = retry_topic(consumer_group)
    return not clients or any(topic in client.subscriptions for client in clients)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """`rate`: sends a second at most; None: as fast as possible. `limit`: sends at most; 0: all.
    `dry_run`: each message is checked as a send checks it, and none is sent."""

    consumer_group: str
    target: Target
    rate: float | None = None
    limit: int = 0
    dry_run: bool = False

    @property
    def window(self) -> int:
        """Messages of a window at most."""
        if self.rate is None:
            return MAX_WINDOW
        return max(1, min(MAX_WINDOW, int(self.rate * IN_FLIGHT_S / WINDOWS)))


@dataclass(slots=True)
class _Window:
    """Dead letters in the order in which they were read, and those of them that are to be sent."""

    entries: list[Outcome | Send] = field(default_factory=list)
    sends: list[Send] = field(default_factory=list)
    body_bytes: int = 0
    last: ReceivedMessage | None = None

    def fill(
        self, letters: Iterator[tuple[ReceivedMessage | Missing, Outcome | Send]], most_sends: int
    ) -> bool:
        """Takes as many as it has room for; whether it is full then."""
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
        """What is known so far, in the order of the dead letters."""
        found = [entry.result if isinstance(entry, Send) else entry for entry in self.entries]
        return [outcome for outcome in found if outcome is not None]


@dataclass(slots=True)
class _Flight:
    """A window whose messages are under way. `leaving`: announces them and starts their sends.
    `sends`: those that go alone; `futures`: of the first of them; the others were not sent, because
    the redrive was cancelled, or the journal could not be written."""

    window: _Window
    sends: Sequence[Send]
    leaving: asyncio.Task[None] | None = None
    runs: Sequence[asyncio.Task[None]] = ()
    futures: list[asyncio.Future[SendResult]] = field(default_factory=list)

    async def left(self) -> OSError | None:
        """Waits until all its sends have started, or what is not sent will not be; returns why the
        journal could not be written. A cancellation does not cancel the sends."""
        if self.leaving is None:
            return None
        await wait_for((self.leaving,))
        with suppress(asyncio.CancelledError):  # that of `stop`
            try:
                self.leaving.result()
            except OSError as error:
                return error
        return None

    async def land(self) -> OSError | None:
        """Waits until it has; returns as `left`. A cancellation does not cancel the sends."""
        error = await self.left()
        await wait_for((*self.runs, *self.futures))
        return error

    def stop(self) -> None:
        """Starts no more sends."""
        if self.leaving is not None:
            self.leaving.cancel()


class Redrive:
    """One run of a redrive. `ids`: of the messages that this run or, by the `journal`, earlier ones
    have sent. A dry run writes no journal.

    `tally`: of the outcomes so far. `last`: the dead letter up to which all have an
    outcome.
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
        self._flights = deque[_Flight]()  # under way, and not landed yet
        self._to_send = 0  # dead letters that were taken for sending so far
        self._failed_in_a_row = 0
        self.tally = Tally()
        self.last: ReceivedMessage | None = None

    async def run(
        self, pages: AsyncIterator[Sequence[ReceivedMessage | Missing]]
    ) -> AsyncGenerator[list[Outcome]]:
        """Sends the dead letters that it is given: each once, though several have one message id.
        The outcomes come window by window, in the order of the dead letters.

        When it is cancelled, reading or the journal fails, or MAX_FAILED_IN_A_ROW sends fail, the
        outcomes of all messages that were sent come first, then the error is raised.
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
        """What was read before reading fails is a window too."""
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
        """What is prepared in one turn of the loop, up to the limit."""
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
        """Of each, its outcome, or the message that is to be sent."""
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
        """Sends a window, which is then the last flight; it is none when the redrive is cancelled,
        or the journal cannot be written. Returns what ended the redrive meanwhile."""
        sends, flights = window.sends, self._flights
        flight = _Flight(window, sends)
        if self._settings.dry_run:
            await check_all(self._producer, sends)
        elif sends:
            try:
                # What is announced is on the disk in the order of the windows.
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
        """Starts the sends of a flight once the journal has them. Raises OSError, with nothing
        sent."""
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
        """Waits for the answers of a flight; each send has its own timeout. Returns its outcomes,
        and what ended the redrive meanwhile.

        When it is cancelled it goes on waiting if it is `patient`, which the first cancellation
        ends: after the second one what has no answer has no outcome.
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
                run.result()  # raises what is no MqError
        outcomes = flight.window.outcomes()
        not_sent = () if self._settings.dry_run else flight.sends[len(flight.futures) :]
        told = [send.result for send in flight.window.sends if send.result is not None]
        told += [send.outcome(Status.FAILED) for send in not_sent]
        interruption = self._finish(told) or interruption
        self.tally.add(outcomes)
        if len(outcomes) == len(flight.window.entries):
            self.last = flight.window.last or self.last
        return outcomes, interruption or self._given_up(outcomes)

    def _finish(self, outcomes: Sequence[Outcome]) -> OSError | None:
        """Tells the journal what became of a window. For it, what was not sent has failed, so that
        it does not count as in flight."""
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
