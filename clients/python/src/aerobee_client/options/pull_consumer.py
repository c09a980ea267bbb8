"""What may be set of pull consumers: names, defaults, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from aerobee_client.options.bounds import Bounds, check_bounds
from aerobee_client.options.reading import ReadingOptions, ReadingSettings


class PullConsumerSettings(ReadingSettings, total=False):
    """The keyword arguments of a pull consumer; meaning and defaults: PullConsumerOptions."""

    auto_commit: bool
    auto_commit_interval: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerOptions(ReadingOptions):
    """RocketMQ's names, without "millis", and defaults."""

    pulls_empty_queues: ClassVar[bool] = True
    # Whether what earlier polls returned is committed every auto_commit_interval and at the end.
    auto_commit: bool = True
    auto_commit_interval: timedelta = timedelta(seconds=5)

    # As of ReadingOptions; none by default there.
    pull_threshold_for_all: int | None = 10_000

    def __post_init__(self) -> None:
        """Raises INVALID_PARAMETER that names the bounds."""
        ReadingOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_bounds(self, _PULL_CONSUMER_BOUNDS)


_PULL_CONSUMER_BOUNDS: Bounds = {
    "auto_commit_interval": (1, 86_400),  # seconds
}
