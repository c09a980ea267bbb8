"""Receives of one client that wait in line for messages at any of several sources (a topic at a
broker).

However many receives wait, each source is asked once, by a call that its broker holds. Where order
does not matter that is a pop, whose messages any receive of the line may have; if none waits any
more, they are given back uncounted at once. In order it is a notification: one receive is sent to
that source to pop there. As many messages as a receive may have call two more receives to the
source, because there may be others; so a burst reaches n receives in log n rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.receiving.answers import Answer
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after a source failed
# A held call that has not failed by then has a broker that holds it.
HELD_S = 1.0
LEAST_HELD_S = 0.05  # of a held call


class Source(NamedTuple):
    topic: str
    broker_name: str


class Popped(NamedTuple):
    """Messages on lease: those from `start` to before `stop` of an answer of this source, until
    `until_ms` of the client's monotonic clock."""

    source: Source
    answer: Answer
    until_ms: int
    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def messages(self) -> list[LeasedMessage]:
        """Raises MESSAGE_CORRUPTED."""
        return self.answer.messages(self.start, self.stop, self.until_ms)

    def handles(self) -> list[ReceiptHandle]:
        return self.answer.handles(self.start, self.stop)

    def split(self, count: int) -> tuple[Popped, Popped]:
        """The first `count` messages, and the others."""
        middle = min(self.start + count, self.stop)
        return self._replace(stop=middle), self._replace(start=middle)


class Wanted(NamedTuple):
    """What a receive that waits may have, and until when it waits, in the loop's time."""

    max_messages: int
    deadline_s: float


# Messages of that source, as many as the first wait wants, or True: it has some. Held until then,
# or until so many seconds are over: then False. Raises MqError.
Ask = Callable[[Source, int, float], Awaitable[Popped | bool]]
# Whether a source that failed has messages, now. Raises MqError while it fails.
Probe = Callable[[Source], Awaitable[bool]]
# Where to pop, or what was popped; None: the time is over.
Found = Source | Popped | None


@dataclass(slots=True)
class _State:
    """What a line knows of a source. Times are the loop's."""

    visited: int = 0  # number of the last visit
    asking: asyncio.Task[None] | None = None
    visits: int = 0  # receives that are there now
    has_message: bool = False  # it said so when no receive waited
    retry_s: float = 0.0  # it failed, and is left alone until then
    failure: MqError | None = None  # of its last call
    asked_s: float = math.inf  # when its held call began
    probing: asyncio.Task[None] | None = None


class ReceiveLine:
    """`give_back`: of messages that no receive wants."""

    def __init__(self, ask: Ask, probe: Probe, give_back: Callable[[Popped], None]) -> None:
        self._ask = ask
        self._probe = probe
        self._give_back = give_back
        self._waiting: dict[asyncio.Future[Found], Wanted] = {}  # the longest wait first
        self._states: dict[Source, _State] = {}
        self._numbers = itertools.count(1)  # of visits

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not any(
            state.asking or state.visits or state.probing for state in self._states.values()
        )

    def begin(self, sources: Iterable[Source]) -> Source | None:
        """The source that a receive visits now; every visit ends with `end`. None: at each, a held
        call says that there is nothing, or it failed a moment ago.

        One that is known to have messages, else the one that was not visited for the longest time.
        One that failed is tried by a receive only where all did, else beside it: at a broker that
        hangs, a visit takes its whole time.
        """
        now_s = _now_s()
        best: tuple[bool, bool, int] | None = None
        chosen: Source | None = None
        failed: list[Source] = []
        for source in sources:
            state = self._state(source)
            if state.retry_s > now_s or (state.asking is not None and not state.visits):
                continue
            if state.failure is not None:
                failed.append(source)
            rank = (state.failure is not None, not state.has_message, state.visited)
            if best is None or rank < best:
                best, chosen = rank, source
        for source in failed:
            if source != chosen:
                self._try(source)
        return None if chosen is None else self.visit(chosen)

    def visit(self, source: Source) -> Source:
        """A receive goes to this source, and comes back by `end`."""
        state = self._state(source)
        state.visits += 1
        state.has_message = False
        state.visited = next(self._numbers)
        return source

    def end(self, source: Source, *, full: bool = False, failure: MqError | None = None) -> None:
        """Of a visit. `full`: it brought as many messages as it may have."""
        state = self._state(source)
        state.visits -= 1
        state.failure = failure
        if failure is not None:
            state.retry_s = _now_s() + RETRY_S
        elif full:
            self._send(source, 2)
        if self._anyone_waits() and not state.visits:
            self._listen(source)

    async def wait(self, sources: Sequence[Source], wanted: Wanted) -> Found:
        """The source to visit now, or messages; None when the time is over."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Found] = loop.create_future()
        self._waiting[future] = wanted
        for source in sources:
            if not self._state(source).visits:
                self._listen(source)
        timer = loop.call_at(wanted.deadline_s, _resolve, future, None)
        try:
            return await future
        except asyncio.CancelledError:
            found = future.result() if future.done() and not future.cancelled() else None
            if isinstance(found, Source):  # another receive may go there
                self.end(found)
            elif found is not None:
                self.deliver(found)
            raise
        finally:
            timer.cancel()
            self._waiting.pop(future, None)

    def deliver(self, popped: Popped) -> None:
        """Messages for the longest waits; what these leave is given back."""
        is_full = False
        while popped.size:
            future = self._next()
            if future is None:
                self._state(popped.source).has_message = True
                self._give_back(popped)
                return
            most = self._waiting[future].max_messages
            is_full = popped.size >= most
            own, popped = popped.split(most)
            future.set_result(own)
        if is_full:
            self._send(popped.source, 2)

    def failure(self, sources: Iterable[Source]) -> MqError | None:
        """Why the last call at each of these failed, of one of them; None if one did not fail."""
        found, held_s = None, _now_s() - HELD_S
        for source in sources:
            state = self._state(source)
            if state.failure is None or state.asked_s <= held_s:
                return None
            found = state.failure
        return found

    def end_waits(self) -> None:
        """Their time is over."""
        for future in self._waiting:
            _resolve(future, None)

    def held(self) -> dict[Source, asyncio.Task[None]]:
        """The calls that brokers hold now. Those that pause after a failure, or lease nothing, are
        ended."""
        found: dict[Source, asyncio.Task[None]] = {}
        for source, state in self._states.items():
            if state.probing is not None:
                state.probing.cancel()
            if state.asking is None:
                continue
            if state.asked_s < math.inf:
                found[source] = state.asking
            else:
                state.asking.cancel()
        return found

    # ---- steps ----

    def _state(self, source: Source) -> _State:
        state = self._states.get(source)
        if state is None:
            state = self._states[source] = _State()
        return state

    def _try(self, source: Source) -> None:
        state = self._state(source)
        if state.probing is None:
            state.probing = asyncio.create_task(
                self._tried(source, state), name=f"try {source.broker_name}"
            )

    async def _tried(self, source: Source, state: _State) -> None:
        try:
            state.has_message = await self._probe(source)
            state.failure = None
        except MqError as error:
            state.failure = error
            state.retry_s = _now_s() + RETRY_S
        finally:
            state.probing = None

    def _listen(self, source: Source) -> None:
        state = self._state(source)
        if state.asking is None:
            state.asking = asyncio.create_task(
                self._hold(source, state), name=f"receive from {source.broker_name}"
            )

    async def _hold(self, source: Source, state: _State) -> None:
        """Asks until the source has something, or nobody waits any more."""
        found: Popped | bool = False
        try:
            while self._anyone_waits():
                await asyncio.sleep(max(0.0, state.retry_s - _now_s()))
                wanted = self._wanted()
                if wanted is None:
                    break
                size, deadline_s = wanted
                state.asked_s = asked_s = _now_s()
                hold_s = max(LEAST_HELD_S, deadline_s - asked_s)
                try:
                    found = await self._ask(source, size, hold_s)
                    state.failure = None
                except MqError as error:
                    state.failure = error
                    state.retry_s = _now_s() + RETRY_S
                except Exception:
                    log.exception("receive from broker %s failed", source.broker_name)
                    state.retry_s = _now_s() + RETRY_S
                finally:
                    state.asked_s = math.inf
                if found:
                    break
                # A broker without long polls (longPollingEnable) answers at once.
                if _now_s() - asked_s < min(hold_s, RETRY_S) / 2:
                    state.retry_s = max(state.retry_s, asked_s + RETRY_S)
        finally:
            state.asking = None
        if isinstance(found, Popped):
            self.deliver(found)
        elif found and not self._send(source, 1):
            state.has_message = True
        elif not found:
            return
        if self._anyone_waits() and not state.visits:
            self._listen(source)

    def _send(self, source: Source, count: int) -> int:
        """Sends waiting receives to a source. Returns how many."""
        for sent in range(count):
            future = self._next()
            if future is None:
                return sent
            future.set_result(self.visit(source))
        return count

    def _next(self) -> asyncio.Future[Found] | None:
        """The longest wait that has found nothing yet."""
        return next((future for future in self._waiting if not future.done()), None)

    def _anyone_waits(self) -> bool:
        return self._next() is not None

    def _wanted(self) -> Wanted | None:
        """As many messages as the longest wait may have, until the last wait is over."""
        waiting = [wanted for future, wanted in self._waiting.items() if not future.done()]
        if not waiting:
            return None
        return Wanted(waiting[0].max_messages, max(wanted.deadline_s for wanted in waiting))


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _resolve(future: asyncio.Future[Found], found: Found) -> None:
    if not future.done():
        future.set_result(found)
