"""Ask the brokers for one page, and record which of them did not answer.

A page never hides a broker. The result of a page names each broker that did not answer, each broker
without a master, and each broker that this process has seen and that is no longer registered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.descriptions import BrokerDescription, ClusterDescription
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import MqError

T = TypeVar("T")

# A broker that is not registered any more stays on the pages for a day: an operator who comes at
# night must see that it is missing.
REMEMBERED_MS = 24 * 3_600_000
PAGE_ROWS = 100


@dataclass(frozen=True, slots=True)
class Silent:
    """A broker that did not answer. `reason` is a sentence for the operator."""

    broker_name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Base class of results.

    `silent` are the brokers whose data is missing. `asked_at_ms` is when the brokers were asked, in
    milliseconds since the epoch.
    """

    asked_at_ms: int
    silent: tuple[Silent, ...]

    @property
    def complete(self) -> bool:
        """True if every broker answered. Otherwise, sums are lower bounds."""
        return not self.silent


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing(Answer):
    """Base class of results with a page of rows out of `total` rows."""

    page: int
    pages: int
    total: int


class Source:
    """The cluster that the console shows.

    Args:
        admin: The client that asks.
        namesrvs: The addresses of the name servers.
        now_ms: The clock, in milliseconds since the epoch.
    """

    def __init__(
        self, admin: AsyncAdminClient, namesrvs: Sequence[str], now_ms: Callable[[], int]
    ) -> None:
        self.admin = admin
        self.namesrvs = tuple(namesrvs)
        self.now_ms = now_ms
        self._last_seen_ms: dict[str, int] = {}

    async def ask(self) -> Asking:
        """Begin to ask for a page. Raises MqError if no name server answers."""
        cluster = await self.admin.cluster()
        now_ms = self.now_ms()
        return Asking(now_ms, cluster, self._missing(cluster, now_ms))

    def _missing(self, cluster: ClusterDescription, now_ms: int) -> list[Silent]:
        registered = {broker.broker_name for broker in cluster.brokers}
        self._last_seen_ms |= dict.fromkeys(registered, now_ms)
        self._last_seen_ms = {
            name: at_ms
            for name, at_ms in self._last_seen_ms.items()
            if now_ms - at_ms < REMEMBERED_MS
        }
        gone = [
            Silent(
                name,
                f"not registered any more, last seen {_clock(at_ms)}: if it was removed on "
                "purpose, restart the console",
            )
            for name, at_ms in self._last_seen_ms.items()
            if name not in registered
        ]
        return gone + [
            Silent(broker.broker_name, "has no master: see its replicas on the page Brokers")
            for broker in cluster.brokers
            if MASTER_ID not in broker.addresses
        ]


class Asking:
    """The questions of one page, and the brokers that did not answer one of them."""

    def __init__(self, now_ms: int, cluster: ClusterDescription, missing: Iterable[Silent]) -> None:
        self.at_ms = now_ms
        self.cluster = cluster
        self._silent = {each.broker_name: each for each in missing}

    @property
    def masters(self) -> Mapping[str, str]:
        """The addresses of the masters, by broker name."""
        return {
            broker.broker_name: broker.addresses[MASTER_ID]
            for broker in self.cluster.brokers
            if MASTER_ID in broker.addresses
        }

    @property
    def brokers(self) -> Sequence[BrokerDescription]:
        return self.cluster.brokers

    @property
    def silent(self) -> tuple[Silent, ...]:
        return tuple(self._silent[name] for name in sorted(self._silent))

    async def of(self, call: Callable[[list[MqError]], Awaitable[T]]) -> T | None:
        """Return the result of `call`, or None if no broker answered.

        `call` gets a list for the errors of brokers that do not answer. Raises MqError for other
        errors, such as the refusal of all brokers.
        """
        if not self.masters:
            return None
        errors: list[MqError] = []
        try:
            return await call(errors)
        except MqError as error:
            if error not in errors:
                raise
            return None
        finally:
            for each in errors:
                self._silent.setdefault(each.broker_name, Silent(each.broker_name, each.message))


async def gathered(*calls: Awaitable[T]) -> list[T]:
    """Wait for all calls, also if one fails, and return their results or raise the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    found: list[T] = []
    for each in results:
        if isinstance(each, BaseException):
            raise each
        found.append(each)
    return found


def page_of(rows: Sequence[T], page: int) -> tuple[list[T], int, int]:
    """Return the rows of a page, the number of the page within bounds, and the number of pages."""
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    page = min(page, pages)
    return list(rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]), page, pages


def _clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
