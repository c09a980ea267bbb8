"""A redrive: dead letters are read, sent again in windows, and forgotten. The dead letters stay in
the dead-letter topic.

Two windows are in flight at once, so that one is read and prepared while the other travels. With a
journal, it is on the disk that a window is being sent before its first message leaves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aerobee_client.admin.redriving import rules
from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT, Journal
from aerobee_client.admin.redriving.message_ids import Claim, MessageIds
from aerobee_client.admin.redriving.missing import Missing
from aerobee_client.admin.redriving.outcome import Outcome, Status, Tally
from aerobee_client.admin.redriving.pace import Pace
from aerobee_client.admin.redriving.redriven import Redriven
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.admin.redriving.sends import Send, send_run, split, wait_for
from aerobee_client.errors import MqError
from aerobee_client.message import ReceivedMessage
from aerobee_client.runtime.clock import Clock
from aerobee_wire import properties as names
from aerobee_wire.status import Code
from aerobee_wire.topics import retry_topic

if TYPE_CHECKING:  # slow to import, and only the caller needs them
    from aerobee_client.admin.descriptions import ClientDescription
    from aerobee_client.producer import AsyncProducer
    from aerobee_client.send_result import SendResult

WINDOWS = 2  # in flight at once
MAX_WINDOW = MAX_IN_FLIGHT // WINDOWS
# Bodies of a window; all windows are less than a producer has under way at most.
WINDOW_BYTES = 8 * 1024 * 1024
# With a rate, a window holds what is sent in this time.
WINDOW_S = 0.25
# Turns of the loop in which the requests of a window leave: the run starts, then its request, then
# the call.
LEAVING_TURNS = 3
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
    """`rate`: sends a second at most; None: as fast as possible. `limit`: sends at most; 0: all."""

    consumer_group: str
    target: Target
    rate: float | None = None
    limit: int = 0

    @property
    def window(self) -> int:
        """Messages of a window at most."""
        if self.rate is None:
            return MAX_WINDOW
        return max(1, min(MAX_WINDOW, int(self.rate * WINDOW_S)))


@dataclass(slots=True)
class _Window:
    """Dead letters in the order in which they were read, and how many of them are to be sent."""

    entries: list[Outcome | Send] = field(default_factory=list)
    sends: int = 0
    body_bytes: int = 0
    last: ReceivedMessage | None = None

    def add(self, entry: Outcome | Send) -> None:
        self.entries.append(entry)
        if isinstance(entry, Send):
            self.sends += 1
            self.body_bytes += len(entry.message.body)


@dataclass(slots=True)
class _Flight:
    """A window whose messages are under way. `sends`: those that go alone; `futures`: of the first
    of them; the others were not sent, because the redrive was cancelled."""

    window: _Window
    sends: Sequence[Send]
    runs: Sequence[asyncio.Task[list[Outcome]]] = ()
    futures: list[asyncio.Future[SendResult]] = field(default_factory=list)
    # What is in no run, has no future, and was not to be sent.
    done: dict[str, Outcome] = field(default_factory=dict)

    @property
    def has_landed(self) -> bool:
        return all(run.done() for run in self.runs) and all(sent.done() for sent in self.futures)

    async def land(self) -> None:
        """Waits until it has. A cancellation does not cancel the sends."""
        await wait_for((*self.runs, *self.futures))


class Redrive:
    """One run of a redrive. Without a `producer` nothing is sent (a dry run). `ids`: of the
    messages that this run or, by the `journal`, earlier ones have sent. A dry run writes no
    journal.

    `tally`: of the outcomes so far. `last`: the dead letter up to which all have an
    outcome.
    """

    def __init__(
        self,
        settings: Settings,
        producer: AsyncProducer | None,
        *,
        clock: Clock,
        ids: MessageIds,
        journal: Journal | None = None,
    ) -> None:
        self._settings = settings
        self._producer = producer
        self._clock = clock
        self._ids = ids
        self._journal = journal if producer is not None else None
        self._pace = Pace(settings.rate, self._now_s())
        self._to_send = 0  # dead letters that were taken for sending so far
        self._failed_in_a_row = 0
        self.tally = Tally()
        self.last: ReceivedMessage | None = None

    async def run(
        self, letters: AsyncIterator[ReceivedMessage | Missing]
    ) -> AsyncGenerator[list[Outcome]]:
        """Sends the dead letters that it is given: each once, though several have one message id.
        The outcomes come window by window, in the order of the dead letters.

        When it is cancelled, reading or the journal fails, or MAX_FAILED_IN_A_ROW sends fail, the
        outcomes of all messages that were sent come first, then the error is raised.
        """
        window, flights = _Window(), deque[_Flight]()
        interruption: Interruption | None = None
        try:
            async for letter in letters:
                window.add(self._entry(letter))
                if isinstance(letter, ReceivedMessage):
                    window.last = letter
                if self._is_full(window):
                    full, window = window, _Window()
                    interruption = await self._launch(full, flights)
                    if interruption is None and len(flights) == WINDOWS:
                        outcomes, interruption = await self._land(flights.popleft())
                        yield outcomes
                    if interruption is not None:
                        break  # the window is empty
                if self._settings.limit and self._to_send >= self._settings.limit:
                    break
        except (OSError, asyncio.CancelledError) as error:
            interruption, window = error, _Window()
        except MqError as error:
            interruption = error  # of reading: what was read before is sent
        if window.entries:
            interruption = await self._launch(window, flights) or interruption
        while flights:
            outcomes, failed = await self._land(flights.popleft(), patient=interruption is None)
            interruption = interruption or failed
            if outcomes:
                yield outcomes
        if interruption is not None:
            raise interruption

    def _is_full(self, window: _Window) -> bool:
        return (
            window.sends >= self._settings.window
            or window.body_bytes >= WINDOW_BYTES
            or len(window.entries) >= MAX_WINDOW
        )

    def _entry(self, letter: ReceivedMessage | Missing) -> Outcome | Send:
        if isinstance(letter, Missing):
            ids = (letter.message_id, letter.offset_message_id)
            return Outcome(*ids, "", "", Status.MISSING, letter.why)
        properties, offset_message_id = letter.properties, letter.offset_message_id
        ids = (rules.message_id_of(properties, offset_message_id), offset_message_id)
        tag = properties.get(names.TAGS, "")
        claim = self._ids.claim(*ids)
        if claim is Claim.SENT:
            return Outcome(*ids, tag, "", Status.SENT_BEFORE)
        if claim is Claim.TAKEN:
            why = "an earlier dead letter has the same message id"
            return Outcome(*ids, tag, "", Status.SKIPPED, why)
        self._to_send += 1
        settings = self._settings
        try:
            message = Redriven(
                letter, settings.consumer_group, settings.target, self._clock.now_ms()
            )
        except MqError as error:
            return Outcome(*ids, tag, "", Status.FAILED, str(error))
        return Send(*ids, tag, message, perhaps_twice=claim is Claim.UNKNOWN)

    async def _launch(self, window: _Window, flights: deque[_Flight]) -> Interruption | None:
        """Sends a window, which is then the last of `flights`; it is none when the journal cannot
        be written. Returns what ended the redrive meanwhile."""
        sends = [entry for entry in window.entries if isinstance(entry, Send)]
        flight = _Flight(window, sends)
        if self._producer is None:
            flight.done = {send.message_id: send.outcome(Status.WOULD_SEND) for send in sends}
        elif sends:
            try:
                await self._announce(sends)
            except (OSError, asyncio.CancelledError) as error:
                self._finish([send.outcome(Status.FAILED) for send in sends])
                return error
            flights.append(flight)
            return await self._send(self._producer, flight)
        flights.append(flight)
        return None

    async def _announce(self, sends: Sequence[Send]) -> None:
        if self._journal is None:
            return
        self._journal.sending((send.message_id, send.offset_message_id) for send in sends)
        await asyncio.to_thread(self._journal.sync)

    async def _send(
        self, producer: AsyncProducer, flight: _Flight
    ) -> asyncio.CancelledError | None:
        """Starts the sends of a flight; no more of them once it is cancelled."""
        try:
            if self._settings.rate is None:
                runs, flight.sends = split(flight.sends)
                flight.runs = [asyncio.create_task(send_run(producer, run)) for run in runs]
            for send in flight.sends:
                wait_s = self._pace.next_wait(self._now_s())
                if wait_s:
                    await asyncio.sleep(wait_s)
                flight.futures.append(producer.send_async(send.message))
            for _ in range(LEAVING_TURNS):  # before the next window is read, which is long
                await asyncio.sleep(0)
        except asyncio.CancelledError as error:
            return error
        return None

    async def _land(
        self, flight: _Flight, *, patient: bool = True
    ) -> tuple[list[Outcome], Interruption | None]:
        """Waits for the answers of a flight; each send has its own timeout. Returns its outcomes,
        and what ended the redrive meanwhile.

        When it is cancelled it goes on waiting if it is `patient`, which the first cancellation
        ends: after the second one what has no answer has no outcome.
        """
        interruption: Interruption | None = None
        while not flight.has_landed:
            try:
                await flight.land()
            except asyncio.CancelledError as error:
                if not patient:
                    break
                interruption, patient = error, False
        done = flight.done
        for send, future in zip(flight.sends, flight.futures, strict=False):
            if future.done():
                done[send.message_id] = send.ended(future)
        for run in flight.runs:
            if run.done():
                done.update((outcome.message_id, outcome) for outcome in run.result())
        not_sent = flight.sends[len(flight.futures) :] if self._producer is not None else ()
        told = [*done.values(), *(send.outcome(Status.FAILED) for send in not_sent)]
        interruption = self._finish(told) or interruption
        outcomes = [
            outcome
            for entry in flight.window.entries
            if (outcome := done.get(entry.message_id) if isinstance(entry, Send) else entry)
        ]
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
