"""Ask the brokers for one page, and record which of them did not answer.

A page never hides a broker. The result of a page names each broker that did not answer, each broker
without a master, and each broker that has left the name server without being drained.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.descriptions import BrokerDescription, ClusterDescription
from aerobee_console.masking import NO_MASK, Mask
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import Code, MqError

T = TypeVar("T")


class Merged(Protocol):
    """A result of several brokers.

    `unanswered` has the reason for each broker that did not answer, by broker name.
    """

    @property
    def unanswered(self) -> Mapping[str, str]: ...


M = TypeVar("M", bound=Merged)

PAGE_ROWS = 100
NOT_REGISTERED = (
    "it is not registered any more: start it again, or drain a broker before you remove it"
)
WITHOUT_MASTER = "it has no master at the moment: see its replicas on its page"
# Errors that say nothing about the thing that was asked for.
NO_ANSWER = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.REQUEST_TIMEOUT,
        Code.SERVICE_NOT_AVAILABLE,
        Code.REQUEST_CODE_NOT_SUPPORTED,
    }
)


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
    """Base class of results with a page of rows out of `total` rows; None if that is unknown."""

    page: int
    pages: int
    total: int | None


class Source:
    """The cluster that the console shows.

    Args:
        admin: The client that asks.
        namesrvs: The addresses of the name servers.
        now_ms: The clock, in milliseconds since the epoch.
        mask: What to mask in messages.
    """

    def __init__(
        self,
        admin: AsyncAdminClient,
        namesrvs: Sequence[str],
        now_ms: Callable[[], int],
        mask: Mask = NO_MASK,
    ) -> None:
        self.mask = mask
        self.admin = admin
        self.namesrvs = tuple(namesrvs)
        self.now_ms = now_ms

    async def ask(self) -> Asking:
        """Begin to ask for a page. Raises MqError if no name server answers."""
        return Asking(self.now_ms(), await self.admin.cluster())


class Asking:
    """The questions of one page, and the brokers that did not answer one of them."""

    def __init__(self, now_ms: int, cluster: ClusterDescription) -> None:
        self.at_ms = now_ms
        self.cluster = cluster
        self._silent = {name: Silent(name, NOT_REGISTERED) for name in cluster.away} | {
            broker.broker_name: Silent(broker.broker_name, WITHOUT_MASTER)
            for broker in cluster.brokers
            if MASTER_ID not in broker.addresses
        }

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

    async def of(
        self, call: Callable[[list[MqError]], Awaitable[T]], *, of_replicas: bool = False
    ) -> T | None:
        """Return the result of `call`, or None if no broker answered.

        Raises MqError for other errors, such as the lack of a permission.

        Args:
            call: Asks masters. It gets a list for the errors of brokers that do not answer.
            of_replicas: Whether `call` also asks replicas of brokers without a master.
        """
        if not self.masters and not of_replicas:
            return None
        errors: list[MqError] = []
        try:
            found = await call(errors)
        except MqError as error:
            self._note(errors)
            if error not in errors:
                raise
            return None
        self._note(errors)
        return found

    def _note(self, errors: Sequence[MqError]) -> None:
        for each in errors:
            if each.code is Code.NO_PERMISSION:  # the broker did answer
                raise each
            self._silent.setdefault(each.broker_name, Silent(each.broker_name, each.message))

    async def merged(self, call: Callable[[], Awaitable[M]]) -> M | None:
        """Return a result that names the brokers that did not answer, or None if none answered.

        Raises MqError for other errors, such as the refusal of all brokers.
        """
        if not self.masters:
            return None
        try:
            found = await call()
        except MqError as error:
            if error.code not in NO_ANSWER:
                raise
            for name in self.masters:
                reason = error.message if name == error.broker_name else "it did not answer either"
                self._silent.setdefault(name, Silent(name, reason))
            return None
        for name, reason in found.unanswered.items():
            self._silent.setdefault(name, Silent(name, reason))
        return found


async def gathered(*calls: Awaitable[T]) -> list[T]:
    """Wait for all calls, also if one fails, and return their results or raise the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    found: list[T] = []
    for each in results:
        if isinstance(each, BaseException):
            raise each
        found.append(each)
    return found


def sum_of(parts: Iterable[Any], name: str) -> Any:
    """Return the sum of a figure of brokers, or None if no broker knows it.

    If a broker did not answer, it is a lower bound.
    """
    values = [getattr(part, name) for part in parts]
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def most_of(parts: Iterable[Any], name: str) -> Any:
    """Return the highest value of a figure that every broker knows as a whole, or None."""
    known = [value for part in parts if (value := getattr(part, name)) is not None]
    return max(known, default=None)


def pages_of(total: int | None, page: int, rows: int) -> int:
    """Return the number of pages. If `total` is unknown, a full page has a next one."""
    if total is None:
        return page + 1 if rows == PAGE_ROWS else page
    return max(1, -(-total // PAGE_ROWS))


def page_of(rows: Sequence[T], page: int) -> tuple[list[T], int, int]:
    """Return the rows of a page, the number of the page within bounds, and the number of pages."""
    pages = max(1, -(-len(rows) // PAGE_ROWS))
    page = min(page, pages)
    return list(rows[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]), page, pages
