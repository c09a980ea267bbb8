"""Receive messages on lease from every broker of every subscribed topic.

A receive pops the available messages of one source, and each receive begins with a different
source. If a source has no messages, the receive waits for all sources. Messages may be leased for a
receive that was cancelled or has got messages from another broker. These messages are returned to
the group without counting an attempt.

Only the close of the client interrupts a pop. Otherwise an answer in transit would be lost, and its
messages would stay leased.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import uuid4

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.errors import ClientClosed, RequestTimeout
from aerobee_client.leasing.lease_calls import Change, LeaseCalls
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.receiving.answers import Popped, Source
from aerobee_client.leasing.receiving.pops import Attempt, Pops, Receive
from aerobee_client.leasing.receiving.receive_waiters import (
    ReceiveRequest,
    ReceiveWaiters,
    is_refusal,
)
from aerobee_client.leasing.receiving.sources import Sources
from aerobee_cluster.leases import is_over
from aerobee_cluster.receiving import (
    ANSWER_S,
    BRIEF_VISIT_S,
    HELD_S,
    LEFT_OUT,
    VISIT_S,
    holder,
)
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

LEAVE_S = 1.0  # time limit for a broker to end the long polls of a client that closes
NO_ROUTE_PAUSE_S = 1.0  # the pause while no broker has the topic
KEPT_WAITERS = 64

# A source that fails with one of these codes is skipped for a while. Other errors are raised.
_LEFT_OUT = LEFT_OUT | frozenset(
    {
        Code.FLOW_CONTROL,
        Code.FLUSH_DISK_TIMEOUT,
        Code.FLUSH_SLAVE_TIMEOUT,
        Code.TOPIC_NOT_EXIST,
    }
)
# The broker may have leased messages to a pop that failed with one of these codes.
_ANSWER_LOST = frozenset({Code.BROKER_UNREACHABLE, Code.REQUEST_TIMEOUT})


class _WaitersKey(NamedTuple):
    subscriptions: tuple[bytes, ...]
    invisible_duration_ms: int  # 0 if a long poll does not lease messages
    sources: tuple[Source, ...]  # set if the nearby sources have changed
    max_messages: int  # 0 if receives of different sizes may share messages


class Receiver:
    def __init__(
        self,
        instance: ClientInstance,
        consumer_group: str,
        calls: LeaseCalls,
        pops: Pops,
        *,
        machine_room: str = "",
    ) -> None:
        self._instance = instance
        self._calls = calls
        self._pops = pops
        self._waiters: dict[_WaitersKey, ReceiveWaiters] = {}
        self.sources = Sources(instance, consumer_group, machine_room, on_change=self._end_waits)
        # The names of attempts whose answer was lost. A pop with the same name returns their
        # messages.
        self._lost_attempts: dict[Source, deque[str]] = defaultdict(deque)
        # Whose last pop with messages did not answer in time. A pop without messages needs no disk.
        self._slow: set[Source] = set()
        self._receives: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def failures(self) -> int:
        """The number of failed requests."""
        return self._pops.failures

    async def receive(self, asked: Receive) -> list[LeasedMessage]:
        """Return messages of one source, or an empty list after the deadline.

        Raises MqError if a broker refuses the request, or if every source fails until the deadline.
        """
        task = asyncio.current_task()
        assert task is not None
        self._receives.add(task)
        try:
            while True:
                popped = await self._receive(asked)
                if self._closed:
                    if popped is not None:
                        self._give_back(popped)
                    raise ClientClosed("consumer")
                if popped is None:
                    return []
                if popped.until_ms > self._instance.clock.monotonic_ms():
                    return popped.messages()
        finally:
            self._receives.discard(task)

    async def close(self) -> None:
        """End the waiting receives. Wait until late messages are returned to the group."""
        self._closed = True
        await self.sources.close()
        self._end_waits()
        if self._receives:
            await asyncio.wait(self._receives, timeout=VISIT_S + ANSWER_S)
        await self._end_held_calls()
        with suppress(TimeoutError):
            async with asyncio.timeout(VISIT_S + ANSWER_S):
                while self._background:  # calls that end may have begun to return messages
                    await asyncio.wait(self._background)

    def _end_waits(self) -> None:
        """Wake waiting receives, so that they check their sources and deadlines again."""
        for waiters in self._waiters.values():
            waiters.end_waits()

    async def _end_held_calls(self) -> None:
        """End the calls that brokers hold.

        Brokers end these calls when this client unregisters. They answer with the messages leased
        so far, which are returned to the group. A call that does not end in time is cancelled.
        """
        found = [pair for waiters in self._waiters.values() for pair in waiters.held().items()]
        held = [task for _, task in found]
        if not held:
            return
        await asyncio.gather(*map(self._leave, {source.broker_name for source, _ in found}))
        await asyncio.wait(held, timeout=LEAVE_S)
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)

    async def _leave(self, broker_name: str) -> None:
        request = client_pb2.UnregisterClientRequest(client_id=self._instance.client_id)
        try:
            await self._instance.call_broker(
                broker_name, rpcs.UNREGISTER_CLIENT, request, timeout_s=LEAVE_S
            )
        except MqError as error:
            log.debug("held calls are cut off: %s", error)

    # ---- one receive ----

    async def _receive(self, asked: Receive) -> Popped | None:
        time = asyncio.get_running_loop().time
        while not self._closed:
            try:
                sources = await self.sources.of(asked.subscriptions)
            except MqError as error:
                if asked.deadline_s <= time() or is_refusal(error):
                    raise
                sources = ()
            if sources:
                changes = self.sources.changes
                popped = await self._receive_from(sources, asked)
                if popped is not None or self.sources.changes == changes:
                    return popped
            elif (left_s := asked.deadline_s - time()) > 0:
                await asyncio.sleep(min(left_s, NO_ROUTE_PAUSE_S))
            else:
                return None  # every broker is reserved for the members in its room
        raise ClientClosed("consumer")

    async def _receive_from(self, sources: Sequence[Source], asked: Receive) -> Popped | None:
        """Receive messages from these sources.

        Return None after the deadline, or if the nearby sources have changed.
        """
        changes = self.sources.changes
        time = asyncio.get_running_loop().time
        waiters = self._waiters_of(asked, sources)
        former = await self._holder(sources, asked.attempt_id) if asked.attempt_id else None
        unvisited = dict.fromkeys(sources)
        source = waiters.begin(sources) if former is None else waiters.visit(former)
        while not self._closed:
            if source is not None:
                unvisited.pop(source, None)
                popped = await self._visit(waiters, source, asked)
                if popped is not None:
                    return popped
            if asked.deadline_s <= time():
                # A receive that does not wait has visited every source at least once.
                source = waiters.begin(unvisited)
                if source is not None:
                    continue
                found = None
            else:
                found = await waiters.wait(
                    sources, ReceiveRequest(asked.max_messages, asked.deadline_s)
                )
            if isinstance(found, Source):
                source = found
                continue
            if isinstance(found, MqError):
                raise found
            ended = found is None and not self._closed and self.sources.changes == changes
            if ended and (failure := waiters.failure(sources)):
                raise failure
            return found
        raise ClientClosed("consumer")

    async def _visit(
        self, waiters: ReceiveWaiters, source: Source, asked: Receive
    ) -> Popped | None:
        """Pop the available messages of a source. Return None if there are none or it fails."""
        full = False
        failure: MqError | None = None
        answer_s = VISIT_S + ANSWER_S
        popping = asyncio.ensure_future(self._pop(source, asked, answer_s=answer_s))
        try:
            limit_s = BRIEF_VISIT_S if source in self._slow else VISIT_S
            await asyncio.wait([popping], timeout=limit_s)
            if not popping.done():
                self._slow.add(source)
                failure = RequestTimeout(f"broker {source.broker_name}", limit_s)
                self.run(self._come_late(popping, waiters, asked))
                return None
            popped = popping.result()
            full = popped.size >= asked.max_messages
            if not popped.size:
                return None
            self._slow.discard(source)
            return popped
        except MqError as error:
            failure = error
            if error.code not in _LEFT_OUT:
                raise
            return None
        except asyncio.CancelledError:
            self.run(self._come_late(popping, waiters, asked))
            raise
        finally:
            waiters.end(source, full=full, failure=failure)

    async def _come_late(
        self, popping: asyncio.Future[Popped], waiters: ReceiveWaiters, asked: Receive
    ) -> None:
        """Pass the messages of a late pop to another receive, or return them to the group."""
        try:
            popped = await popping
        except MqError:
            return
        if not popped.size:
            return
        self._slow.discard(popped.source)
        # another receive must not get the messages of an attempt that the caller named
        if asked.attempt_id or self._closed:
            self._give_back(popped)
        else:
            waiters.deliver(popped)

    async def _pop(
        self, source: Source, asked: Receive, *, hold_s: float = 0, answer_s: float = ANSWER_S
    ) -> Popped:
        clock = self._instance.clock
        since_ms = clock.monotonic_ms()
        attempt = self._attempt(source, asked)
        try:
            answer = await self._pops.pop(source, asked, attempt, hold_s=hold_s, answer_s=answer_s)
        except MqError as error:
            if attempt.name and not asked.attempt_id and error.code in _ANSWER_LOST:
                self._lost_attempts[source].append(attempt.name)
            raise
        if hold_s:  # the leases may have just begun
            since_ms = clock.monotonic_ms()
        return Popped(source, answer, since_ms + answer.left_ms, 0, answer.size)

    def _attempt(self, source: Source, asked: Receive) -> Attempt:
        if asked.attempt_id:
            return Attempt(asked.attempt_id, again=True)
        if not self._pops.named:
            return Attempt()
        lost = self._lost_attempts[source]
        return Attempt(lost.popleft(), again=True) if lost else Attempt(uuid4().hex)

    async def _holder(self, sources: Sequence[Source], attempt_id: str) -> Source | None:
        """Return the source that already leased messages to an attempt with this id, or None."""
        return await holder(sources, lambda source: self._pops.is_repeated(source, attempt_id))

    # ---- waiting receives ----

    def _waiters_of(self, asked: Receive, sources: Sequence[Source]) -> ReceiveWaiters:
        pops = self._pops
        key = _WaitersKey(
            tuple(one.SerializeToString() for one in asked.subscriptions.values()),
            asked.invisible_duration_ms if pops.held else 0,
            tuple(sources) if self.sources.changes else (),
            asked.max_messages if pops.apart else 0,
        )
        waiters = self._waiters.get(key)
        if waiters is None:
            if len(self._waiters) >= KEPT_WAITERS:
                self._waiters = {key: one for key, one in self._waiters.items() if not one.is_idle}
            waiters = self._waiters[key] = self._make_waiters(asked)
        return waiters

    def _make_waiters(self, asked: Receive) -> ReceiveWaiters:
        pops = self._pops

        async def pop(source: Source, max_messages: int, hold_s: float) -> Popped | bool:
            wanted = replace(asked, max_messages=max_messages)
            found = await self._pop(source, wanted, hold_s=min(hold_s, HELD_S))
            return found if found.size else False

        async def look(source: Source, max_messages: int, hold_s: float) -> bool:
            if self._lost_attempts[source]:  # the lost pop may have leased messages
                return True
            hold_s = min(hold_s, HELD_S)
            return await pops.has_message(source, asked, hold_s=hold_s, answer_s=ANSWER_S)

        async def probe(source: Source) -> bool:
            return await pops.has_message(source, asked, hold_s=0, answer_s=VISIT_S)

        return ReceiveWaiters(pop if pops.held else look, probe, self._give_back)

    # ---- messages that no receive wants ----

    def _give_back(self, popped: Popped) -> None:
        changes = [Change(one, 0, counted=False) for one in popped.handles()]
        self.run(self._give_back_all(changes))

    async def _give_back_all(self, changes: Sequence[Change]) -> None:
        self.report_kept(await self._calls.change(changes))

    def report_kept(self, outcomes: Iterable[object]) -> None:
        """Log if `outcomes` show that messages could not be returned to the group."""
        for outcome in outcomes:
            if isinstance(outcome, MqError) and not is_over(outcome):
                log.warning("messages not given back, they come when their lease ends: %s", outcome)
                break

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background. `close` waits until it ends."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
