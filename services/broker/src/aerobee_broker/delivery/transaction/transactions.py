"""Stores half messages, and commits, rolls back or gives up each of them once.

The transactions that have not ended are in memory, without message bodies (`OpenTransactions`). A
commit appends the message, followed by an op record. After a crash, the message may be in the log
without the op record. A start finds such messages, and appends the op record (`TransactionUpkeep`).
A message is therefore neither lost nor committed twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.half_messages import QUEUE_ID, HalfMessage
from aerobee_broker.delivery.transaction.open_transactions import (
    CheckSchedule,
    Event,
    OpenTransactions,
    State,
    Transaction,
)
from aerobee_broker.delivery.transaction.recovery import MAX_COMMITS_AN_APPEND
from aerobee_broker.errors import (
    NoPermission,
    TopicNotExist,
    TransactionNotOpen,
    TransientReadError,
)
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import Appended, NewMessage
from aerobee_chassis.clock import Clock
from aerobee_wire import topics as names
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

# The size of the half messages that one append commits. The last one may exceed it.
BATCH_BYTES = 4 * 1024 * 1024


class Resolution(Enum):
    UNKNOWN = 0
    COMMIT = 1
    ROLLBACK = 2


@dataclass(frozen=True, slots=True)
class End:
    """A producer's request to end a transaction.

    `queue_offset` is the queue offset of the half message. If `producer_group` is not empty, it
    must be the group of the half message.
    """

    transaction_id: str
    queue_offset: int
    resolution: Resolution
    producer_group: str = ""


@dataclass(slots=True)
class _EndBatch:
    """The transactions that one append ends, and the messages that it commits."""

    transactions: list[Transaction] = field(default_factory=list)
    messages: list[NewMessage] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)  # positions of the ends in the request
    size: int = 0  # bytes of the half messages

    @property
    def is_full(self) -> bool:
        return self.size >= BATCH_BYTES or len(self.transactions) >= MAX_COMMITS_AN_APPEND


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    log: DurableLog
    table: OpenTransactions
    schedule: CheckSchedule
    topics: TopicRegistry
    router: DelayRouter
    metrics: BrokerMetrics
    clock: Clock

    def __len__(self) -> int:
        """Return the number of transactions that have not ended."""
        return len(self.table)

    def get(self, name: int) -> Transaction | None:
        """Return the transaction of a half message if it is in the state OPEN, or else None."""
        transaction = self.table.get(name)
        return transaction if transaction is not None and transaction.is_open else None

    def record(self, transaction: Transaction) -> Record:
        """Return the record of a transaction's half message.

        Raises MessageNotFound, MessageCorrupted, TransientReadError.
        """
        return self.log.store.get(transaction.physical_offset, transaction.size)

    def is_of_deleted(self, transaction: Transaction) -> bool:
        """Return whether the topic of a transaction was deleted after the transaction began.

        The result is also True if a topic with the same name was created later.
        """
        deleted_below = self.log.store.deleted_below(transaction.half.topic)
        return transaction.physical_offset < deleted_below

    def checked(self, name: int) -> None:
        """Count a check that was sent to a producer of a half message."""
        transaction = self.table.get(name)
        if transaction is not None:
            self.table.count_check(transaction)
            self.metrics.transaction_checked(transaction.half.topic)

    # ---- begin ----

    async def begin(
        self, messages: Sequence[NewMessage], properties: Sequence[Mapping[str, str]]
    ) -> list[Appended]:
        """Store half messages, and other messages of the same request. They are durable on return.

        `properties` has the decoded properties of each message. Raises the errors of
        DurableLog.put.

        A transaction is open as soon as its half message has an offset, because it may end before
        the half message is visible. If the append is rolled back, the transaction is removed. This
        happens even if the caller has stopped waiting, because the next half message gets the same
        name (queue offset).
        """
        now_ms = self.clock.now_ms()
        self.log.check_sends()
        places = self.log.store.append(messages)
        op_floor = self.log.store.max_offset(names.OP_HALF_TOPIC, QUEUE_ID)
        begun = [
            self.open(HalfMessage.stored(decoded, place.queue_offset, now_ms), place, op_floor)
            for message, decoded, place in zip(messages, properties, places, strict=True)
            if message.topic == names.HALF_TOPIC
        ]

        def flushed(error: BaseException | None) -> None:
            if error is not None:
                for transaction in begun:
                    transaction.advance(Event.HALF_LOST)
                    self.table.remove(transaction)

        self.log.when_flushed(flushed)
        await self.log.sent()
        return places

    def open(self, half: HalfMessage, appended: Appended, op_floor: int) -> Transaction:
        """Add a transaction whose half message is in the log, and schedule its checks."""
        transaction = self.table.add(half, appended, op_floor)
        self.schedule.opened(half)
        return transaction

    # ---- commit, roll back ----

    async def end(
        self, ends: Sequence[End], *, may_end: Callable[[str], bool] = lambda _: True
    ) -> list[MqError | None]:
        """Commit or roll back transactions, and return for each request None or its error.

        `may_end` returns whether the caller may end transactions of a topic.
        The ends of the transactions are durable on return. Raises the errors of the store.
        """
        named = (self.table.get(end.queue_offset) for end in ends)
        await self._until_readable(transaction for transaction in named if transaction)
        outcomes: list[MqError | None] = [None] * len(ends)
        appended = False
        batch = _EndBatch()
        for index, end in enumerate(ends):
            try:
                self._add_end(batch, index, end, may_end)
            except MqError as error:
                outcomes[index] = error
            if batch.is_full:
                appended |= self._append_batch(batch, outcomes)
                batch = _EndBatch()
        appended |= self._append_batch(batch, outcomes)
        if appended:
            committed = any(end.resolution is Resolution.COMMIT for end in ends)
            await (self.log.sent() if committed else self.log.settled())
        return outcomes

    def _add_end(
        self, batch: _EndBatch, index: int, end: End, may_end: Callable[[str], bool]
    ) -> None:
        """Add a request to the batch. Raises MqError if its transaction cannot be ended."""
        transaction = self.get(end.queue_offset)
        if (
            transaction is None
            or transaction.half.transaction_id != end.transaction_id
            or end.producer_group not in ("", transaction.half.producer_group)
        ):
            raise TransactionNotOpen(end.transaction_id)
        if not may_end(transaction.half.topic):
            raise NoPermission(
                f"the user lacks Pub on topic {transaction.half.topic!r}, so it cannot end its "
                "transactions: ask an administrator for a policy",
                transaction.half.topic,
            )
        if end.resolution is Resolution.UNKNOWN:
            return
        if end.resolution is Resolution.COMMIT:
            self.log.check_replicas()  # the stored message belongs to a producer
            message, properties = half_messages.committed(
                self.record(transaction), transaction.name
            )
            config = self.topics.table.get(message.topic)
            if config is None or self.is_of_deleted(transaction):
                raise TopicNotExist(message.topic)
            message.queue_id = config.readable_queue(message.queue_id)
            batch.messages.append(self.router.route(message, properties) or message)
            batch.size += transaction.size
            transaction.advance(Event.COMMIT)
        else:
            transaction.advance(Event.ROLL_BACK)
        batch.transactions.append(transaction)
        batch.indexes.append(index)

    def _append_batch(self, batch: _EndBatch, outcomes: list[MqError | None]) -> bool:
        """Append a batch, and return whether it was appended.

        If the log rejects the batch, sets the outcomes of its requests to the error.
        """
        if not batch.transactions:
            return False
        try:
            self.append_end(batch.transactions, batch.messages)
        except MqError as error:
            for index in batch.indexes:
                outcomes[index] = error
            return False
        return True

    def append_end(
        self, transactions: Sequence[Transaction], messages: Sequence[NewMessage] = ()
    ) -> None:
        """Append committed messages, followed by the op record that ends their transactions.

        The state of each transaction defines how it ends. The transactions are removed when the
        append is flushed. If this raises an error of MessageStore.append, the states are restored.
        """
        try:
            self.log.store.append([*messages, self._ended_record(transactions)], reserve=True)
        except MqError:
            _advance(transactions, Event.LOST)
            raise
        self.log.when_flushed(lambda error: self._finish_when_flushed(transactions, error))

    def _finish_when_flushed(
        self, transactions: Sequence[Transaction], error: BaseException | None
    ) -> None:
        """Remove ended transactions after the flush, or restore their states if it failed.

        This does not depend on the callers of `end`, which may have stopped waiting.
        """
        if error is None:
            self._finish(transactions)
            return
        _advance(transactions, Event.LOST)
        for transaction in transactions:
            if transaction.is_open:
                self.schedule.opened(transaction.half)

    def _finish(self, transactions: Sequence[Transaction]) -> None:
        _advance(transactions, Event.FLUSHED)
        for transaction in transactions:
            self.table.remove(transaction)
            topic, state = transaction.half.topic, transaction.state
            if state is State.GIVEN_UP:
                self.metrics.transaction_given_up(topic)
            else:
                self.metrics.transaction_ended(
                    topic,
                    committed=state is State.COMMITTED,
                    age_ms=self.schedule.age_ms(transaction.half),
                )

    def _ended_record(self, transactions: Sequence[Transaction]) -> NewMessage:
        ended = (transaction.name for transaction in transactions)
        return half_messages.ended_record(ended, self.clock.now_ms())

    async def _until_readable(self, transactions: Iterable[Transaction]) -> None:
        """Wait until the half messages of transactions can be read.

        With asynchronous flush, a half message is acknowledged before it can be read.
        """
        end_offset = max((transaction.end_offset for transaction in transactions), default=0)
        if end_offset > self.log.store.confirmed_offset:
            await self.log.visible(end_offset)

    # ---- give up ----

    async def give_up(self, transactions: Sequence[Transaction]) -> None:
        """Move half messages to TRANS_CHECK_MAX_TIME_TOPIC. The move is durable on return.

        Half messages that cannot be read are lost, and an error is logged. If this raises an error
        of the store, the transactions stay open.
        """
        await self._until_readable(transactions)
        # Some may have ended in the meantime.
        transactions = [each for each in transactions if self.get(each.name) is each]
        if not transactions:
            return
        messages = []
        lost: list[tuple[Transaction, str]] = []
        for transaction in transactions:
            try:
                record = self.record(transaction)
            except TransientReadError:
                raise
            except MqError as error:
                lost.append((transaction, error.message))
            else:
                messages.append(half_messages.given_up(record, transaction.half.checks))
        _advance(transactions, Event.GIVE_UP)
        try:
            await self.log.put_accepted([*messages, self._ended_record(transactions)])
        except MqError:
            _advance(transactions, Event.LOST)
            raise
        self._finish(transactions)
        log = structlog.get_logger()
        for transaction, reason in lost:
            log.error("half_message_lost", **log_fields(transaction), reason=reason)
        for transaction in transactions:
            log.warning("half_message_given_up", **log_fields(transaction))


def _advance(transactions: Iterable[Transaction], event: Event) -> None:
    for transaction in transactions:
        transaction.advance(event)


def log_fields(transaction: Transaction) -> dict[str, object]:
    half = transaction.half
    return {
        "topic": half.topic,
        "producer_group": half.producer_group,
        "transaction_id": half.transaction_id,
        "checks": half.checks,
        "physical_offset": transaction.physical_offset,
    }
