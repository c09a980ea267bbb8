"""Settle and change leases at their brokers, in requests that many callers share.

The kinds of requests are acknowledgements, changes of invisible durations, and dead letters. Each
kind has one request in flight per broker. A request that fails and is safe to retry is retried
until its timeout, because most brokers that do not answer are restarting. If a retry finds that a
lease is already settled, an earlier attempt, whose answer was lost, has settled it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple, TypeVar, cast

from aerobee.broker.v1 import message_pb2, pop_pb2
from google.protobuf.message import Message

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.errors import RequestTimeout
from aerobee_cluster.batcher import Batchers
from aerobee_cluster.leases import ack_failures, is_over
from aerobee_wire import rpcs
from aerobee_wire.backoff import Backoff
from aerobee_wire.handles.leases import invisible_change, lease_of, lease_set_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.queues.lite import lite_topic_of
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError, failure_of

I = TypeVar("I")  # noqa: E741  # item
O = TypeVar("O")  # noqa: E741  # outcome; an MqError among others
Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

MAX_LEASES = 4_096  # per request
PAUSE_S, MAX_PAUSE_S = 0.1, 0.5  # between two attempts
# The broker may have executed a request that failed with one of these codes.
ANSWER_LOST = frozenset({Code.BROKER_UNREACHABLE, Code.REQUEST_TIMEOUT})

# The error of an item, or None on success.
Outcome = MqError | None


class Change(NamedTuple):
    """A change of a lease.

    If `duration_ms` is None, the retry delay of the group applies. With `unless_changed`, the
    broker refuses the change if the lease ends at another time than in `handle`.
    """

    handle: ReceiptHandle
    duration_ms: int | None
    counted: bool = True
    unless_changed: bool = False


class DeadLetterEntry(NamedTuple):
    handle: ReceiptHandle
    failure: message_pb2.Failure


class Changed(NamedTuple):
    """The result of a change: the start of the new duration (epoch ms), and the duration."""

    pop_time_ms: int
    invisible_duration_ms: int


class Answered(NamedTuple, Generic[R]):
    response: R
    repeated: bool  # the broker may have executed an earlier attempt


class LeaseCalls:
    """Sends calls about leases to brokers.

    `timeout_s` is the time limit of a call, including retries.
    """

    def __init__(self, instance: ClientInstance, timeout_s: float) -> None:
        self._instance = instance
        self._timeout_s = timeout_s
        self._acks: Batchers[ReceiptHandle, Outcome] = Batchers(self._ack, max_items=MAX_LEASES)
        self._changes: Batchers[Change, Changed | MqError] = Batchers(
            self._change, max_items=MAX_LEASES
        )
        self._dead_letters: Batchers[DeadLetterEntry, Outcome] = Batchers(
            self._dead_letter, max_items=MAX_LEASES
        )

    async def acknowledge(self, handles: Sequence[ReceiptHandle]) -> Sequence[Outcome]:
        """Acknowledge leases and return the outcome of each lease, in order.

        The outcome is an MqError with the code INVALID_RECEIPT_HANDLE if a lease has ended.
        """
        return await self._share(self._acks, handles, handles)

    async def change(self, changes: Sequence[Change]) -> Sequence[Changed | MqError]:
        return await self._share(self._changes, changes, [one.handle for one in changes])

    async def dead_letter(self, entries: Sequence[DeadLetterEntry]) -> Sequence[Outcome]:
        return await self._share(self._dead_letters, entries, [one.handle for one in entries])

    async def drain(self) -> None:
        """Wait until no request is queued or in flight."""
        every = (self._acks, self._changes, self._dead_letters)
        batchers = [batcher for kind in every for batcher in kind.values()]
        await asyncio.gather(*(batcher.drain() for batcher in batchers))

    # ---- sharing requests ----

    async def _share(
        self, batchers: Batchers[I, O], items: Sequence[I], handles: Sequence[ReceiptHandle]
    ) -> Sequence[O]:
        names = list(map(_broker_name, handles))
        if not names:
            return []
        if names.count(names[0]) == len(items):  # one broker, as after most receives
            return await self._share_at(handles[0], batchers, items)
        places: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            places.setdefault(name, []).append(place)
        found = await asyncio.gather(
            *(
                self._share_at(handles[own[0]], batchers, [items[place] for place in own])
                for own in places.values()
            )
        )
        outcomes: dict[int, O] = {}
        for own, answers in zip(places.values(), found, strict=True):
            outcomes.update(zip(own, answers, strict=True))
        return [outcomes[place] for place in range(len(items))]

    async def _share_at(
        self, first: ReceiptHandle, batchers: Batchers[I, O], items: Sequence[I]
    ) -> Sequence[O]:
        """Submit items to the broker of `first`, which is the handle of one of the items."""
        broker_name = first.broker_name
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._find(broker_name, first.topic)
                # A failure of one item is an MqError, which is an outcome.
                return cast("Sequence[O]", await batchers[broker_name].submit_all(items))
        except TimeoutError:
            failure: MqError = RequestTimeout(f"broker {broker_name}", self._timeout_s)
        except MqError as error:
            failure = error
        return cast("Sequence[O]", [failure] * len(items))

    async def _find(self, broker_name: str, topic: str) -> None:
        """Ensure that the routes contain a broker. Raises MqError.

        A handle from another process may belong to a broker that this client has not used. Raises
        MqError if the route does not contain the broker.
        """
        routes = self._instance.routes
        if not routes.addresses_of(broker_name):
            await routes.route(topic)
            if not routes.addresses_of(broker_name):
                await routes.refresh_soon(topic)
        routes.address_of(broker_name)

    async def call(self, broker_name: str, topic: str, rpc: Rpc[Q, R], request: Q) -> Answered[R]:
        """Call a broker in the route of `topic`, with retries. Raises MqError."""
        time = asyncio.get_running_loop().time
        deadline_s, backoff, repeated = (
            time() + self._timeout_s,
            Backoff(PAUSE_S, MAX_PAUSE_S),
            False,
        )
        while True:
            left_s = max(0.001, deadline_s - time())
            try:
                response = await self._instance.call_broker(
                    broker_name, rpc, request, timeout_s=left_s
                )
                return Answered(response, repeated)
            except MqError as error:
                pause_s = backoff.next_s()
                if not error.retryable or time() + pause_s >= deadline_s:
                    raise
                repeated = repeated or error.code in ANSWER_LOST
            await asyncio.sleep(pause_s)
            # the broker may be back at another address
            await self._instance.routes.refresh_soon(topic)

    # ---- requests ----

    async def _ack(self, broker_name: str, handles: Sequence[ReceiptHandle]) -> Sequence[Outcome]:
        sets: defaultdict[object, list[int]] = defaultdict(list)
        for place, key in enumerate(map(_of_set, handles)):
            sets[key].append(place)
        request = pop_pb2.AckRequest(
            lease_sets=[
                lease_set_of(handles[own[0]], [handles[place].queue_offset for place in own])
                for own in sets.values()
            ]
        )
        answer, _ = await self.call(broker_name, _routed_topic(handles[0]), rpcs.ACK, request)
        failures = ack_failures(answer, len(sets), broker_name=broker_name, caller="client")
        outcomes: list[Outcome] = [None] * len(handles)
        for own, failed in zip(sets.values(), failures, strict=True):
            for index, failure in failed.items():
                outcomes[own[index]] = failure
        return outcomes

    async def _change(
        self, broker_name: str, changes: Sequence[Change]
    ) -> Sequence[Changed | MqError]:
        request = pop_pb2.ChangeInvisibleDurationRequest(changes=map(_change, changes))
        topic = _routed_topic(changes[0].handle)
        answer, repeated = await self.call(
            broker_name, topic, rpcs.CHANGE_INVISIBLE_DURATION, request
        )
        outcomes: list[Changed | MqError] = []
        for change, result in zip(changes, answer.results, strict=True):
            failure = failure_of(result)
            if failure is None:
                outcomes.append(Changed(result.pop_time_ms, result.invisible_duration_ms))
            elif change.duration_ms == 0 and repeated and self._was_done(change.handle, failure):
                outcomes.append(Changed(self._instance.clock.now_ms(), 0))
            else:
                outcomes.append(failure)
        return outcomes

    async def _dead_letter(
        self, broker_name: str, entries: Sequence[DeadLetterEntry]
    ) -> Sequence[Outcome]:
        request = pop_pb2.DeadLetterRequest(
            entries=[
                pop_pb2.DeadLetterEntry(lease=lease_of(entry.handle), failure=entry.failure)
                for entry in entries
            ]
        )
        topic = _routed_topic(entries[0].handle)
        answer, repeated = await self.call(broker_name, topic, rpcs.DEAD_LETTER, request)
        outcomes: list[Outcome] = []
        for entry, result in zip(entries, answer.results, strict=True):
            failure = failure_of(result)
            done = failure is not None and repeated and self._was_done(entry.handle, failure)
            outcomes.append(None if done else failure)
        return outcomes

    def _was_done(self, handle: ReceiptHandle, failure: MqError) -> bool:
        """Return whether an earlier attempt, whose answer was lost, has settled the lease."""
        return is_over(failure) and handle.expires_ms > self._instance.now_ms_at(handle.broker_name)


# What the handles of a lease set have in common: all fields but offset and attempt.
_of_set: Callable[[ReceiptHandle], object] = attrgetter(
    *(name for name in ReceiptHandle._fields if name not in ("queue_offset", "delivery_attempt"))
)
_broker_name: Callable[[ReceiptHandle], str] = attrgetter("broker_name")


def _routed_topic(handle: ReceiptHandle) -> str:
    """Return the topic of a lease that name servers know: the topic, or a lite topic's parent."""
    lite_topic = lite_topic_of(handle.topic)
    return lite_topic.parent if lite_topic is not None else handle.topic


def _change(change: Change) -> pop_pb2.InvisibleChange:
    handle, duration_ms, counted, unless_changed = change
    if duration_ms is None:
        made = pop_pb2.InvisibleChange(lease=lease_of(handle), by_retry_policy=True)
    else:
        made = invisible_change(handle, duration_ms, counted=counted)
    made.uncounted = not counted
    made.unless_changed = unless_changed
    return made
