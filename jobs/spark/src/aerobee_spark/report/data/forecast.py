"""Define the forecast of a report: retry settings of the group, trend, and expiry of dead letters.

The trend shows whether the number of dead letters increases. The expiry is the time at which
retention deletes dead letters. `plan.py` asks the brokers for the values. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from aerobee_spark.report.formats import iso

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import BrokerStatus, GroupDescription

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HORIZONS_H = (1, 6, 24)


def trend_window(since_ms: int | None, until_ms: int | None, now_ms: int) -> tuple[int, int]:
    """Return the window of a trend. Without a start, it is the 24 hours before its end."""
    until_ms = now_ms if until_ms is None else until_ms
    return until_ms - DAY_MS if since_ms is None else since_ms, until_ms


@dataclass(frozen=True, slots=True)
class Trend:
    """The number of dead letters in a time window, and in the window of equal length before it.

    Times are in milliseconds since the epoch. If retention has deleted messages of the earlier
    window, `before` is too small and `before_is_complete` is false.
    """

    since_ms: int
    until_ms: int
    dead_letters: int
    before: int
    before_is_complete: bool

    def as_json(self) -> dict[str, Any]:
        return {
            "since": iso(self.since_ms),
            "until": iso(self.until_ms),
            "dead_letters": self.dead_letters,
            "before_since": iso(2 * self.since_ms - self.until_ms),
            "before_dead_letters": self.before,
            "before_complete": self.before_is_complete,
            "change": self.dead_letters - self.before,
        }


@dataclass(frozen=True, slots=True)
class DeadLettersOfFile:
    """The number of dead letters in one file of a broker's commit log.

    Retention deletes a file as a whole.
    """

    count: int
    first_physical_offset: int


@dataclass(frozen=True, slots=True)
class BrokerExpiry:
    """The expiry of the dead letters of one broker.

    `status` is None if the broker did not answer. `files` has the dead letters of each commit-log
    file, with the expiry of the file in milliseconds since the epoch. The expiry is 0 if the file
    does not expire by age.
    """

    broker_name: str
    status: BrokerStatus | None
    files: Sequence[tuple[DeadLettersOfFile, int]]
    problem: str = ""

    def within(self, hours: int) -> int | None:
        if self.status is None:
            return None
        until = self.status.now_timestamp_ms + hours * HOUR_MS
        return sum(file.count for file, goes_ms in self.files if 0 < goes_ms <= until)

    @property
    def first_goes_ms(self) -> int | None:
        return min((goes_ms for _, goes_ms in self.files if goes_ms), default=None)

    def as_json(self) -> dict[str, Any]:
        status = self.status
        return {
            "broker_name": self.broker_name,
            **{f"within_{hours}h": self.within(hours) for hours in HORIZONS_H},
            "oldest_goes_at": iso(self.first_goes_ms),
            "file_reserved_time_ms": None if status is None else status.file_reserved_time_ms,
            "delete_when": None if status is None else list(status.delete_when),
            "disk_used_percent": None if status is None else used_percent(status),
            "disk_max_used_percent": None if status is None else status.disk_max_used_percent,
            "problem": self.problem,
        }


def used_percent(status: BrokerStatus) -> float | None:
    """Return the used part of the broker's disk in percent, or None if its size is unknown."""
    if not status.disk_total_bytes:
        return None
    used = status.disk_total_bytes - status.disk_free_bytes
    return round(100 * used / status.disk_total_bytes, 1)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The retry settings of the group, the trend, and the expiry of dead letters of each broker.

    `group` and `trend` are None if they are unknown. `expiries` is None if the report does not read
    dead letters.
    """

    group: GroupDescription | None = None
    trend: Trend | None = None
    expiries: Sequence[BrokerExpiry] | None = field(default=None)

    def as_json(self) -> dict[str, Any]:
        return {
            "expires": None if self.expiries is None else _expires(self.expiries),
            "trend": None if self.trend is None else self.trend.as_json(),
            "group_settings": None if self.group is None else _settings(self.group),
        }


def _expires(expiries: Sequence[BrokerExpiry]) -> dict[str, Any]:
    """Return the JSON form of the expiry of dead letters, summed over all brokers.

    Sums are None if a broker did not answer.
    """
    known = all(each.status is not None for each in expiries)
    moments = [each.first_goes_ms for each in expiries if each.first_goes_ms is not None]
    return {
        **{f"within_{h}h": sum_of(each.within(h) for each in expiries) for h in HORIZONS_H},
        "oldest_goes_at": iso(min(moments)) if known and moments else None,
        "brokers": [each.as_json() for each in expiries],
    }


def sum_of(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts, or None if a count is unknown (None)."""
    found = list(counts)
    return None if None in found else sum(count or 0 for count in found)


def _settings(group: GroupDescription) -> Mapping[str, Any]:
    exponential = group.exponential_retry
    return {
        "max_attempts": group.max_attempts,
        # If empty, the broker's delay levels from level 3 on apply, unless delays are exponential.
        "retry_delays_ms": list(group.retry_delays_ms),
        "exponential_retry": None if exponential is None else asdict(exponential),
        "consume_enable": group.consume_enable,
        "order": group.order,
    }
