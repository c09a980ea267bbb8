"""Define the options of pull consumers: names, defaults, bounds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar

from aerobee_client.options.bounds import Bounds, check_bounds
from aerobee_client.options.reading import ReadingOptions, ReadingSettings


class PullConsumerSettings(ReadingSettings, total=False):
    """The keyword arguments of a pull consumer; for defaults see PullConsumerOptions."""

    auto_commit: bool
    auto_commit_interval: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class PullConsumerOptions(ReadingOptions):
    """The options of pull consumers, with RocketMQ's defaults, and its names without "millis"."""

    pulls_empty_queues: ClassVar[bool] = True
    # Whether to commit what earlier polls returned every auto_commit_interval and at close.
    auto_commit: bool = True
    auto_commit_interval: timedelta = timedelta(seconds=5)

    # Unlike in ReadingOptions, this limit is set by default.
    pull_threshold_for_all: int | None = 10_000

    def __post_init__(self) -> None:
        """Check the options. Raises INVALID_PARAMETER, which names the bounds."""
        ReadingOptions.__post_init__(self)  # super() does not work in a dataclass with slots
        check_bounds(self, _PULL_CONSUMER_BOUNDS)


_PULL_CONSUMER_BOUNDS: Bounds = {
    "auto_commit_interval": (1, 86_400),  # seconds
}
