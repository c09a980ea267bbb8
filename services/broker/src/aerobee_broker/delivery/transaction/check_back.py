"""Check-back: asks producers about transactions that have not ended.

The first check of a half message is due after transactionTimeOut, or after the message's own
immunity time. The next checks are due every transactionCheckInterval. Each check goes to another
live producer of the group, in turn. While the group has no live producers, the half message waits,
and no check is counted. After transactionCheckMax checks, or at the age of fileReservedTime, the
half message is moved to TRANS_CHECK_MAX_TIME_TOPIC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.half_messages import HalfMessage
from aerobee_broker.delivery.transaction.open_transactions import SLACK, CheckSchedule, Transaction
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.errors import TransientReadError
from aerobee_broker.registry.clients import Clients, Watch
from aerobee_broker.store.messages import NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

GIVE_UP_BATCH = 256
DUE_BATCH = 500  # checks before yielding to the event loop: a few milliseconds
RETRY_AFTER_FAILURE_MS = 10_000  # frequent retries do not help a full or broken disk
RETRY_BUSY_MS = 1_000


@dataclass(frozen=True, slots=True)
class Check:
    """A check of a transaction: the half message, and the message that a commit would store."""

    half: HalfMessage
    record: Record
    committed: NewMessage
    properties: dict[str, str]  # of the committed message

    @property
    def number(self) -> int:
        """Return the number of the check, starting at 1."""
        return self.half.checks + 1


@dataclass(slots=True, kw_only=True, eq=False)
class TransactionChecks:
    """Sends the checks that are due to producers.

    The options are `interval_ms` (transactionCheckInterval), `max_checks` (transactionCheckMax) and
    `reserved_ms` (fileReservedTime).
    """

    transactions: Transactions
    schedule: CheckSchedule
    clients: Clients
    clock: Clock
    interval_ms: int
    max_checks: int
    reserved_ms: int
    # Producer group → number of its checks. It selects the producer to ask next.
    _turns: dict[str, int] = field(default_factory=dict, init=False)

    def use(self, *, interval_ms: int, max_checks: int, reserved_ms: int) -> None:
        """Use other options, for checks that are sent from now on."""
        self.interval_ms, self.max_checks = interval_ms, max_checks
        self.reserved_ms = reserved_ms

    # ---- every second ----

    async def round(self) -> None:
        """Ask producers about the half messages that are due. Called every second.

        Half messages that had all their checks or are too old are moved to
        TRANS_CHECK_MAX_TIME_TOPIC.
        """
        self._forget_ended()
        absent = self.schedule.groups_without_producer
        if absent:
            self.schedule.producers_connected(absent & self.clients.producers().keys())
        hopeless: list[Transaction] = []
        now = self.clock.monotonic_ms()
        while self.schedule.has_due(now):
            producers = self.clients.producers()
            for name in self.schedule.take_due(now, DUE_BATCH):
                transaction = self.transactions.get(name)
                if transaction is None:
                    continue
                if self._is_hopeless(transaction):
                    hopeless.append(transaction)
                else:
                    self._ask(transaction, producers.get(transaction.half.producer_group, ()))
            await asyncio.sleep(0)
        for start in range(0, len(hopeless), GIVE_UP_BATCH):
            await self._give_up(hopeless[start : start + GIVE_UP_BATCH])

    def _forget_ended(self) -> None:
        count = len(self.transactions)
        if self.schedule.is_crowded(count) or len(self._turns) > 2 * count + SLACK:
            self.schedule.keep_only(self.transactions.table.names())
            groups = self.schedule.groups
            self._turns = {group: turn for group, turn in self._turns.items() if group in groups}

    def _is_hopeless(self, transaction: Transaction) -> bool:
        old = self.schedule.age_ms(transaction.half) >= self.reserved_ms
        return old or transaction.half.checks >= self.max_checks

    def _ask(self, transaction: Transaction, producers: Sequence[Watch]) -> None:
        half = transaction.half
        producers = [each for each in producers if each.may_end(half.topic)]
        if not producers:
            left_ms = self.reserved_ms - self.schedule.age_ms(half)
            self.schedule.put_without_producer(half, left_ms)
            return
        turn = self._turns[half.producer_group] = self._turns.get(half.producer_group, -1) + 1
        for step in range(len(producers)):
            if producers[(turn + step) % len(producers)].check(half.name):
                self.schedule.put(half, self.interval_ms)
                return
        self.schedule.put(half, RETRY_BUSY_MS)

    async def _give_up(self, hopeless: Sequence[Transaction]) -> None:
        try:
            await self.transactions.give_up(hopeless)
        except MqError as error:
            structlog.get_logger().error("half_messages_not_given_up", reason=error.message)
            for transaction in hopeless:
                if transaction.is_open:  # some have ended in the meantime
                    self.schedule.put(transaction.half, RETRY_AFTER_FAILURE_MS)

    # ---- requests to a producer ----

    def check(self, name: int) -> Check | None:
        """Return the check to send for a half message.

        Returns None if its transaction is not open, or the half message cannot be read now.
        """
        transaction = self.transactions.get(name)
        if transaction is None:
            return None
        try:
            record = self.transactions.record(transaction)
            message, properties = half_messages.committed(record, name)
        except MqError as error:
            structlog.get_logger().error("half_message_not_asked_about", reason=error.message)
            if not isinstance(error, TransientReadError):
                self.asked(name)  # a damaged half message is given up after its checks
            return None
        return Check(transaction.half, record, message, properties)

    def asked(self, name: int) -> None:
        """Count a check of a half message after it was sent to a producer."""
        self.transactions.checked(name)
