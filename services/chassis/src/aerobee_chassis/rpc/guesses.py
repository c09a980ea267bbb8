"""Delay the answers to addresses that guess the names or the secret keys of users.

A call with a valid signature is never delayed, so that clients behind one address do not suffer
from each other.
"""

from __future__ import annotations

import ipaddress
from collections import deque
from typing import Protocol

import structlog

from aerobee_chassis.clock import Clock
from aerobee_wire.access.throttle import Throttle

FAILURES, WINDOW_S = 10, 60.0  # of one address, before further failures are delayed
DELAY_S = 1.0
# Delayed calls at once, which take memory. Further ones are answered without a delay.
MOST_DELAYED = 1_000


class Delayable(Protocol):
    """The part of a call that is used here (`Call`)."""

    @property
    def peer(self) -> str: ...

    def delay_answer(self, seconds: float) -> None: ...


class Guesses:
    """Count the calls of each address whose signature is wrong or whose user is unknown."""

    def __init__(self, clock: Clock, delay_s: float = DELAY_S) -> None:
        self._clock = clock.real
        self._delay_s = delay_s
        self._failures = Throttle(FAILURES, WINDOW_S, self._now_s)
        self._ends_s: deque[float] = deque()  # of the running delays
        self.delayed = 0  # calls

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1_000

    def failed(self, call: Delayable) -> None:
        """Count a call that failed. Delay its answer if its address has too many failures."""
        place = place_of(call.peer)
        if not self._failures.wait_s(place):
            self._failures.add(place)
            if self._failures.wait_s(place):
                structlog.get_logger().warning("answers_delayed", address=place, failures=FAILURES)
            return
        now_s, ends_s = self._now_s(), self._ends_s
        while ends_s and ends_s[0] <= now_s:
            ends_s.popleft()
        if len(ends_s) < MOST_DELAYED:
            ends_s.append(now_s + self._delay_s)
            self.delayed += 1
            call.delay_answer(self._delay_s)


def place_of(peer: str) -> str:
    """Return the host of a "host:port". For IPv6 it is the network of 64 bits, which one host has.

    Return "" for a local socket.
    """
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0].removeprefix("::ffff:")
    if ":" not in host:
        return host
    return ":".join(ipaddress.IPv6Address(host).exploded.split(":")[:4]) + "::/64"
