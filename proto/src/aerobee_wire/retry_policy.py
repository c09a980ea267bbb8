"""Define RocketMQ's exponential retry policy of a consumer group.

Each delay before a retry is a multiple of the previous delay.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_wire.status import invalid_parameter

_MAX_EXPONENT = 32  # as in RocketMQ


@dataclass(frozen=True, slots=True)
class ExponentialRetryPolicy:
    """An exponential retry policy. The defaults are RocketMQ's: 5 s, 10 s, 20 s … 2 h."""

    initial_ms: int = 5_000
    max_ms: int = 7_200_000
    multiplier: int = 2

    def __post_init__(self) -> None:
        """Check the types. Raises MqError with the code INVALID_PARAMETER."""
        for name in ("initial_ms", "max_ms", "multiplier"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise invalid_parameter(
                    f"{name} is {value!r}: give a whole number, such as 2", about=name
                )

    def delay_ms(self, attempt: int) -> int:
        """Return the delay after a failure in this delivery attempt, which is counted from 1."""
        exponent = min(max(attempt, 1) - 1, _MAX_EXPONENT)
        factor: int = self.multiplier**exponent
        return min(self.max_ms, self.initial_ms * factor)

    def delays_ms(self) -> tuple[int, ...]:
        """Return the delays after the attempts 1, 2 and so on.

        The last delay also applies to all later attempts.
        """
        delays = [self.delay_ms(1)]
        for attempt in range(2, _MAX_EXPONENT + 2):
            delay_ms = self.delay_ms(attempt)
            if delay_ms == delays[-1]:
                break
            delays.append(delay_ms)
        return tuple(delays)
