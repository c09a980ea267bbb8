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
from collections.abc import Callable, Mapping
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


class Client(NamedTuple):
    """Who makes a call: a name for each of KINDS, which is empty if it is unknown."""

    user: str
    client_id: str
    host: str


class _Bucket:
    __slots__ = ("at_s", "rate", "tokens")

    def __init__(self, rate: int, now_s: float) -> None:
        self.rate = rate
        self.tokens = rate * BURST_S
        self.at_s = now_s

    def refill(self, rate: int, now_s: float) -> None:
        """Add the tokens since the last call. The quota may have changed to another rate."""
        full = rate * BURST_S
        self.tokens = min(full, self.tokens + (now_s - self.at_s) * rate)
        self.rate, self.at_s = rate, now_s

    def take(self, amount: int, most_debt_s: float) -> None:
        """Take tokens. Afterwards the debt is at most `most_debt_s` of the rate, or as before."""
        least = min(self.tokens, -self.rate * most_debt_s)
        self.tokens = max(least, self.tokens - amount)

    def is_full(self, now_s: float) -> bool:
        return self.tokens + (now_s - self.at_s) * self.rate >= self.rate * BURST_S


class QuotaBuckets:
    """The buckets of all callers of one process.

    `table` has the quotas. `now_s` is a monotonic clock.
    """

    def __init__(self, table: AccessTable, now_s: Callable[[], float]) -> None:
        self.refused = 0  # calls
        self.delayed = 0  # calls
        self._table = table
        self._now_s = now_s
        self._buckets: dict[tuple[str, str, str], _Bucket] = {}  # by kind, name and rate
        self._forgot_s: float | None = None  # when full buckets were forgotten

    @property
    def active(self) -> bool:
        """Return whether there is a quota."""
        return self._table.has_quotas

    async def send(self, client: Client, messages: int, size: int) -> None:
        """Take the tokens of a send, and wait for them up to SEND_WAIT_S.

        Raises MqError with the code FLOW_CONTROL if the wait would be longer.
        """
        amounts = {"calls": 1, "messages_in": messages, "bytes_in": size}
        await self._take(client, amounts, sends=True)

    async def call(self, client: Client, *, receives: bool = False) -> None:
        """Take the token of another call, and wait for it up to WAIT_S.

        If the call `receives` messages, it also waits for the debt of former receives.
        """
        await self._take(client, {"calls": 1}, receives=receives)

    def received(self, client: Client, messages: int, size: int) -> None:
        """Take the tokens of messages that a client received. Later receives wait for them."""
        if not self.active or not messages:
            return
        now_s = self._now_s()
        for _, bucket, name in self._of(client, now_s):
            if name == "messages_out":
                bucket.take(messages, RECEIVED_S)
            elif name == "bytes_out":
                bucket.take(size, RECEIVED_S)

    async def _take(
        self,
        client: Client,
        amounts: Mapping[str, int],
        *,
        sends: bool = False,
        receives: bool = False,
    ) -> None:
        """Take these amounts, by the names of rates, and wait for them."""
        if not self.active:
            return
        now_s = self._now_s()
        taken: list[tuple[_Bucket, int]] = []
        wait_s, reason = 0.0, None
        for quota, bucket, name in self._of(client, now_s):
            amount = amounts.get(name, 0)
            if not amount and not (receives and name.endswith("_out")):
                continue
            taken.append((bucket, amount))
            if bucket.tokens < 0 and -bucket.tokens / bucket.rate > wait_s:
                wait_s, reason = -bucket.tokens / bucket.rate, (quota, name)
        if sends and reason is not None and wait_s > SEND_WAIT_S:
            self.refused += 1
            raise _over(*reason, wait_s)
        for bucket, amount in taken:
            bucket.take(amount, math.inf if sends else WAIT_S)
        if wait_s:
            self.delayed += 1
            await asyncio.sleep(min(wait_s, WAIT_S))

    def _of(self, client: Client, now_s: float) -> list[tuple[Quota, _Bucket, str]]:
        """Return (quota, bucket, name of the rate) for each rate that limits a client.

        The buckets are refilled.
        """
        found = []
        for kind, caller in zip(KINDS, client, strict=True):
            if caller and (quota := self._table.quota_of(kind, caller)) is not None:
                found += [
                    (quota, self._bucket(quota, caller, name, rate, now_s), name)
                    for name, rate in _limited(quota.rates)
                ]
        return found

    def _bucket(self, quota: Quota, caller: str, name: str, rate: int, now_s: float) -> _Bucket:
        bucket = self._buckets.get((quota.kind, caller, name))
        if bucket is None:
            # A caller chooses its client id, and may have many addresses. Other quotas are few.
            if quota.name == DEFAULT and (len(caller) > LONGEST_NAME or self._is_full(now_s)):
                caller = ""
            key = quota.kind, caller, name
            bucket = self._buckets.get(key) or self._buckets.setdefault(key, _Bucket(rate, now_s))
        bucket.refill(rate, now_s)
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
        return len(self._buckets) >= MAX_BUCKETS


@lru_cache(maxsize=1_024)  # each call asks for those of its quotas
def _limited(rates: Rates) -> tuple[tuple[str, int], ...]:
    """Return the rates that are limited, with their names."""
    values = ((name, getattr(rates, name)) for name in Rates.__slots__)
    return tuple((name, rate) for name, rate in values if rate)


def _over(quota: Quota, name: str, wait_s: float) -> MqError:
    wait_ms = round(wait_s * 1_000)
    rate = getattr(quota.rates, name)
    return MqError(
        Code.FLOW_CONTROL,
        f"the quota of {quota.subject} allows {rate} {name.replace('_', ' ')} a second: retry in "
        f"{wait_ms} ms, or ask for another quota ('aerobee quota set {quota.subject}')",
        retry_after_ms=wait_ms,
        about=quota.subject,
    )
