"""Sum what waits at the brokers: lag, dead letters, delayed and in-flight messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.descriptions import BrokerBacklog
from aerobee_console.reading.source import Asking
from aerobee_wire.topics import DLQ_PREFIX


@dataclass(frozen=True, slots=True)
class Waiting:
    """The messages that wait at the brokers that answered."""

    lag_by_group: Counter[str] = field(default_factory=Counter)
    dead_letters_by_group: Counter[str] = field(default_factory=Counter)
    in_flight: int = 0
    delayed: int = 0
    half: int = 0


async def waiting(admin: AsyncAdminClient, asking: Asking) -> Waiting | None:
    """Return what waits, with one call to each broker; None if no broker answered."""
    found = await asking.of(lambda silent: admin.broker_backlogs(silent=silent))
    return None if found is None else summed(found)


def summed(backlogs: Mapping[str, BrokerBacklog]) -> Waiting:
    """Sum the backlogs of several brokers."""
    sums = Waiting(
        in_flight=sum(each.in_flight for each in backlogs.values()),
        delayed=sum(sum(each.delayed_messages.values()) for each in backlogs.values()),
        half=sum(sum(each.half_messages.values()) for each in backlogs.values()),
    )
    for backlog in backlogs.values():
        for lag in backlog.lags:
            sums.lag_by_group[lag.consumer_group] += lag.messages
        for topic, messages in backlog.dead_letters.items():
            sums.dead_letters_by_group[topic.removeprefix(DLQ_PREFIX)] += messages
    return sums
