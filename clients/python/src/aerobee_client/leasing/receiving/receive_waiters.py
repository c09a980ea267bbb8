"""Queue the receives of one client that wait for messages of several sources.

A source is a topic at a broker. While receives wait, each source has one long poll, independently
of their number. Without ordering, the long poll is a pop, and any waiting receive may get its
messages. If no receive waits by then, the messages are returned at once, without counting an
attempt. With ordering, the long poll is a notification, after which one receive pops from that
source. A receive that gets its maximum number of messages sends two more receives to the source, so
a burst reaches many receives quickly.
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
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

# A long poll that has not failed after this time has reached its broker.
HELD_S = 1.0
LEAST_HELD_S = 0.05  # the shortest long poll


class ReceiveRequest(NamedTuple):
    """The maximum number of messages of a waiting receive, and its deadline in the loop's time."""

    max_messages: int
    deadline_s: float


# A function that makes a long poll. Its arguments are the source, the maximum number of messages,
# and the time limit in seconds. It returns messages, or True if the source has messages, or False
# after the time limit. Raises MqError.
Ask = Callable[[Source, int, float], Awaitable[Popped | bool]]
# A function that returns whether a source that failed has messages now. Raises MqError if the
# source still fails.
Probe = Callable[[Source], Awaitable[bool]]
# The outcome of a wait: a source to pop from, or messages, or None after the deadline.
ReceiveOutcome = Source | Popped | None


@dataclass(slots=True)
class _State:
    """The state of a source. Times are those of the event loop."""

    visited: int = 0  # sequence number of the last visit
    asking: asyncio.Task[None] | None = None  # the long poll
    visits: int = 0  # the number of receives that pop from the source now
    has_message: bool = False  # the source reported a message while no receive waited
    retry_s: float = 0.0  # after a failure, the earliest time of the next call
    failure: MqError | None = None  # the error of the last call
    asked_s: float = math.inf  # the start of the long poll; infinite while none is in flight
    probing: asyncio.Task[None] | None = None


class ReceiveWaiters:
    """The waiting receives of one client, the longest wait first.

    Args:
        ask: Makes a long poll at a source.
        probe: Checks a source that failed.
        give_back: Returns messages to the group when no receive waits for them.
    """

    def __init__(self, ask: Ask, probe: Probe, give_back: Callable[[Popped], None]) -> None:
        self._ask = ask
        self._probe = probe
        self._give_back = give_back
        self._receives: WaitingReceives[ReceiveRequest, Source | Popped]
        self._receives = WaitingReceives(self._hand_over)
        self._states: dict[Source, _State] = {}
        self._numbers = itertools.count(1)  # numbers of visits

    @property
    def is_idle(self) -> bool:
        return not self._receives and not any(
            state.asking or state.visits or state.probing for state in self._states.values()
        )

    def begin(self, sources: Iterable[Source]) -> Source | None:
        """Choose the source from which a receive pops now. Call `end` after the pop.

        Return None if each source has failed recently or is already asked by a long poll. Sources
        that are known to have messages come first, then the source that was used least recently.
        A source that failed is chosen only if all have failed. Otherwise it is probed, because a
        pop at a hanging broker takes its full timeout.
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
        """Note that a receive starts to pop from this source. Call `end` after the pop."""
        state = self._state(source)
        state.visits += 1
        state.has_message = False
        state.visited = next(self._numbers)
        return source

    def end(self, source: Source, *, full: bool = False, failure: MqError | None = None) -> None:
        """End the pop of a receive at a source.

        `full` is true if the receive got its maximum number of messages. `failure` is the error of
        the pop, if any.
        """
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
        """Wait for a source to pop from, or for messages. Return None after the deadline."""
        for source in sources:
            if not self._state(source).visits:
                self._listen(source)
        return await self._receives.wait(wanted, wanted.deadline_s)

    def _hand_over(self, found: Source | Popped) -> None:
        """Pass the outcome of a receive that was cancelled to another receive."""
        if isinstance(found, Source):  # another receive may pop from it
            self.end(found)
        else:
            self.deliver(found)

    def deliver(self, popped: Popped) -> None:
        """Give messages to the receives that wait longest; return the remainder to the group."""
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
        """Return an MqError if the last call at every source failed; otherwise None."""
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
        """Return the long polls in flight, by source.

        Cancel probes, and long polls that pause after a failure.
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
        """Make long polls until the source has messages or no receive waits."""
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
        if self._receives.any_waits and not state.visits:
            self._listen(source)

    def _send(self, source: Source, count: int) -> int:
        """Let up to `count` waiting receives pop from a source. Return the number of receives."""
        for sent in range(count):
            if not self._receives.any_waits:
                return sent
            self._receives.give(self.visit(source))
        return count

    def _wanted(self) -> ReceiveRequest | None:
        """Return the arguments of the next long poll, or None if no receive waits.

        These are the maximum number of messages of the longest wait, and the latest deadline of all
        waits.
        """
        longest = self._receives.longest()
        if longest is None:
            return None
        last_s = max(wanted.deadline_s for wanted in self._receives.wanted())
        return ReceiveRequest(longest.max_messages, last_s)


def _now_s() -> float:
    return asyncio.get_running_loop().time()
