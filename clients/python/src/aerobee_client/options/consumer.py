"""What may be set of push consumers: names, defaults, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from aerobee_client.options.bounds import MAX_INT32, Bounds, check_bounds
from aerobee_client.options.reading import ReadingOptions, ReadingSettings
from aerobee_wire.status import Code, MqError


class ConsumerSettings(ReadingSettings, total=False):
    """The keyword arguments of a push consumer; meaning and defaults: ConsumerOptions."""

    concurrency: int
    consume_message_batch_max_size: int
    max_reconsume_times: int
    consume_timeout: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ReadingOptions):
    """RocketMQ's names and defaults."""

    # Calls of the listener at a time.
    concurrency: int = 20
    # Messages of one call of a batch listener, at most.
    consume_message_batch_max_size: int = 1
    # Overrides the group's own. Attempts = this + 1.
    max_reconsume_times: int | None = None
    # A message whose listener takes longer is sent back.
    consume_timeout: timedelta = timedelta(minutes=15)

    def __post_init__(self) -> None:
        """Raises INVALID_PARAMETER that names the bounds."""
        ReadingOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_bounds(self, _CONSUMER_BOUNDS)
        if self.consume_timeout <= timedelta(0):
            raise MqError(
                Code.INVALID_PARAMETER,
                f"consume_timeout is {self.consume_timeout}: give more than 0 s",
            )


# As in RocketMQ's client; the last is what the contract has room for.
_CONSUMER_BOUNDS: Bounds = {
    "concurrency": (1, 1_000),
    "consume_message_batch_max_size": (1, 1_024),
    "max_reconsume_times": (0, MAX_INT32),
}
