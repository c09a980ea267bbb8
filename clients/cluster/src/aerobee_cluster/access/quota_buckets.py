"""Count what callers use of their quotas, in this process.

Each quota of a caller has a token bucket for each rate, which holds 2 s of the rate. A call takes
its tokens at once and may leave the bucket with a debt, so that a request larger than a bucket is
possible. The next call waits until the debt is paid. So calls are served in their order, and a
caller gets its rate on average. Only sends are refused: a receive or another call waits for at most
WAIT_S. This module does no I/O.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from aerobee_wire.access.quotas import DEFAULT, KINDS, Quota, Rates
from aerobee_wire.access.table import AccessTable
from aerobee_wire.status import Code, MqError

BURST_S = 2.0
# A send that must wait longer is refused. SDKs give a call 3 s.
SEND_WAIT_S = 1.0
# Other calls are slowed by at most this time, and leave no greater debt: sends wait for it, too.
WAIT_S = 5.0
RECEIVED_S = 60.0  # the greatest debt of receives; one answer may take hours of a small rate
# Full buckets are then forgotten. If none is full, further callers without a quota of their own
# share one bucket for each rate of their kind. A bucket takes some 200 bytes.
MAX_BUCKETS = 100_000
# Callers with a longer name share these buckets too: the name of a bucket stays in memory.
LONGEST_NAME = 255
FORGET_S = 1.0  # between two looks for full buckets, which take some 20 ms


MAX_KNOWN = 1_024  # callers whose buckets are found by one look-up; one takes some 1 kB


class Client(NamedTuple):
    """Who makes a call: a name for each of KINDS, which is empty if it is unknown."""

    user: str
    client_id: str
    host: str


@lru_cache(maxsize=1_024)  # each call of a connection asks for it
def host_of_peer(peer: str) -> str:
    """Return the host of a "host:port", as quotas name it."""
    return peer.rpartition(":")[0].strip("[]")


# The tokens that a call takes from the buckets of a client, one amount for each of these places. A
# tuple with names takes 0.4 µs more for each call.
_PLACES = Rates.__slots__
assert _PLACES == ("calls", "messages_in", "bytes_in", "messages_out", "bytes_out")
_FIRST_OUT = _PLACES.index("messages_out")
_Amounts = tuple[int, int, int, int, int]
_ONE_CALL: _Amounts = (1, 0, 0, 0, 0)


class _Bucket:
    __slots__ = ("at_s", "rate", "tokens")

    def __init__(self, rate: int, now_s: float) -> None:
        self.rate = rate
        self.tokens = rate * BURST_S
        self.at_s = now_s

    def refill(self, rate: int, now_s: float) -> None:
        """Add the tokens since the last call. The quota may have changed to another rate."""
        full, tokens = rate * BURST_S, self.tokens + (now_s - self.at_s) * rate
        self.tokens = tokens if tokens < full else full
        self.rate, self.at_s = rate, now_s

    def spend(self, amount: int, rate: int, now_s: float) -> bool:
        """Refill the bucket and take tokens, or return False if it has a debt."""
        full, tokens = rate * BURST_S, self.tokens + (now_s - self.at_s) * rate
        tokens = tokens if tokens < full else full
        is_free = tokens >= 0
        self.tokens = tokens - amount if is_free else tokens
        self.rate, self.at_s = rate, now_s
        return is_free

    def take(self, amount: int, most_debt_s: float) -> None:
        """Take tokens. Afterwards the debt is at most `most_debt_s` of the rate, or as before."""
        least, tokens = -self.rate * most_debt_s, self.tokens - amount
        self.tokens = tokens if tokens >= least else min(self.tokens, least)

    def is_full(self, now_s: float) -> bool:
        return self.tokens + (now_s - self.at_s) * self.rate >= self.rate * BURST_S


class _Limit(NamedTuple):
    """A limited rate of a caller: its place in `_PLACES`, and the bucket that has its tokens."""

    place: int
    rate: int
    bucket: _Bucket
    quota: Quota


class QuotaBuckets:
    """The buckets of all callers of one process.

    `table` has the quotas. `now_s` is a monotonic clock.
    """

    def __init__(self, table: AccessTable, now_s: Callable[[], float]) -> None:
        self.refused = 0  # calls
        self.delayed = 0  # calls
        self._table = table
        self._now_s = now_s
        self._buckets: dict[tuple[str, str, int], _Bucket] = {}  # by kind, name and rate
        self._forgot_s: float | None = None  # when full buckets were forgotten
        # The limits of callers with buckets of their own, since the last change of a quota.
        self._known: dict[Client, list[_Limit]] = {}
        self._known_changes = table.quota_changes

    @property
    def active(self) -> bool:
        """Return whether there is a quota."""
        return self._table.has_quotas

    async def send(self, client: Client, messages: int, size: int) -> None:
        """Take the tokens of a send, and wait for them up to SEND_WAIT_S.

        Raises MqError with the code FLOW_CONTROL if the wait would be longer.
        """
        wait_s = self._take(client, (1, messages, size, 0, 0), sends=True)
        if wait_s:
            await asyncio.sleep(wait_s)

    async def call(self, client: Client, *, receives: bool = False) -> None:
        """Take the token of another call, and wait for it up to WAIT_S.

        If the call `receives` messages, it also waits for the debt of former receives.
        """
        wait_s = self._take(client, _ONE_CALL, receives=receives)
        if wait_s:
            await asyncio.sleep(wait_s)

    def received(self, client: Client, messages: int, size: int) -> None:
        """Take the tokens of messages that a client received. Later receives wait for them."""
        if not self.active or not messages:
            return
        amounts, now_s = (0, 0, 0, messages, size), self._now_s()
        for limit in self._limits_of(client, now_s):
            if limit.place >= _FIRST_OUT:
                limit.bucket.refill(limit.rate, now_s)
                limit.bucket.take(amounts[limit.place], RECEIVED_S)

    def _take(
        self, client: Client, amounts: _Amounts, *, sends: bool = False, receives: bool = False
    ) -> float:
        """Take these amounts. Return how long the call must wait for them, in seconds."""
        now_s = self._now_s()
        limits = self._limits_of(client, now_s)
        spent: list[_Limit] = []
        for limit in limits:
            place, rate, bucket, _ = limit
            amount = amounts[place]
            if amount or (receives and place >= _FIRST_OUT):
                if not bucket.spend(amount, rate, now_s):
                    break
                spent.append(limit)
        else:
            return 0.0
        for place, _, bucket, _ in spent:
            bucket.take(-amounts[place], math.inf)
        return self._take_in_debt(limits, amounts, now_s, sends=sends, receives=receives)

    def _take_in_debt(
        self,
        limits: list[_Limit],
        amounts: _Amounts,
        now_s: float,
        *,
        sends: bool,
        receives: bool,
    ) -> float:
        """Take amounts from buckets of which one has a debt. Return the wait as `_take`."""
        wait_s, reason = 0.0, None
        taken: list[tuple[_Bucket, int]] = []
        for limit in limits:
            place, rate, bucket, _ = limit
            amount = amounts[place]
            if not amount and not (receives and place >= _FIRST_OUT):
                continue
            bucket.refill(rate, now_s)
            taken.append((bucket, amount))
            if bucket.tokens < 0 and -bucket.tokens / rate > wait_s:
                wait_s, reason = -bucket.tokens / rate, limit
        if sends and reason is not None and wait_s > SEND_WAIT_S:
            self.refused += 1
            raise _over(reason, wait_s)
        for bucket, amount in taken:
            bucket.take(amount, math.inf if sends else WAIT_S)
        if wait_s:
            self.delayed += 1
        return min(wait_s, WAIT_S)

    def _limits_of(self, client: Client, now_s: float) -> list[_Limit]:
        """Return the limits of a client."""
        if self._known_changes != self._table.quota_changes:
            self._known.clear()
            self._known_changes = self._table.quota_changes
        known = self._known.get(client)
        if known is not None:
            return known
        found: dict[tuple[str, str, int], _Limit] = {}
        for kind, caller in zip(KINDS, client, strict=True):
            quota = self._table.quota_of(kind, caller) if caller else None
            if quota is None:
                continue
            for place, rate in _limited(quota.rates):
                bucket = self._bucket(quota, caller, place, rate, now_s)
                found[kind, caller, place] = _Limit(place, rate, bucket, quota)
        limits = list(found.values())
        is_own = all(self._buckets.get(key) is limit.bucket for key, limit in found.items())
        if is_own and max(map(len, client)) <= LONGEST_NAME:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[client] = limits
        return limits

    def _bucket(self, quota: Quota, caller: str, place: int, rate: int, now_s: float) -> _Bucket:
        bucket = self._buckets.get((quota.kind, caller, place))
        if bucket is None:
            # A caller chooses its client id, and may have many addresses. Other quotas are few.
            if quota.name == DEFAULT and (len(caller) > LONGEST_NAME or self._is_full(now_s)):
                caller = ""
            key = quota.kind, caller, place
            bucket = self._buckets.get(key) or self._buckets.setdefault(key, _Bucket(rate, now_s))
        return bucket

    def _is_full(self, now_s: float) -> bool:
        """Return whether there are too many buckets, after full ones were forgotten."""
        if len(self._buckets) < MAX_BUCKETS:
            return False
        if self._forgot_s is None or now_s - self._forgot_s >= FORGET_S:
            self._forgot_s = now_s
            self._buckets = {
                key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now_s)
            }
            self._known.clear()
        return len(self._buckets) >= MAX_BUCKETS


def _limited(rates: Rates) -> list[tuple[int, int]]:
    """Return the rates that are limited, with their places in `_PLACES`."""
    values = (getattr(rates, name) for name in _PLACES)
    return [(place, rate) for place, rate in enumerate(values) if rate]


def _over(limit: _Limit, wait_s: float) -> MqError:
    wait_ms, subject = round(wait_s * 1_000), limit.quota.subject
    name = _PLACES[limit.place].replace("_", " ")
    return MqError(
        Code.FLOW_CONTROL,
        f"the quota of {subject} allows {limit.rate} {name} a second: retry in {wait_ms} ms, or "
        f"ask for another quota ('aerobee quota set {subject}')",
        retry_after_ms=wait_ms,
        about=subject,
    )
