"""Receive messages on lease, and return messages that did not reach the client to the group.

If one broker serves the topic, a receive is a long poll at that broker. If several brokers serve
the topic, the receive first pops the available messages of the broker that the client names. If
that broker has no messages, the receive waits for all brokers of the topic (see `receive_waiters`).

If the client disconnects, messages leased for it are returned to the group, without counting a
delivery attempt. Messages that were written to the client stay on lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import structlog
from aerobee.broker.v1.lite_pb2 import LitePopRequest, LitePopResponse
from aerobee.broker.v1.message_pb2 import Subscription
from aerobee.broker.v1.pop_pb2 import NotificationRequest, PopRequest, PopResponse
from aerobee.namesrv.v1.namesrv_pb2 import TopicRoute

from aerobee_chassis.background import Background
from aerobee_chassis.rpc.in_flight import WAIT_S, InFlight, TooMuchInFlight
from aerobee_cluster.receiving import (
    ANSWER_S,
    BRIEF_VISIT_S,
    HELD_S,
    LEFT_OUT,
    REPEATED_S,
    RETRY_S,
    VISIT_S,
    holder,
)
from aerobee_proxy.cluster.availability import AWAY
from aerobee_proxy.cluster.batches import BrokerBatches
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.leasing.lease_renewal import LeaseRenewal
from aerobee_proxy.cluster.leasing.receive_waiters import ReceiveWaiters, WaitersByKey, WaitersKey
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_route import readable_brokers
from aerobee_proxy.counts import ProxyCounts
from aerobee_wire.handles.leases import handles_of, invisible_change, key_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.queues.lite import lease_topic_of
from aerobee_wire.rpcs import LITE_POP, NOTIFICATION, POP, Rpc
from aerobee_wire.status import MqError

P = TypeVar("P", PopRequest, LitePopRequest)
R = TypeVar("R", PopResponse, LitePopResponse)

HELD_MS = round(HELD_S * 1_000)
TURN_MS = 500  # the duration of a long poll for lite topics if several brokers serve the parent
# The wait for the answer to a long poll after its client has disconnected, because the answer may
# already be in transit.
LATE_S = 1.0
MAX_READABLE = 10_000  # topics whose readable brokers are cached


class Receiver:
    def __init__(
        self,
        calls: BrokerCalls,
        batches: BrokerBatches,
        route_cache: RouteCache,
        lease_renewal: LeaseRenewal,
        *,
        background: Background,
        counts: ProxyCounts,
        in_flight: InFlight,
    ) -> None:
        self._in_flight = in_flight
        self._calls = calls
        self._availability = calls.availability
        self._batches = batches
        self._route_cache = route_cache
        self._lease_renewal = lease_renewal
        self._background = background
        self._counts = counts
        self._waiters = WaitersByKey(self._make_waiters)
        self._readable: dict[str, tuple[TopicRoute, Sequence[str]]] = {}
        self._polls: set[asyncio.Task[object]] = set()
        self._ending = asyncio.Event()
        self._is_closed = False
        # Brokers whose last pop with messages did not answer in time. A pop without messages needs
        # no disk.
        self._slow: set[str] = set()

    async def room(self) -> None:
        """Wait while unread answers to clients use up the memory limit for answers.

        Raises TooMuchInFlight if the limit is still reached after WAIT_S.
        """
        if self._in_flight.is_full:
            await self._in_flight.room(WAIT_S)

    def check_room(self, size: int, handles: Callable[[], Sequence[ReceiptHandle]]) -> None:
        """Check that messages of `size` bytes fit into the memory limit for unread answers.

        If they do not fit, return the messages to the group and raise TooMuchInFlight. `handles`
        returns the receipt handles of the messages.
        """
        try:
            self._in_flight.check_room(size)
        except TooMuchInFlight:
            self.give_back(handles())
            raise

    async def pop(self, broker_name: str, request: PopRequest, *, ordered: bool) -> PopResponse:
        """Receive messages of a topic from any of its brokers.

        Args:
            broker_name: The broker that the client names, which usually is asked first.
            request: The request, whose `poll_duration_ms` limits the wait for messages.
            ordered: True if the group consumes the topic in order.

        Returns:
            The response of a broker, or an empty response after the wait.

        Raises:
            MqError: If a broker refuses the request.
        """
        return await self._interruptible(self._pop(broker_name, request, ordered), PopResponse)

    async def pop_lite(
        self, broker_name: str, request: LitePopRequest, *, everywhere: bool
    ) -> LitePopResponse:
        """Receive messages of lite topics from the broker with the given name.

        With `everywhere`, the messages may come from any broker of the parent topic, and the named
        broker is asked first. Return an empty response if no message arrives within the poll
        duration of the request. Raises MqError.
        """
        others: list[str] = []
        if everywhere:
            brokers = await self._brokers_of(request.parent)
            broker_name = broker_name if broker_name in brokers or not brokers else brokers[0]
            others = [name for name in brokers if name != broker_name]
        popping = (
            self._pop_lite_in_turns(broker_name, others, request)
            if others
            else self._hold(broker_name, LITE_POP, request)
        )
        return await self._interruptible(popping, LitePopResponse)

    async def _interruptible(self, popping: Coroutine[Any, Any, R], empty: Callable[[], R]) -> R:
        """Await a receive and return its result, or `empty()` if `end_polls` ends the receive."""
        if self._ending.is_set() or (task := asyncio.current_task()) is None:
            popping.close()
            return empty()
        self._polls.add(task)
        try:
            return await popping
        except asyncio.CancelledError:
            if not self._ending.is_set():
                raise
            task.uncancel()
            return empty()
        finally:
            self._polls.discard(task)

    def end_polls(self) -> None:
        """End waiting and future receives at once, with an empty response."""
        self._ending.set()
        for task in self._polls:
            task.cancel()

    async def _pop(self, broker_name: str, request: PopRequest, ordered: bool) -> PopResponse:
        brokers = await self._brokers_of(request.topic)
        if not brokers or (len(brokers) == 1 and broker_name in brokers):
            return await self._hold(broker_name, POP, request)
        deadline_s = asyncio.get_running_loop().time() + request.poll_duration_ms / 1_000
        key = WaitersKey(
            request.consumer_group,
            request.topic,
            request.subscription.SerializeToString(),
            ordered,
            0 if ordered else request.max_messages,
            0 if ordered else request.invisible_duration_ms,
        )
        waiters = self._waiters.waiters(key)
        request.poll_duration_ms = 0
        return await self._pop_any(waiters, broker_name, brokers, request, deadline_s)

    def close(self) -> None:
        """Cancel the calls that wait for messages. The receiver cannot be used afterwards."""
        self._is_closed = True
        self._waiters.close()

    def renew(self, leases: Iterable[tuple[ReceiptHandle, str]], client_id: str, user: str) -> None:
        """Start renewing leases, until the client settles them or disconnects.

        A lease is given by its receipt handle and message id.
        """
        track = self._lease_renewal.track
        for handle, message_id in leases:
            track(handle, client_id, message_id, user)

    def renewed_of(self, client_id: str, user: str) -> int:
        """Return the number of leases that are renewed for this client."""
        return self._lease_renewal.held_by(client_id, user)

    def delivered(self, messages: int) -> None:
        """Count messages that reached the client."""
        self._counts.received += messages

    def give_back(self, handles: Sequence[ReceiptHandle]) -> None:
        """Return messages that may not have reached the client to the group, in the background.

        The messages are visible at once, and this delivery does not count as an attempt.
        """
        for handle in handles:
            self._lease_renewal.untrack(key_of(handle))
        self._background.run(self._make_visible(handles))

    # ---- one broker ----

    async def _hold(self, broker_name: str, rpc: Rpc[P, R], request: P) -> R:
        """Pop messages of one broker with a long poll.

        If the broker is unavailable, wait for the broker until the end of the poll. An immediate
        error would make SDKs retry after 1 s, and one of the SDKs up to 50 times a second.
        """

        def attempt(left_s: float) -> tuple[P, float]:
            request.poll_duration_ms = round(left_s * 1_000)
            return request, left_s + ANSWER_S

        time = asyncio.get_running_loop().time
        deadline_s = time() + request.poll_duration_ms / 1_000
        while True:
            try:
                return await self._not_lost(
                    self._calls.call_until(broker_name, rpc, attempt, deadline_s=deadline_s),
                    request,
                )
            except MqError as error:
                if error.code not in AWAY:
                    raise
            # `call_until` does not wait for a broker that never answered this proxy, although it
            # may only have become unavailable before this proxy started.
            left_s = deadline_s - time()
            await asyncio.sleep(max(0.0, min(left_s, RETRY_S)))
            if left_s <= RETRY_S:
                return rpc.response()

    async def _not_lost(self, call: Coroutine[Any, Any, R], request: P) -> R:
        """Await a pop and return its answer.

        If the receive is cancelled, return the leased messages to the group. A pop with an attempt
        id is cancelled instead, because the client repeats it and gets the same messages. After
        `close`, pops are cancelled too.
        """
        popping = asyncio.ensure_future(call)
        try:
            return await asyncio.shield(popping)
        except asyncio.CancelledError:
            if request.attempt_id or self._is_closed:
                popping.cancel()
            else:
                self._background.run(self._give_back_late(popping, request, LATE_S))
            raise

    async def _pop_lite_in_turns(
        self, first: str, others: Sequence[str], request: LitePopRequest
    ) -> LitePopResponse:
        """Receive messages of lite topics from several brokers, one call at a time.

        The broker `first` gets long polls of TURN_MS, and the other brokers are asked in between.
        Concurrent calls could return more messages than the client asked for.
        """
        time = asyncio.get_running_loop().time
        deadline_s, poll_ms = time() + request.poll_duration_ms / 1_000, 0
        while True:
            request.poll_duration_ms = poll_ms
            answer = await self._hold(first, LITE_POP, request)
            for name in others:
                if answer.batches or answer.lost:
                    break
                answer = await self._visit_lite(name, request)
            poll_ms = min(TURN_MS, round((deadline_s - time()) * 1_000))
            if answer.batches or answer.lost or poll_ms <= 0:
                return answer

    async def _visit_lite(self, broker_name: str, request: LitePopRequest) -> LitePopResponse:
        if self._availability.is_away(broker_name):
            return LitePopResponse()
        request.poll_duration_ms = 0
        try:
            call = self._calls.call(broker_name, LITE_POP, request, timeout_s=VISIT_S)
            return await self._not_lost(call, request)
        except MqError as error:
            if error.code not in LEFT_OUT:
                raise
            return LitePopResponse()

    # ---- any of several ----

    async def _pop_any(
        self,
        waiters: ReceiveWaiters,
        named: str,
        brokers: Sequence[str],
        request: PopRequest,
        deadline_s: float,
    ) -> PopResponse:
        is_away = self._availability.is_away
        there = [name for name in brokers if not is_away(name)]
        former = await self._holder(there, request) if request.attempt_id else None
        broker = waiters.begin(named, there) if former is None else waiters.visit(former)
        while True:
            if broker is not None:
                answer = await self._visit(waiters, broker, request)
                if answer.records:
                    return answer
            if waiters.is_old(named):
                left_s = deadline_s - asyncio.get_running_loop().time()
                request.poll_duration_ms = max(0, round(left_s * 1_000))
                return await self._hold(named, POP, request)
            found = await waiters.wait(named, brokers, deadline_s)
            if not isinstance(found, str):
                return found or PopResponse()
            broker = found

    async def _visit(self, waiters: ReceiveWaiters, name: str, request: PopRequest) -> PopResponse:
        """Pop the available messages of a broker.

        Return an empty response if the broker fails temporarily. Other failures are raised.
        """
        full = failed = False
        popping = asyncio.ensure_future(
            self._calls.call(name, POP, request, timeout_s=VISIT_S + ANSWER_S)
        )
        try:
            limit_s = BRIEF_VISIT_S if name in self._slow else VISIT_S
            await asyncio.wait([popping], timeout=limit_s)
            if not popping.done():
                failed = True
                self._slow.add(name)
                self._background.run(self._come_late(name, popping, request))
                return PopResponse()
            answer = popping.result()
            if answer.message_count:
                self._slow.discard(name)
            full = answer.message_count >= request.max_messages
            return answer
        except MqError as error:
            failed = True
            if error.code not in LEFT_OUT:
                raise
            return PopResponse()
        except asyncio.CancelledError:
            self._background.run(self._give_back_late(popping, request))
            raise
        finally:
            waiters.end(name, full=full, failed=failed)

    async def _come_late(
        self, name: str, popping: asyncio.Future[PopResponse], request: PopRequest
    ) -> None:
        """Give back the messages of a late pop. The next receive waits for the broker again."""
        await self._give_back_late(popping, request)
        if popping.exception() is None and popping.result().message_count:
            self._slow.discard(name)

    async def _give_back_late(
        self, popping: asyncio.Future[R], request: P, timeout_s: float | None = None
    ) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                answer = await popping
        except (MqError, TimeoutError):
            return
        await self._make_visible(_leased(request, answer))

    async def _holder(self, brokers: Sequence[str], request: PopRequest) -> str | None:
        """Return the broker that already leased messages to an attempt with the same id, or None.

        This broker returns the same messages to the repeated attempt.
        """
        asked = NotificationRequest(
            consumer_group=request.consumer_group,
            topic=request.topic,
            attempt_id=request.attempt_id,
        )

        async def is_repeated(name: str) -> bool:
            try:
                answer = await self._calls.call(name, NOTIFICATION, asked, timeout_s=REPEATED_S)
            except MqError:
                return False
            return answer.is_repeated

        return await holder(brokers, is_repeated)

    def _make_waiters(self, key: WaitersKey) -> ReceiveWaiters:
        subscription = Subscription.FromString(key.subscription)
        notification = NotificationRequest(
            consumer_group=key.consumer_group,
            topic=key.topic,
            poll_duration_ms=HELD_MS,
            subscription=subscription,
        )
        pop = PopRequest(
            consumer_group=key.consumer_group,
            topic=key.topic,
            max_messages=key.max_messages,
            invisible_duration_ms=key.invisible_duration_ms,
            poll_duration_ms=HELD_MS,
            subscription=subscription,
        )
        timeout_s = HELD_S + ANSWER_S

        async def ask(name: str, wanted: bool) -> PopResponse | bool:
            await self._calls.wait_until_back(name)
            if key.ordered or not wanted:
                answer = await self._calls.call(
                    name, NOTIFICATION, notification, timeout_s=timeout_s
                )
                return answer.has_message
            call = self._calls.call(name, POP, pop, timeout_s=timeout_s)
            popped = await self._not_lost(call, pop)
            return popped if popped.records else False

        def give_back(answer: PopResponse) -> None:
            self._background.run(self._make_visible(handles_of(pop, answer)))

        return ReceiveWaiters(ask, give_back, key.max_messages)

    async def _brokers_of(self, topic: str) -> Sequence[str]:
        """Return the names of the readable brokers of a topic; empty if the topic has no route."""
        try:
            route = await self._route_cache.route(topic)
        except MqError:
            return ()
        known = self._readable.get(topic)
        if known is not None and known[0] is route:
            return known[1]
        if len(self._readable) >= MAX_READABLE:
            self._readable.clear()
        names = tuple(data.broker_name for data in readable_brokers(route))
        self._readable[topic] = (route, names)
        return names

    async def _make_visible(self, handles: Sequence[ReceiptHandle]) -> None:
        outcomes = await asyncio.gather(
            *(
                self._batches.change_invisible_duration(
                    handle.broker_name, invisible_change(handle, 0, counted=False)
                )
                for handle in handles
            ),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, MqError):
                structlog.get_logger().warning("lease_not_given_back", reason=outcome.message)
            elif isinstance(outcome, BaseException):
                raise outcome


def _leased(
    request: PopRequest | LitePopRequest, answer: PopResponse | LitePopResponse
) -> list[ReceiptHandle]:
    """Return the receipt handles of all messages that `answer` leased."""
    if isinstance(request, PopRequest):
        assert isinstance(answer, PopResponse)
        return handles_of(request, answer)
    assert isinstance(answer, LitePopResponse)
    handles: list[ReceiptHandle] = []
    for batch in answer.batches:
        asked = PopRequest(
            consumer_group=request.consumer_group,
            topic=lease_topic_of(request.parent, batch.lite_topic),
            fifo=True,
        )
        handles += handles_of(asked, batch.messages)
    return handles
