"""Transactions: half messages are kept, and ended once: committed, rolled back or given up.

In memory are the open ones only, without their bodies. A commit appends the message and an op
record behind it, together. A crash may tear the append: then the op record is not there, and the
messages before it may be. They are the last ones of their queues, so a start finds them and writes
the op record that is missing: what was committed is neither lost nor committed twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.transaction import half_messages
from aerobee_broker.delivery.transaction.check_schedule import CheckSchedule
from aerobee_broker.delivery.transaction.half_messages import GROUP, QUEUE_ID, Half
from aerobee_broker.delivery.transaction.open_transactions import Open, OpenTransactions
from aerobee_broker.delivery.transaction.recovery import (
    LAST_MESSAGES,
    find_open,
    find_torn_commits,
)
from aerobee_broker.errors import StoreShort, TopicNotExist, TransactionNotOpen
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metrics import Meters
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import Appended, NewMessage
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire import topics as names
from aerobee_wire.record import Record
from aerobee_wire.status import MqError

BATCH_BYTES = 4 * 1024 * 1024  # of half messages in one append, and one more
BATCH_MESSAGES = LAST_MESSAGES  # so that a start finds all of a torn append
# A half message is copied forward once so much of log lies behind it, so that a start reads little.
MOVE_BEHIND_BYTES = 256 * 1024 * 1024
MOVE_BEHIND_TIMES = 4  # … and so many times the bytes of all open ones, so that it comes to an end
ASKED_A_RECORD = 10_000  # after a broken disk there may be more than one record holds
_TOPICS = (names.HALF_TOPIC, names.OP_HALF_TOPIC)


class Resolution(Enum):
    UNKNOWN = 0
    COMMIT = 1
    ROLLBACK = 2


@dataclass(frozen=True, slots=True)
class End:
    """What a producer says of a transaction. `producer_group` empty: it is not compared."""

    transaction_id: str
    queue_offset: int
    resolution: Resolution
    producer_group: str = ""


@dataclass(slots=True)
class _Batch:
    """What goes into one append: messages, and the half messages that end with it."""

    messages: list[NewMessage] = field(default_factory=list)
    ended: list[Open] = field(default_factory=list)
    resolutions: list[Resolution] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)  # in the request
    size: int = 0
    torn: bool = False  # the messages are there already


class Transactions(Component):
    def __init__(
        self,
        *,
        log: DurableLog,
        topics: TopicRegistry,
        offsets: ConsumerOffsets,
        router: DelayRouter,
        schedule: CheckSchedule,
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._log = log
        self._store = log.store
        self._topics = topics
        self._offsets = offsets
        self._router = router
        self._schedule = schedule
        self._meters = meters
        self._clock = clock
        self._open = OpenTransactions()
        self._asked: dict[int, int] = {}  # name → times, not written down yet
        self._torn: list[Open] = []  # committed, and their op record is still missing

    def __len__(self) -> int:
        return len(self._open)

    def get(self, name: int) -> Open | None:
        """The half message of this name, while its transaction can be ended."""
        one = self._open.get(name)
        return None if one is None or one.ending else one

    def names(self) -> list[int]:
        """Of those that can be ended."""
        return self._open.names()

    def by_topic(self) -> dict[str, int]:
        """Topic → half messages that are meant for it."""
        return self._open.by_topic()

    # ---- they begin ----

    async def begin(
        self, messages: Sequence[NewMessage], properties: Sequence[Mapping[str, str]]
    ) -> list[Appended]:
        """Stores half messages, and other messages sent with them; durable when it returns.
        `properties` are the decoded ones of each. Raises like DurableLog.put.

        A half message is open from the moment it has an offset, since its transaction may end
        before it is visible, and open no more when its append is rolled back, whether its sender
        still waits or not: the next half message gets its name (queue offset).
        """
        now_ms = self._clock.now_ms()
        self._log.check_room()
        places = self._store.append(messages)
        op_floor = self._store.max_offset(names.OP_HALF_TOPIC, QUEUE_ID)
        opened = [
            self._add(half_messages.begun(decoded, place.queue_offset, now_ms), place, op_floor)
            for message, decoded, place in zip(messages, properties, places, strict=True)
            if message.topic == names.HALF_TOPIC
        ]

        def ended(error: BaseException | None) -> None:
            if error is not None:
                for one in opened:  # a newer entry of the same name is kept
                    self._open.remove(one)

        self._log.when_flushed(ended)
        await self._log.durable()
        return places

    def _add(self, half: Half, place: Appended, op_floor: int) -> Open:
        one = self._open.add(half, place, op_floor)
        self._schedule.opened(one.half)
        return one

    # ---- they end ----

    async def end(self, ends: Sequence[End]) -> list[MqError | None]:
        """An outcome for each: None when it is done, and durable. Raises what the store raises."""
        await self._readable(one for end in ends if (one := self._open.get(end.queue_offset)))
        outcomes: list[MqError | None] = [None] * len(ends)
        appended = False
        batch = _Batch()
        for index, end in enumerate(ends):
            try:
                self._take(index, end, batch)
            except MqError as error:
                outcomes[index] = error
            if batch.size >= BATCH_BYTES or len(batch.ended) >= BATCH_MESSAGES:
                appended |= self._append(batch, outcomes)
                batch = _Batch()
        appended |= self._append(batch, outcomes)
        if appended:
            await self._log.durable()
        return outcomes

    def _take(self, index: int, end: End, batch: _Batch) -> None:
        """Puts what ends the transaction into the batch. Raises MqError: then it does not end."""
        one = self._open.get(end.queue_offset)
        if (
            one is None
            or one.ending
            or one.half.transaction_id != end.transaction_id
            or end.producer_group not in ("", one.half.producer_group)
        ):
            raise TransactionNotOpen(end.transaction_id)
        if end.resolution is Resolution.UNKNOWN:
            return
        if end.resolution is Resolution.COMMIT:
            message, properties = half_messages.committed(self.record(one), one.name)
            if message.topic not in self._topics.table or self._is_of_deleted(one):
                raise TopicNotExist(message.topic)
            batch.messages.append(self._router.route(message, properties) or message)
            batch.size += one.size
        one.ending = True
        batch.ended.append(one)
        batch.resolutions.append(end.resolution)
        batch.indexes.append(index)

    def _is_of_deleted(self, one: Open) -> bool:
        """Whether its topic was deleted since it began: one that was made again is another."""
        return one.physical_offset < self._store.deleted_below(one.half.topic)

    def _append(self, batch: _Batch, outcomes: list[MqError | None]) -> bool:
        """Whether anything was appended; else the outcomes say why. The op record stands behind
        what it speaks of."""
        if not batch.ended:
            return False
        op = half_messages.ended((one.name for one in batch.ended), self._clock.now_ms())
        try:
            self._store.append([*batch.messages, op], reserve=True)
        except MqError as error:
            for index, one in zip(batch.indexes, batch.ended, strict=True):
                one.ending = False
                outcomes[index] = error
            return False
        self._log.when_flushed(lambda error: self._settle(error, batch))
        return True

    def _settle(self, error: BaseException | None, batch: _Batch) -> None:
        """The open ones are forgotten once their end is on the disk, and open again when it was
        rolled back; whether their callers wait for it or not."""
        if error is not None and batch.torn:
            self._torn = batch.ended
        elif error is not None:  # told to the caller too
            for one in batch.ended:
                one.ending = False
                self._schedule.opened(one.half)
        else:
            for one, resolution in zip(batch.ended, batch.resolutions, strict=True):
                self._open.remove(one)
                self._meters.transaction_ended(
                    one.half.topic, committed=resolution is Resolution.COMMIT
                )

    async def give_up(self, halves: Sequence[Open]) -> None:
        """Moves half messages to TRANS_CHECK_MAX_TIME_TOPIC; durable when it returns. Raises what
        the store raises; then they stay open."""
        await self._readable(halves)
        halves = [one for one in halves if self.get(one.name) is one]  # some may have ended
        if not halves:
            return
        lost: list[tuple[Open, str]] = []
        messages = []
        for one in halves:
            try:
                messages.append(half_messages.given_up(self.record(one), one.half.checks))
            except StoreShort:
                raise
            except MqError as error:
                lost.append((one, error.message))
        for one in halves:
            one.ending = True
        op = half_messages.ended((one.name for one in halves), self._clock.now_ms())
        try:
            await self._log.put_accepted([*messages, op])
        except MqError:
            for one in halves:
                one.ending = False
            raise
        for one in halves:
            self._open.remove(one)
            self._meters.transaction_given_up(one.half.topic)
        for one, reason in lost:
            structlog.get_logger().error("half_message_lost", **_told(one), reason=reason)
        for one in halves:
            structlog.get_logger().warning("half_message_given_up", **_told(one))

    async def _readable(self, halves: Iterable[Open]) -> None:
        """A half message may be acknowledged before it is on the disk (asynchronous flush)."""
        end_offset = max((one.end_offset for one in halves), default=0)
        if end_offset > self._store.confirmed_offset:
            await self._log.flushed(end_offset)

    def record(self, one: Open) -> Record:
        """Raises MessageNotFound, MessageCorrupted; StoreShort: for now it cannot be read."""
        return self._store.get(one.physical_offset, one.size)

    # ---- they are asked about ----

    def asked(self, name: int) -> None:
        """A producer was asked; written down by `keep`."""
        one = self._open.get(name)
        if one is not None:
            one.half = replace(one.half, checks=one.half.checks + 1)
            self._asked[name] = one.half.checks
            self._meters.transaction_checked(one.half.topic)

    # ---- upkeep ----

    async def keep(self) -> None:
        """Every second: writes down who was asked, copies forward what lies far behind, and says
        from where on a start must read."""
        try:
            if self._torn:
                self._mend(self._torn)
            if self._asked:
                now, asked = self._clock.now_ms(), list(self._asked.items())
                starts = range(0, len(asked), ASKED_A_RECORD)
                parts = (dict(asked[start : start + ASKED_A_RECORD]) for start in starts)
                self._store.append([half_messages.asked(part, now) for part in parts], reserve=True)
                self._asked = {}
                self._log.schedule_flush()
            while behind := self._behind():
                await self._move(behind)
        except MqError as error:
            structlog.get_logger().error("transactions_not_kept", reason=error.message)
        self._note_progress()

    def needed_from(self) -> int | None:
        """The physical offset of the first half message whose transaction is open; None when there
        is none."""
        first = self._open.first()
        return first.physical_offset if first else None

    def _behind(self) -> list[Open]:
        """Some of the half messages to copy forward: those whose file is to be deleted, and those
        that would make a start read long."""
        lag = max(MOVE_BEHIND_BYTES, MOVE_BEHIND_TIMES * self._open.bytes)
        limit = max(self._store.cleaning.wanted_below, self._store.end_offset - lag)
        return self._open.below(limit, BATCH_BYTES)

    async def _move(self, halves: Sequence[Open]) -> None:
        copies, moving = [], []
        lost = [one for one in halves if self._is_of_deleted(one)]  # its copy could be committed
        for one in halves:
            if one in lost:
                continue
            try:
                copies.append(half_messages.moved(self.record(one), one.half))
                moving.append(one)
            except StoreShort:
                raise
            except MqError:
                lost.append(one)
        if lost:
            await self.give_up(lost)
        op_floor = self._store.max_offset(names.OP_HALF_TOPIC, QUEUE_ID)
        places = await self._log.put_accepted(copies)
        for one, place in zip(moving, places, strict=True):
            self._open.moved(one, place, op_floor)

    def _note_progress(self) -> None:
        first = self._open.first()
        half, op = (self._store.max_offset(topic, QUEUE_ID) for topic in _TOPICS)
        if first is not None:
            half, op = min(half, first.queue_offset), first.op_floor
        for topic, offset in zip(_TOPICS, (half, op), strict=True):
            self._offsets.commit(GROUP, topic, QUEUE_ID, offset)

    async def stop(self) -> None:
        """After everything has been flushed: says from where on the next start must read."""
        await asyncio.sleep(0)  # what was flushed last is settled in the next turn
        self._note_progress()

    # ---- at start ----

    def restore(self) -> None:
        """The open ones as the log has them. Blocks."""
        destinations = set()
        for found in find_open(self._store, self._offsets):
            self._add(found.half, found.place, found.op_floor)
            if found.destination is not None:
                destinations.add(found.destination)
        if len(self._open):
            structlog.get_logger().info("half_messages_open", count=len(self._open))
            committed = []
            for one in find_torn_commits(self._store, destinations, self._open.get):
                one.ending = True
                committed.append(one)
            self._mend(committed)

    def _mend(self, committed: list[Open]) -> None:
        """Writes the op record of committed messages whose append was torn by a crash; `keep` tries
        again. Until then they are not open: a second commit would deliver them twice."""
        batch = _Batch(ended=committed, resolutions=[Resolution.COMMIT] * len(committed), torn=True)
        batch.indexes += range(len(committed))
        outcomes: list[MqError | None] = [None] * len(committed)
        self._torn = []
        if self._append(batch, outcomes):
            self._log.schedule_flush()
            for one in committed:
                structlog.get_logger().warning("torn_commit_mended", **_told(one))
        for error in filter(None, outcomes[:1]):
            structlog.get_logger().error("torn_commit_not_mended", reason=error.message)
            for one in committed:
                one.ending = True
            self._torn = committed


def _told(one: Open) -> dict[str, object]:
    """For the log."""
    half = one.half
    return {
        "topic": half.topic,
        "producer_group": half.producer_group,
        "transaction_id": half.transaction_id,
        "checks": half.checks,
        "physical_offset": one.physical_offset,
    }
