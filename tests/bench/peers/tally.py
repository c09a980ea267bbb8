"""Numbered messages, and a count of those that arrived.

The clients of other products import this in an environment of their own: standard library only.
"""

from __future__ import annotations

import time

SIZE = 1_024  # bytes of a body
PADDING = (bytes(range(256)) * 4)[16:SIZE]


class WrongCount(Exception):
    """Messages are missing, or arrived that were not sent. Such a row has no figure."""


def body(number: int) -> bytes:
    """Return a message of `SIZE` bytes, with its number and the time of its making."""
    stamp = time.monotonic_ns()
    return number.to_bytes(8, "big") + stamp.to_bytes(8, "big") + PADDING


def number_of(body: bytes) -> int:
    return int.from_bytes(body[:8], "big")


def age_ms(body: bytes) -> float:
    """Return the milliseconds since `body` was made, on this machine."""
    return (time.monotonic_ns() - int.from_bytes(body[8:16], "big")) / 1e6


class Tally:
    """Which of the messages 0 … count - 1 have arrived, and how many of them more than once."""

    def __init__(self, count: int) -> None:
        self._times = bytearray(count)
        self.distinct = 0
        self.repeated = 0

    def see(self, body: bytes) -> int:
        """Count a message and return its number. Raises WrongCount if it was not sent."""
        number = int.from_bytes(body[:8], "big")
        if number >= len(self._times) or len(body) != SIZE:
            raise WrongCount(f"message {number} of {len(body)} bytes arrived, but was not sent")
        if self._times[number]:
            self.repeated += 1
        else:
            self.distinct += 1
        self._times[number] = min(self._times[number] + 1, 255)
        return number

    def times(self, number: int) -> int:
        return self._times[number]

    @property
    def is_complete(self) -> bool:
        return self.distinct == len(self._times)

    def check(self) -> None:
        """Raise WrongCount if a message is missing."""
        if not self.is_complete:
            missing = len(self._times) - self.distinct
            first = self._times.index(0)
            raise WrongCount(
                f"{missing:,} of {len(self._times):,} messages did not arrive, the first is {first}"
            )


def check_stored(acknowledged: int, stored: int) -> None:
    """Raise WrongCount if a server has fewer messages than it acknowledged, or no message at all.

    It may have more: a client repeats a send whose answer was late.
    """
    if acknowledged == 0:
        raise WrongCount("no send was acknowledged")
    if stored < acknowledged:
        raise WrongCount(f"{acknowledged:,} messages were acknowledged, but {stored:,} are stored")
