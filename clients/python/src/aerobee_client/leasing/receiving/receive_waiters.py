"""Queue the receives of one client that wait for messages of several sources.

A source is a topic at a broker. At each source, one call waits for messages on behalf of all
waiting receives. Without ordering, this call is a pop, and any waiting receive may get its
messages. If no receive waits any more, the messages are returned at once, without counting an
attempt. With ordering, the call is a notification, after which one receive pops at the source.

If a receive gets its maximum number of messages, two more receives pop at that source, because it
may have more messages. A burst of messages therefore reaches n receives in log n steps.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aerobee_client.leasing.receiving.answers import Popped, Source
from aerobee_cluster.receiving import RETRY_S
from aerobee_cluster.waiting_receives import WaitingReceives
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

# A long poll that has not failed after this time has reached its broker.
HELD_S = 1.0
LEAST_HELD_S = 0.05  # the minimum time for which a call is held


class ReceiveRequest(NamedTuple):
    """The maximum number of messages of a waiting receive, and the loop time at which it ends."""

    max_messages: int
    deadline_s: float


# A call that waits for messages of a source for the given seconds. It returns up to the given
# number of messages, or True if the source has some, or False if none arrived. Raises MqError.
Ask = Callable[[Source, int, float], Awaitable[Popped | bool]]
# A function that returns whether a source that failed has messages now. Raises MqError if the
# source still fails.
Probe = Callable[[Source], Awaitable[bool]]
# The source at which to pop, or the popped messages, or a refusal; None after the deadline.
ReceiveOutcome = Source | Popped | MqError | None


@dataclass(slots=True)
class _State:
    """The state of a source. Times are times of the event loop."""

    visited: int = 0  # number of the last visit
    asking: asyncio.Task[None] | None = None
    visits: int = 0  # receives that are popping there now
    has_message: bool = False  # reported when no receive waited
    retry_s: float = 0.0  # after a failure, the source is not called before this time
    failure: MqError | None = None  # of its last call
    asked_s: float = math.inf  # when its held call began
    probing: asyncio.Task[None] | None = None


class ReceiveWaiters:
    """The waiting receives, ordered by the start of their waits.

    `give_back` is called with messages that no receive wants.
    """

    def __init__(self, ask: Ask, probe: Probe, give_back: Callable[[Popped], None]) -> None:
        self._ask = ask
        self._probe = probe
        self._give_back = give_back
        self._receives: WaitingReceives[ReceiveRequest, Source | Popped | MqError]
        self._receives = WaitingReceives(self._hand_over)
        self._states: dict[Source, _State] = {}
        self._numbers = itertools.count(1)  # numbers of visits

    @property
    def is_idle(self) -> bool:
        return not self._receives and not any(
            state.asking or state.visits or state.probing for state in self._states.values()
        )

    def begin(self, sources: Iterable[Source]) -> Source | None:
        """Return the source at which a receive pops now. The caller must then call `end`.

        Return None if each source has a call that waits for messages, or has just failed. Sources
        that are known to have messages come first, then the one whose last visit is longest ago. A
        source that failed is visited only if all sources have failed. Otherwise it is probed in the
        background, because a visit to a broker that hangs would use up the time of the receive.
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
        """Record that a receive pops at this source now. The caller must then call `end`."""
        state = self._state(source)
        state.visits += 1
        state.has_message = False
        state.visited = next(self._numbers)
        return source

    def end(self, source: Source, *, full: bool = False, failure: MqError | None = None) -> None:
        """End a visit. `full` is true if the visit returned the maximum number of messages."""
        state = self._state(source)
        state.visits -= 1
        state.failure = failure
        if failure is not None:
            state.retry_s = _now_s() + RETRY_S
        elif full:
            self._send(source, 2)
        if self._receives.any_waits and not state.visits:
            self._listen(source)

    async def wait(self, sources: Sequence[Source], wanted: ReceiveRequest) -> ReceiveOutcome:
        """Wait for a source to visit, for messages, or for a refusal.

        Return None after the deadline.
        """
        for source in sources:
            if not self._state(source).visits:
                self._listen(source)
        return await self._receives.wait(wanted, wanted.deadline_s)

    def _hand_over(self, found: Source | Popped | MqError) -> None:
        """Handle the outcome of a receive that was cancelled before it got the outcome."""
        if isinstance(found, Source):  # another receive may pop there
            self.end(found)
        elif isinstance(found, Popped):
            self.deliver(found)

    def deliver(self, popped: Popped) -> None:
        """Give messages to the receives that have waited longest. Give back the other messages."""
        is_full = False
        while popped.size:
            wanted = self._receives.longest()
            if wanted is None:
                self._state(popped.source).has_message = True
                self._give_back(popped)
                return
            is_full = popped.size >= wanted.max_messages
            own, popped = popped.split(wanted.max_messages)
            self._receives.give(own)
        if is_full:
            self._send(popped.source, 2)

    def failure(self, sources: Iterable[Source]) -> MqError | None:
        """Return the error of a source if the last call at each source failed; otherwise None."""
        found, held_s = None, _now_s() - HELD_S
        for source in sources:
            state = self._state(source)
            if state.failure is None or state.asked_s <= held_s:
                return None
            found = state.failure
        return found

    def end_waits(self) -> None:
        """End all waits; each receive gets None."""
        self._receives.end()

    def held(self) -> dict[Source, asyncio.Task[None]]:
        """Return the calls that brokers hold now, by source.

        Cancel calls that pause after a failure, and probes, because these do not lease messages.
        """
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
        """Call a source until it has messages, or until no receive waits."""
        found: Popped | bool = False
        try:
            while self._receives.any_waits:
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
                    self._fail(state, error)
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
        if self._receives.any_waits and not state.visits:
            self._listen(source)

    def _fail(self, state: _State, error: MqError) -> None:
        """Pause the calls of a source. If it refused the caller, end all waits with the error."""
        state.failure = error
        state.retry_s = _now_s() + RETRY_S
        if is_refusal(error):
            while self._receives.give(error):
                pass

    def _send(self, source: Source, count: int) -> int:
        """Let up to `count` waiting receives pop at a source. Return their number."""
        for sent in range(count):
            if not self._receives.any_waits:
                return sent
            self._receives.give(self.visit(source))
        return count

    def _wanted(self) -> ReceiveRequest | None:
        """Return the maximum size of the longest wait, and the latest deadline of all waits."""
        longest = self._receives.longest()
        if longest is None:
            return None
        last_s = max(wanted.deadline_s for wanted in self._receives.wanted())
        return ReceiveRequest(longest.max_messages, last_s)


def is_refusal(error: MqError) -> bool:
    """Return whether the caller may not receive, which a retry does not change."""
    return error.code is Code.NO_PERMISSION and not error.retryable


def _now_s() -> float:
    return asyncio.get_running_loop().time()
