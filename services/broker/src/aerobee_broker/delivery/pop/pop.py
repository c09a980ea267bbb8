"""Pop: lease messages, with a long poll; and notifications that a pop would find messages.

Leases are durable before the messages are sent.

Differences from RocketMQ: a redelivered message stays in its queue under its offset, and is not
copied to a retry topic. The delivery attempt is part of the lease. The group's offset follows the
settled messages, not the delivered ones. The broker, not the proxy, creates dead letters.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from aerobee_broker.delivery.pop.invisible_duration import MAX_INVISIBLE_DURATION_MS
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.delivery.pop.selector import PopBatch, PopRequest
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.delivery.pull.long_polls import LongPolls
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metrics import BrokerMetrics

MAX_MESSAGES = 32  # as in RocketMQ
DEFAULT_BYTES = 4 * 1024 * 1024
MAX_BYTES = 16 * 1024 * 1024
MAX_POLL_MS = 30_000


@dataclass(frozen=True, slots=True)
class PopResult:
    """The result of a pop.

    `records`: as stored, concatenated. `attempts`: the delivery attempt of each, starting at 1.
    `pop_time_ms`: since the epoch.
    """

    records: bytes
    attempts: list[int]
    lease_id: int
    pop_time_ms: int
    invisible_duration_ms: int

    @classmethod
    def of(cls, batch: PopBatch) -> PopResult:
        lease_id, _, expires_ms, pop_time_ms, _ = batch.lease
        records = b"".join(batch.records)
        return cls(records, batch.attempts, lease_id, pop_time_ms, expires_ms - pop_time_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pop:
    leases: LeaseSpace
    polls: LongPolls
    access: ReadAccess
    metrics: BrokerMetrics
    long_polling: bool

    async def pop(self, request: PopRequest, poll_ms: int = 0) -> PopResult | None:
        """Lease messages; None if no message arrived in time.

        Raises NoPermission, TopicNotExist, GroupNotExist, InvalidParameter, TooMuchUnflushed,
        TooMuchInFlight, MqError POLLING_FULL, and the errors of the store.
        """
        request = await self._checked(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + (min(poll_ms, MAX_POLL_MS) / 1000 if self.long_polling else 0)
        while True:
            self.leases.journal.check_room()
            await self.access.room()
            topic = self.access.topic(request.topic, request.queue_id)
            wanted = self.access.filter_in(topic, request.filter)
            if wanted is not request.filter:
                request = replace(request, filter=wanted)
            batch = self.leases.selector.select(
                request,
                topic.read_queue_count,
                by_priority=topic.by_priority,
                ordered=self.access.is_ordered(request.consumer_group, topic),
            )
            if batch.is_repeated:
                await self.leases.journal.flush()  # the first response may not be durable yet
                if not self.leases.selector.is_leased(batch):
                    continue
            if batch.runs:
                if not batch.is_repeated:
                    try:
                        await self.leases.grant([(request, batch)], self.access.in_flight)
                    except asyncio.CancelledError:
                        self.polls.wake_pop(request.consumer_group, request.topic)
                        raise
                return self._hand_out(batch, request)
            if batch.scan_unfinished:
                await asyncio.sleep(0)
                continue
            left_s = end - loop.time()
            if left_s <= 0:
                return None
            woken = await self.polls.park_pop(
                request.consumer_group,
                request.topic,
                request.queue_id,
                request.filter.tags_codes,
                left_s,
                client_id=request.client_id,
            )
            if not woken:
                return None

    def _hand_out(self, batch: PopBatch, request: PopRequest) -> PopResult:
        # Other pops may get the rest.
        if len(batch.attempts) >= request.max_messages or batch.is_cut:
            self.polls.wake_pop(request.consumer_group, request.topic)
        self.metrics.delivered(
            request.topic, request.consumer_group, len(batch.attempts), batch.size
        )
        return PopResult.of(batch)

    async def _checked(self, request: PopRequest) -> PopRequest:
        """Check the request, and apply the group's settings to it."""
        self.access.check_broker()
        group = await self.access.group(request.consumer_group)
        check_limits(request.invisible_duration_ms, request.max_messages)
        self.access.check_filter(request.filter)
        return starting_as(group, request)


def check_limits(invisible_duration_ms: int, max_messages: int) -> None:
    """Check the limits of a pop. Raises InvalidParameter."""
    if not 1 <= invisible_duration_ms <= MAX_INVISIBLE_DURATION_MS:
        raise InvalidParameter(
            f"invisible duration {invisible_duration_ms} ms is out of range: "
            f"use 1 to {MAX_INVISIBLE_DURATION_MS}"
        )
    if not 1 <= max_messages <= MAX_MESSAGES:
        raise InvalidParameter(f"max_messages is 1 to {MAX_MESSAGES}, not {max_messages}")


def starting_as(group: SubscriptionGroup, request: PopRequest) -> PopRequest:
    """Return the request with the start in a new queue that the group is configured for."""
    if request.start == "automatic" and not group.consume_from_min_enable:
        return replace(request, start="latest")
    return request


@dataclass(frozen=True, slots=True, kw_only=True)
class Notifications:
    """Long polls that report whether a pop would find a message, without a lease.

    They serve a client that waits for messages of several brokers and pops from the one that has
    some. As in RocketMQ, a notification does not reserve a message: another pop may lease it first.
    """

    leases: LeaseSpace
    polls: LongPolls
    access: ReadAccess
    long_polling: bool

    async def is_repeated(self, request: PopRequest) -> bool:
        """Return whether a pop would repeat the leases of the named attempt to receive.

        Raises the errors of `wait`.
        """
        await self._checked(request)
        self.access.topic(request.topic, None)  # the table keeps an entry for each requested topic
        group = self.leases.table.group(request.consumer_group, request.topic)
        attempt = group.attempts.get(request.attempt_id)
        return attempt is not None and bool(group.still_leased(attempt))

    async def wait(self, request: PopRequest, poll_ms: int) -> bool:
        """Return True when a pop would find a message; False after the timeout.

        Raises NoPermission, TopicNotExist, GroupNotExist, MqError POLLING_FULL, and the errors of
        the store.
        """
        request = await self._checked(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + (min(poll_ms, MAX_POLL_MS) / 1000 if self.long_polling else 0)
        while True:
            batch = self._peek(request)
            if batch.runs:
                return True
            if batch.scan_unfinished:
                await asyncio.sleep(0)
                continue
            left_s = end - loop.time()
            if left_s <= 0 or self.polls.closed:
                return False
            await self.polls.park_notification(
                request.consumer_group, request.topic, request.filter.tags_codes, left_s
            )

    def _peek(self, request: PopRequest) -> PopBatch:
        """Return the batch that a pop of one message would lease; the message stays visible."""
        topic = self.access.topic(request.topic, None)
        wanted = self.access.filter_in(topic, request.filter)
        batch = self.leases.selector.select(
            replace(request, max_messages=1, filter=wanted),
            topic.read_queue_count,
            by_priority=False,
            ordered=self.access.is_ordered(request.consumer_group, topic),
        )
        for queue, message in batch.messages():
            message.uncounted = True
            queue.expire(message)
        return batch

    async def _checked(self, request: PopRequest) -> PopRequest:
        self.access.check_broker()
        group = await self.access.group(request.consumer_group)
        self.access.check_filter(request.filter)
        return starting_as(group, request)
