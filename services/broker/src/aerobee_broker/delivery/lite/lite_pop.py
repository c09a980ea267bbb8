"""LitePop: leases messages of the lite topics that a client subscribes to, with a long poll.

A pop may return messages of several lite topics, each in order and without gaps. A group has at
most one set of leased messages per lite topic at a time. Leases are durable before the messages are
sent. Each lite topic in a response has its own lease id, so its messages are settled separately, as
in an ordered group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aerobee_broker.delivery.lite.dispatch import LiteDispatch
from aerobee_broker.delivery.lite.ready import ReadyLine
from aerobee_broker.delivery.lite.subscriptions import LiteClient
from aerobee_broker.delivery.pop.lease_space import LeaseSpace
from aerobee_broker.delivery.pop.pop import MAX_POLL_MS, PopResult, check_limits
from aerobee_broker.delivery.pop.selector import PopBatch, PopRequest
from aerobee_broker.delivery.pull.access import ReadAccess
from aerobee_broker.filter.filter import Filter
from aerobee_broker.metrics import BrokerMetrics
from aerobee_wire.queues.lite import lease_topic_of

_EVERYTHING = Filter("TAG", "*")
_MAX_ATTEMPTS = 10_000  # receives with an attempt id that are kept in memory


class LitePopRequest(NamedTuple):
    """A request of a client to lease messages of its lite topics.

    `attempt_id` is the client's id for this receive. It may be empty.
    """

    consumer_group: str
    parent: str
    client_id: str
    max_messages: int
    max_bytes: int
    invisible_duration_ms: int
    attempt_id: str = ""


class LiteResult(NamedTuple):
    """Messages of one lite topic, in order, with a common lease id."""

    lite_topic: str
    queue_id: int
    popped: PopResult


class _Selected(NamedTuple):
    name: str
    ready: ReadyLine
    request: PopRequest
    batch: PopBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePop:
    dispatch: LiteDispatch
    leases: LeaseSpace
    access: ReadAccess
    metrics: BrokerMetrics
    # (group, attempt id) → the lite topics of the receive.
    _attempts: dict[tuple[str, str], list[tuple[str, ReadyLine]]] = field(
        default_factory=dict, init=False
    )

    async def pop(self, request: LitePopRequest, poll_ms: int = 0) -> list[LiteResult]:
        """Lease messages, and wait up to `poll_ms` for the first one.

        Returns an empty list if no message arrived in time. Raises the errors of Pop.pop.
        """
        await self._check(request)
        loop = asyncio.get_running_loop()
        end = loop.time() + min(poll_ms, MAX_POLL_MS) / 1000
        while True:
            self.leases.journal.check_room()
            await self.access.room()
            self.access.check_group(request.consumer_group)
            repeated = await self._repeat(request)
            if repeated:
                return repeated
            selected = self._select(request)
            if selected:
                await self._make_durable(request, selected)
                return [self._result(request, each) for each in selected]
            left_s = end - loop.time()
            if left_s <= 0:
                return []
            ready = self.dispatch.ready
            if not await ready.wait(request.consumer_group, request.client_id, left_s):
                return []

    async def _check(self, request: LitePopRequest) -> None:
        self.access.check_broker()
        await self.access.group(request.consumer_group)
        self.access.topic(request.parent, None)
        check_limits(request.invisible_duration_ms, request.max_messages)

    # ---- selecting ----

    def _select(self, request: LitePopRequest) -> list[_Selected]:
        dispatch = self.dispatch
        selected: list[_Selected] = []
        messages, size = request.max_messages, request.max_bytes
        try:
            while messages > 0 and (size > 0 or not selected):
                ready = dispatch.ready.take(request.consumer_group, request.client_id)
                if ready is None:
                    break
                client = dispatch.subscriptions.get(request.consumer_group, request.client_id)
                one = self._select_one(request, client, ready, messages, size)
                if one is not None:
                    selected.append(one)
                    messages -= len(one.batch.attempts)
                    size -= one.batch.size
        except BaseException:
            for one in selected:
                one.batch.roll_back()
                dispatch.again(request.consumer_group, request.parent, one.ready)
            raise
        return selected

    def _select_one(
        self,
        request: LitePopRequest,
        client: LiteClient | None,
        ready: ReadyLine,
        messages: int,
        size: int,
    ) -> _Selected | None:
        """Select and lease messages of one lite topic.

        Returns None if the client does not subscribe to the lite topic any more, or if there are no
        messages to lease.
        """
        try:
            name = None
            if client is not None and client.parent == request.parent:
                name = self.dispatch.name_of(client, ready)
            if name is None:
                self.dispatch.again(request.consumer_group, request.parent, ready)
                return None
            one = self._pop_line(request, name, ready, messages, size)
        except BaseException:
            self.dispatch.again(request.consumer_group, request.parent, ready)
            raise
        if one.batch.runs:
            return one
        if one.batch.scan_unfinished:
            self.dispatch.again(request.consumer_group, request.parent, ready)
        elif one.batch.awaits_repair:
            self.dispatch.again_later(request.consumer_group, request.parent, ready)
        return None

    def _pop_line(
        self, request: LitePopRequest, name: str, ready: ReadyLine, messages: int, size: int
    ) -> _Selected:
        pop = PopRequest(
            consumer_group=request.consumer_group,
            topic=lease_topic_of(request.parent, name),
            queue_id=ready.queue_id,
            max_messages=messages,
            max_bytes=max(1, size),
            invisible_duration_ms=request.invisible_duration_ms,
            filter=_EVERYTHING,
            fifo=True,
            attempt_id=request.attempt_id,
            start="earliest",
            client_id=request.client_id,
        )
        batch = self.leases.selector.select(pop, 1, by_priority=False, ordered=True)
        return _Selected(name, ready, pop, batch)

    async def _repeat(self, request: LitePopRequest) -> list[LiteResult]:
        """Return the messages that an earlier receive with this attempt id still has on lease."""
        known = self._attempts.get((request.consumer_group, request.attempt_id))
        if not request.attempt_id or known is None:
            return []
        repeated = []
        for name, ready in known:
            topic = lease_topic_of(request.parent, name)
            group = self.leases.table.group(request.consumer_group, topic)
            attempt = group.attempts.get(request.attempt_id)
            if attempt is not None and group.still_leased(attempt):
                one = self._pop_line(request, name, ready, request.max_messages, request.max_bytes)
                if one.batch.is_repeated and one.batch.runs:
                    repeated.append(one)
        if not repeated:
            del self._attempts[request.consumer_group, request.attempt_id]
            return []
        await self.leases.journal.flush()  # the first response may not be durable yet
        is_leased = self.leases.selector.is_leased
        return [self._result(request, one) for one in repeated if is_leased(one.batch)]

    # ---- delivery ----

    async def _make_durable(self, request: LitePopRequest, selected: Sequence[_Selected]) -> None:
        batches = [(one.request, one.batch) for one in selected]
        try:
            await self.leases.grant(batches, self.access.in_flight)
        finally:
            for one in selected:
                self.dispatch.again(request.consumer_group, request.parent, one.ready)
        if request.attempt_id:
            if len(self._attempts) >= _MAX_ATTEMPTS:
                del self._attempts[next(iter(self._attempts))]
            lines = [(one.name, one.ready) for one in selected]
            self._attempts[request.consumer_group, request.attempt_id] = lines

    def _result(self, request: LitePopRequest, one: _Selected) -> LiteResult:
        batch = one.batch
        self.metrics.delivered(
            request.parent,
            request.consumer_group,
            len(batch.attempts),
            batch.size,
            redelivered=batch.redelivered,
        )
        return LiteResult(one.name, one.ready.queue_id, PopResult.of(batch))
