"""Track the brokers to avoid, because they are unavailable or refuse every message.

A broker is unavailable ("away" in names) if it answered an earlier call and no longer answers. Most
unavailable brokers are restarting.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from aerobee_wire.status import Code, MqError

# An unavailable broker is avoided for this time after the last failed call, and then retried.
AVOID_S = 2.0

# Codes that the proxy itself produces. They do not prove that the broker has answered.
NOT_FROM_BROKER = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.BROKER_NOT_EXIST,
        Code.REQUEST_TIMEOUT,
        Code.NAMESRV_UNREACHABLE,
    }
)


# A call to a broker that is unavailable fails with one of these codes.
AWAY = frozenset({Code.BROKER_UNREACHABLE, Code.BROKER_NOT_EXIST})

# A broker that answers with one of these codes refuses every message for a while. Another broker
# may accept it.
REFUSES_MESSAGES = frozenset({Code.DISK_FULL, Code.SERVICE_NOT_AVAILABLE, Code.SLAVE_NOT_AVAILABLE})


class BeingElected(MqError):
    """The error of a call to a broker whose replicas are electing a master."""

    def __init__(self, broker_name: str) -> None:
        super().__init__(
            Code.BROKER_UNREACHABLE,
            f"broker {broker_name} has no master at the moment: its replicas elect one; retry",
        )


class _Outage(NamedTuple):
    """The times of the first and the last failed call, in the event loop's time."""

    first_s: float
    last_s: float


OnBack = Callable[[str], None]


def ignore(broker_name: str) -> None:
    pass


class BrokerAvailability:
    """Tracks which brokers are unavailable or refuse messages.

    `on_back` is called with the name of a broker that answers after an outage or has a new master.
    This may be a new process, in which no client is registered.
    """

    def __init__(self, on_back: OnBack = ignore) -> None:
        self._on_back = on_back
        self._answered: set[str] = set()  # since the start; only names of real brokers
        self._outages: dict[str, _Outage] = {}
        self._refused_s: dict[str, float] = {}  # last refusal, in the event loop's time

    @property
    def any_away(self) -> bool:
        """Return whether any broker may be unavailable; a fast check before `is_away`."""
        return bool(self._outages)

    @property
    def any_avoided(self) -> bool:
        """Return whether any broker may have to be avoided; a fast check before `is_avoided`."""
        return bool(self._outages or self._refused_s)

    def is_avoided(self, broker_name: str) -> bool:
        """Return whether messages should go to another broker.

        This is the case if the broker is unavailable or has refused messages within AVOID_S.
        """
        refused_s = self._refused_s.get(broker_name)
        if refused_s is not None:
            if asyncio.get_running_loop().time() - refused_s < AVOID_S:
                return True
            del self._refused_s[broker_name]
        return self.is_away(broker_name)

    def is_away(self, broker_name: str) -> bool:
        """Return whether a call failed within AVOID_S and the broker has not answered since."""
        outage = self._outages.get(broker_name)
        return outage is not None and asyncio.get_running_loop().time() - outage.last_s < AVOID_S

    def away_since_s(self, broker_name: str) -> float:
        """Return the time of the first failed call of an outage, in the event loop's time.

        Return the current time if the broker is available.
        """
        outage = self._outages.get(broker_name)
        return asyncio.get_running_loop().time() if outage is None else outage.first_s

    def is_outage(self, broker_name: str, error: MqError) -> bool:
        """Return whether the error of a call means that the broker is unavailable.

        An unavailable broker has answered before, and is now unreachable or not registered at the
        name servers. A broker whose master is being elected is unavailable too.
        """
        known = broker_name in self._answered or isinstance(error, BeingElected)
        return known and error.code in AWAY

    def answered(self, broker_name: str) -> None:
        self._answered.add(broker_name)
        if broker_name in self._outages:
            self.back(broker_name)

    def back(self, broker_name: str) -> None:
        self._answered.add(broker_name)
        self._outages.pop(broker_name, None)
        self._on_back(broker_name)

    def failed(self, broker_name: str, error: MqError) -> None:
        """Register the error of a call: as an outage, or as an answer of the broker."""
        if self.is_outage(broker_name, error):
            now_s = asyncio.get_running_loop().time()
            self._outages[broker_name] = _Outage(self.away_since_s(broker_name), now_s)
        elif error.code not in NOT_FROM_BROKER:
            self.answered(broker_name)
            if error.code in REFUSES_MESSAGES:
                self._refused_s[broker_name] = asyncio.get_running_loop().time()
