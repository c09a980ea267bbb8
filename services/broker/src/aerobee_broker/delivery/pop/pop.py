"""Pop: messages on lease, with a long poll. Leases are durable before the messages go out.

Differs from RocketMQ: what comes again stays in its queue and under its offset, it is not copied to
a retry topic; the delivery attempt is part of the lease. The group's offset follows what is
settled, not what was handed out. Dead letters are made here, not by the proxy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog

from aerobee_broker.config import BrokerOptions
from aerobee_broker.delivery.pop.acks import MAX_INVISIBLE_MS, Settling
from aerobee_broker.delivery.pop.journal import LeaseJournal
from aerobee_broker.delivery.pop.journal_format import settled as settle_entry
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.pop.selector import Choice, Chooser, Wish
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metrics import Meters
from aerobee_chassis.clock import Clock
from aerobee_chassis.lifecycle import Component
from aerobee_wire.status import MqError

MAX_MESSAGES = 32  # RocketMQ's
DEFAULT_BYTES = 4 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
MAX_POLL_MS = 30_000


@dataclass(frozen=True, slots=True)
class Popped:
    """`records`: as they are stored, one after the other; `attempts`: of each, from 1 on."""

    records: bytes
    attempts: list[int]
    lease_id: int
    at_ms: int
    for_ms: int


class Pop(Component):
    def __init__(
        self,
        *,
        table: LeaseTable,
        journal: LeaseJournal,
        chooser: Chooser,
        settling: Settling,
        polls: LongPolls,
        access: ReadAccess,
        offsets: ConsumerOffsets,
        meters: Meters,
        clock: Clock,
        options: BrokerOptions,
    ) -> None:
        self._table = table
        self._journal = journal
        self._chooser = chooser
        self._settling = settling
        self._polls = polls
        self._access = access
        self._offsets = offsets
        self._meters = meters
        self._clock = clock
        self._long_polling = options.long_polling_enable

    # ---- for consumers ----

    async def pop(self, wish: Wish, poll_ms: int = 0) -> Popped | None:
        """None: nothing came in time. Raises NoPermission, TopicNotExist, GroupNotExist,
        InvalidParameter, TooMuchUnflushed, MqError POLLING_FULL, and what the log raises."""
        await self._check(wish)
        loop = asyncio.get_running_loop()
        end = loop.time() + (min(poll_ms, MAX_POLL_MS) / 1000 if self._long_polling else 0)
        while True:
            self._journal.check_room()
            choice = self._chooser.choose(wish, *self._queues(wish))
            try:
                self._note_lost(choice)
            except MqError:
                self._chooser.undo(choice)
                raise
            if choice.again:
                await self._journal.settled()  # the first one may still be on its way to the disk
                if not self._is_alive(choice):
                    continue
            if choice.leased:
                return await self._hand_out(choice, wish)
            if choice.unfinished:
                await asyncio.sleep(0)
                continue
            left = end - loop.time()
            if left <= 0:
                return None
            codes = wish.wanted.tags_codes
            await self._polls.park_pop(wish.consumer_group, wish.topic, wish.queue_id, codes, left)
            if self._polls.closed:
                return None

    async def _hand_out(self, choice: Choice, wish: Wish) -> Popped:
        place = choice.place
        if not choice.again:
            entry = self._chooser.lease_entry(choice, wish)
            try:
                await self._journal.write("lease", entry, undo=lambda: self._chooser.undo(choice))
            except asyncio.CancelledError:
                given_back = [(place, queue, held) for queue, held in choice.messages()]
                self._settling.give_back(given_back)
                self._polls.wake_pop(wish.consumer_group, wish.topic)
                raise
            finally:
                for queue, several in choice.leased:
                    offsets = [held.offset for held in several]
                    deadline_ms = choice.lease.deadline_ms
                    self._settling.expiry.watch_all(place, queue, offsets, deadline_ms)
        if len(choice.attempts) >= wish.max_messages:  # there may be more for others
            self._polls.wake_pop(wish.consumer_group, wish.topic)
        self._meters.delivered(wish.topic, wish.consumer_group, len(choice.attempts), choice.size)
        records = choice.records[0] if len(choice.records) == 1 else b"".join(choice.records)
        lease_id, at_ms, expires_ms, _ = choice.lease
        return Popped(records, choice.attempts, lease_id, at_ms, expires_ms - at_ms)

    def _is_alive(self, choice: Choice) -> bool:
        now_ms, lease_id = self._clock.monotonic_ms(), choice.lease.lease_id
        return all(
            queue.on_lease(held.offset, lease_id, now_ms) is held
            for queue, held in choice.messages()
        )

    def _note_lost(self, choice: Choice) -> None:
        """Settles what retention took, or damage: it cannot be handed out any more."""
        if not choice.lost:
            return
        queues: dict[tuple[str, str, int], list[int]] = {}
        for queue, held in choice.lost:
            queues.setdefault(choice.place.key(queue), []).append(held.offset)
        structlog.get_logger().warning(
            "leased_messages_lost",
            group=choice.place.consumer_group,
            topic=choice.place.topic,
            messages=len(choice.lost),
            reason="no longer stored",
        )
        self._journal.note("settle", settle_entry((key, done, []) for key, done in queues.items()))

    async def _check(self, wish: Wish) -> None:
        self._access.check_broker()
        await self._access.group(wish.consumer_group)
        if not 1 <= wish.invisible_ms <= MAX_INVISIBLE_MS:
            raise InvalidParameter(
                f"invisible duration {wish.invisible_ms} ms is out of range: "
                f"use 1 to {MAX_INVISIBLE_MS}"
            )
        if not 1 <= wish.max_messages <= MAX_MESSAGES:
            raise InvalidParameter(f"max_messages is 1 to {MAX_MESSAGES}, not {wish.max_messages}")
        self._access.check_filter(wish.wanted)

    def _queues(self, wish: Wish) -> tuple[int, bool]:
        """How many the topic has, and whether the highest go first."""
        config = self._access.topic(wish.topic, wish.queue_id)
        return config.read_queue_count, config.by_priority

    # ---- for the broker ----

    def reset(
        self, consumer_group: str, topic: str, offsets: Mapping[int, int]
    ) -> asyncio.Future[None] | None:
        """The group is moved in these queues: what it holds there is void. Returns what
        LeaseJournal.state does; None: there was nothing. Raises what keeps the log from taking it;
        then nothing is done."""
        found = [
            (one[1], offset)
            for queue_id, offset in offsets.items()
            if (one := self._table.find(consumer_group, topic, queue_id)) is not None
        ]
        stated = None
        if found:
            self._journal.check_open()
            for queue, offset in found:
                queue.reset(offset)
            of = {"group": consumer_group, "topic": topic}
            entries = [{**of, "queue": queue.queue_id, "offset": offset} for queue, offset in found]
            stated = self._journal.state("move", entries)
        self._polls.wake_pops(topic)
        return stated

    def check_forget(self, *, consumer_group: str = "", topic: str = "") -> None:
        """Before a group or a topic is deleted. Raises what keeps the log from taking it."""
        if self._table.keys_of(consumer_group=consumer_group, topic=topic):
            self._journal.check_open()

    def forget(self, *, consumer_group: str = "", topic: str = "") -> asyncio.Future[None] | None:
        """A group or a topic was deleted. Returns what LeaseJournal.state does; None: it had
        nothing here."""
        stated = None
        if self._table.forget(consumer_group=consumer_group, topic=topic):
            entry = {"group": consumer_group, "topic": topic}
            stated = self._journal.state("forget", [entry])
        if topic:
            self._polls.wake_pops(topic)
        return stated

    def restore(self) -> None:
        """Leases as before the stop: those that are over since come again. Blocks."""
        records = self._journal.replay()
        if records:  # the next snapshot spares them
            self._table.touch()
        self._forget_deleted()
        now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        leased = 0
        for place in self._table:
            for queue in place.queues.values():
                self._chooser.restore_rows(place.topic, queue)
                queue.logged = queue.cursor
                for held in queue:
                    left = min(held.expires_ms - now_ms, held.expires_ms - held.since_ms)
                    held.deadline_ms = monotonic_ms + max(0, left)
                    if held.leased:
                        self._settling.expiry.watch((place, queue, held))
                        leased += 1
                self._offsets.commit(
                    place.consumer_group, place.topic, queue.queue_id, queue.committed
                )
        structlog.get_logger().info("leases_restored", leases=leased, log_records=records)

    def _forget_deleted(self) -> None:
        """A kill right after a topic's deletion may have left what groups had there. Its next first
        message has queue offset 0 again."""
        topics = self._offsets.begun() | {
            place.topic
            for place in self._table
            if any(queue.cursor for queue in place.queues.values())
        }
        for topic in topics:
            if not self._chooser.has_messages(topic):
                self._offsets.remove_topic(topic)
                self.forget(topic=topic)

    async def start(self) -> None:
        self._settling.expiry.start()

    async def stop(self) -> None:
        self._polls.close()
        await self._settling.expiry.stop()

    def measure(self) -> None:
        """Brings the gauges up to date."""
        leased = waiting = blocked = 0
        for place in self._table:
            for queue in place.queues.values():
                held = queue.leased
                leased += held
                waiting += len(queue.open) - held
                blocked += queue.blocked
        for name, value in (
            ("pop_leased_messages", leased),
            ("pop_waiting_messages", waiting),
            ("pop_blocked_message_groups", blocked),
            ("parked_pops", self._polls.parked_pops),
        ):
            self._meters.set(name, value)
