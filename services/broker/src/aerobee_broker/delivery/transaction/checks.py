"""Check-back: asks producers what became of the half messages that nobody ended.

A half message is due after transactionTimeOut, or after its own time of immunity, then every
transactionCheckInterval. One live producer of its group is asked, another one each time. While
there is none it waits and is not counted as asked. After transactionCheckMax times without an
answer, or when it is older than messages are kept, it is given up: moved to
TRANS_CHECK_MAX_TIME_TOPIC, with a line in the log.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.open_transactions import Open
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.errors import StoreShort
from aerobee_broker.registry.clients import Clients, Watch
from aerobee_chassis.clock import Clock
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

BATCH = 256  # that are given up at once
SLICE = 500  # that are looked at in one turn of the loop: some milliseconds
RETRY_AFTER_FAILURE_MS = 10_000  # a full or broken disk is not mended by asking often
RETRY_BUSY_MS = 1_000
SLACK = 4_096


@dataclass(frozen=True, slots=True)
class Check:
    """What a producer is asked: the record of the half message, and what a commit would make of
    it."""

    producer_group: str
    transaction_id: str
    queue_offset: int
    check_number: int
    record: Record
    topic: str
    queue_id: int
    sys_flag: int
    properties: dict[str, str]


class TransactionChecks:
    def __init__(
        self,
        transactions: Transactions,
        clients: Clients,
        clock: Clock,
        *,
        timeout_ms: int,
        interval_ms: int,
        most: int,
        reserved_ms: int,
    ) -> None:
        self._transactions = transactions
        self._clients = clients
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._interval_ms = interval_ms
        self._most = most
        self._reserved_ms = reserved_ms
        # Heap of (time of the clock that only goes forward, name), some out of date.
        self._due: list[tuple[int, int]] = []
        self._times: dict[int, tuple[int, str]] = {}  # name → the time that holds, producer group
        self._waiting: dict[str, set[int]] = {}  # producer group without a producer → names
        self._turns: dict[str, int] = {}
        transactions.on_open = self._opened

    def _opened(self, one: Open) -> None:
        first_ms = self._timeout_ms if one.half.immunity_ms is None else one.half.immunity_ms
        age = self._clock.now_ms() - one.half.stored_ms  # below 0: the clock was set back
        self._put(one.name, one.half.producer_group, first_ms - max(0, age))

    def _put(self, name: int, group: str, in_ms: int) -> None:
        at = self._clock.monotonic_ms() + max(0, in_ms)
        self._times[name] = at, group
        heapq.heappush(self._due, (at, name))

    def _forget_ended(self) -> None:
        """What ended long before its time comes; now and then, when it is more than what is open.
        Times may be days away."""
        transactions = self._transactions
        most = 2 * len(transactions) + SLACK
        if len(self._due) <= most and len(self._turns) <= most:
            return
        self._times = {
            name: known for name, known in self._times.items() if transactions.get(name) is not None
        }
        self._due = [(at, name) for name, (at, _) in self._times.items()]
        heapq.heapify(self._due)
        groups = {group for _, group in self._times.values()}
        self._turns = {group: turn for group, turn in self._turns.items() if group in groups}
        waiting = {group: self._times.keys() & held for group, held in self._waiting.items()}
        self._waiting = {group: held for group, held in waiting.items() if held}

    # ---- every second ----

    async def round(self) -> None:
        """Asks about what is due, and gives up what was asked about often enough."""
        self._forget_ended()
        hopeless: list[Open] = []
        live: dict[str, list[Watch]] | None = None
        if self._waiting:
            live = self._clients.producers()
            for group in self._waiting.keys() & live.keys():
                for name in self._waiting.pop(group):
                    self._put(name, group, 0)
        now = self._clock.monotonic_ms()
        looked = 0
        while self._due and self._due[0][0] <= now:
            looked += 1
            if looked % SLICE == 0:
                await asyncio.sleep(0)
                live = None
            at, name = heapq.heappop(self._due)
            known, group = self._times.get(name, (0, ""))
            if known != at:
                continue
            del self._times[name]
            if group in self._waiting:
                self._waiting[group].discard(name)
            one = self._transactions.get(name)
            if one is None:
                continue
            if self._is_hopeless(one):
                hopeless.append(one)
                continue
            live = self._clients.producers() if live is None else live
            self._ask(one, live.get(one.half.producer_group, ()))
        for start in range(0, len(hopeless), BATCH):
            await self._give_up(hopeless[start : start + BATCH])

    def _is_hopeless(self, one: Open) -> bool:
        age = self._clock.now_ms() - one.half.stored_ms
        return one.half.checks >= self._most or age >= self._reserved_ms

    def _ask(self, one: Open, producers: Sequence[Watch]) -> None:
        group = one.half.producer_group
        if not producers:
            # It is looked at again when a producer comes, or when its time is over.
            self._waiting.setdefault(group, set()).add(one.name)
            age = max(0, self._clock.now_ms() - one.half.stored_ms)
            self._put(one.name, group, self._reserved_ms - age)
            return
        turn = self._turns[group] = self._turns.get(group, -1) + 1
        for step in range(len(producers)):
            if producers[(turn + step) % len(producers)].check(one.name):
                self._put(one.name, group, self._interval_ms)
                return
        self._put(one.name, group, RETRY_BUSY_MS)

    async def _give_up(self, halves: Sequence[Open]) -> None:
        # Meanwhile some may have been ended.
        halves = [one for one in halves if self._transactions.get(one.name) is one]
        if not halves:
            return
        try:
            await self._transactions.give_up(halves)
        except MqError as error:
            structlog.get_logger().error("half_messages_not_given_up", reason=error.message)
            for one in halves:
                self._put(one.name, one.half.producer_group, RETRY_AFTER_FAILURE_MS)

    # ---- on the way to a producer ----

    def check(self, name: int) -> Check | None:
        """What to ask about a half message; None when there is nothing to ask any more."""
        one = self._transactions.get(name)
        if one is None:
            return None
        try:
            record = self._transactions.record(one)
            message, properties = half_messages.committed(record, name)
        except MqError as error:
            structlog.get_logger().error("half_message_not_asked_about", reason=error.message)
            if not isinstance(error, StoreShort):
                self.asked(name)  # or it would never be given up
            return None
        half = one.half
        return Check(
            half.producer_group,
            half.transaction_id,
            name,
            half.checks + 1,
            record,
            message.topic,
            message.queue_id,
            message.sys_flag,
            properties,
        )

    def asked(self, name: int) -> None:
        """The question has left."""
        self._transactions.asked(name)
