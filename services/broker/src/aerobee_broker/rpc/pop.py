"""PopService: Pop, Notification, Ack, ChangeInvisibleDuration, DeadLetter.

For administrators also ListBlockedMessageGroups and SkipMessage.

Codes of Pop and Notification: NO_PERMISSION, SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST,
POLLING_FULL, SUBSCRIPTION_PARSE_FAILED. Codes of a lease: SUCCESS, INVALID_RECEIPT_HANDLE,
INVALID_PARAMETER (its new duration), QUERY_NOT_FOUND (a dead letter: the message is no longer
stored). Codes of each RPC: INVALID_PARAMETER, FLUSH_DISK_TIMEOUT, SERVICE_NOT_AVAILABLE, DISK_FULL,
SYSTEM_BUSY.

Differences from Apache's server: a request settles leases of any groups and topics, lease by lease.
The proxy makes the receipt handles; the broker identifies a lease by queue, queue offset and lease
id.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from aerobee.broker.v1 import pop_pb2 as pb

from aerobee_broker.delivery.lite.state import LiteState
from aerobee_broker.delivery.pop.acks import AckFailure, Acknowledgements
from aerobee_broker.delivery.pop.dead_letters import DeadLetterRequest, DeadLetters, MessagePlace
from aerobee_broker.delivery.pop.invisible_duration import (
    InvisibleChange,
    InvisibleDuration,
    InvisibleDurations,
)
from aerobee_broker.delivery.pop.lease_table import LeaseName, LeaseSet
from aerobee_broker.delivery.pop.leases import Leases
from aerobee_broker.delivery.pop.pop import (
    DEFAULT_BYTES,
    MAX_BYTES,
    MAX_MESSAGES,
    Notifications,
    Pop,
)
from aerobee_broker.delivery.pop.selector import PopRequest, Start
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.filter.filter import Filter
from aerobee_broker.rpc import convert
from aerobee_chassis.rpc.call import Call
from aerobee_wire.queues.lite import is_line
from aerobee_wire.status import Code

# Limit per request: a few bytes name a lease, and its answer is a hundred times as large.
MAX_LEASES = 400_000
MAX_BLOCKED_GROUPS = 1_000  # limit per answer: each group costs a read of its first message
_DONE = pb.LeaseResult(code=int(Code.SUCCESS))
_EVERYTHING = Filter("TAG", "*")
Q = TypeVar("Q")
R = TypeVar("R")
_STARTS: Mapping[int, Start] = {
    pb.POP_START_AUTOMATIC: "automatic",
    pb.POP_START_EARLIEST: "earliest",
    pb.POP_START_LATEST: "latest",
}


@dataclass(frozen=True, slots=True)
class LiteSettlement:
    """The parts that settle leases of lite topics. `state` reports whether these are in use."""

    acks: Acknowledgements
    durations: InvisibleDurations
    dead_letters: DeadLetters
    state: LiteState


class PopRpcs:
    def __init__(
        self,
        pop: Pop,
        acks: Acknowledgements,
        durations: InvisibleDurations,
        dead_letters: DeadLetters,
        leases: Leases,
        *,
        notifications: Notifications,
        lite: LiteSettlement,
        broker_name: str,
    ) -> None:
        self._lite = lite
        self._leases = leases
        self._pop = pop
        self._acks = acks
        self._durations = durations
        self._dead_letters = dead_letters
        self._notifications = notifications
        self._broker_name = broker_name

    async def pop(self, request: pb.PopRequest, call: Call) -> pb.PopResponse:
        popped = await self._pop.pop(_pop_request(request), request.poll_duration_ms)
        if popped is None:
            return pb.PopResponse(broker_name=self._broker_name)
        return pb.PopResponse(
            records=popped.records,
            message_count=len(popped.attempts),
            delivery_attempts=popped.attempts,
            lease_id=popped.lease_id,
            pop_time_ms=popped.pop_time_ms,
            invisible_duration_ms=popped.invisible_duration_ms,
            broker_name=self._broker_name,
        )

    async def notification(
        self, request: pb.NotificationRequest, call: Call
    ) -> pb.NotificationResponse:
        if request.poll_duration_ms < 0:
            raise InvalidParameter("poll_duration_ms is not negative")
        wanted = pb.PopRequest(
            consumer_group=request.consumer_group,
            topic=request.topic,
            subscription=request.subscription if request.HasField("subscription") else None,
            attempt_id=request.attempt_id,
        )
        if request.attempt_id:
            repeated = await self._notifications.is_repeated(_pop_request(wanted))
            return pb.NotificationResponse(is_repeated=repeated)
        found = await self._notifications.wait(_pop_request(wanted), request.poll_duration_ms)
        return pb.NotificationResponse(has_message=found)

    async def ack(self, request: pb.AckRequest, call: Call) -> pb.AckResponse:
        single = len(request.leases)
        count = single + sum(len(leases.queue_offsets) for leases in request.lease_sets)
        if count > MAX_LEASES:
            raise InvalidParameter(
                f"{count} leases are too many for one request: divide it, {MAX_LEASES} are allowed"
            )
        lease_sets = [_lease_set(lease, (lease.queue_offset,)) for lease in request.leases]
        # A slice is a list, which is faster to iterate.
        lease_sets += [_lease_set(leases, leases.queue_offsets[:]) for leases in request.lease_sets]
        response = pb.AckResponse(results=[_DONE] * single, lease_sets=len(lease_sets) - single)
        for set_index, index, error in await self._ack(lease_sets):
            result = pb.LeaseResult(**convert.code_and_message(error))
            if set_index < single:
                response.results[set_index].CopyFrom(result)
            else:
                response.failures.add(lease_set=set_index - single, place=index, result=result)
        return response

    async def _ack(self, lease_sets: list[LeaseSet]) -> list[AckFailure]:
        if not self._lite.state.in_use:
            return await self._acks.ack(lease_sets)
        lite = [at for at, leases in enumerate(lease_sets) if is_line(leases.topic)]
        if not lite:
            return await self._acks.ack(lease_sets)
        others = sorted(set(range(len(lease_sets))).difference(lite))
        failures: list[AckFailure] = []
        for acks, places in ((self._lite.acks, lite), (self._acks, others)):
            failed = await acks.ack([lease_sets[at] for at in places]) if places else []
            failures += [each._replace(set_index=places[each.set_index]) for each in failed]
        return sorted(failures, key=lambda failure: failure[:2])

    async def _divided(
        self,
        requests: list[Q],
        topic_of: Callable[[Q], str],
        ordinary: Callable[[list[Q]], Awaitable[list[R]]],
        lite: Callable[[list[Q]], Awaitable[list[R]]],
    ) -> list[R]:
        """Handle ordinary and lite requests separately. Return results in the requests' order."""
        lines = [is_line(topic_of(request)) for request in requests]
        if not self._lite.state.in_use or not any(lines):
            return await ordinary(requests)
        pairs = list(zip(requests, lines, strict=True))
        of_lines = iter(await lite([request for request, of_line in pairs if of_line]))
        plain = [request for request, of_line in pairs if not of_line]
        of_others = iter(await ordinary(plain) if plain else [])
        return [next(of_lines if of_line else of_others) for of_line in lines]

    async def change_invisible_duration(
        self, request: pb.ChangeInvisibleDurationRequest, call: Call
    ) -> pb.ChangeInvisibleDurationResponse:
        changes = [_change(change) for change in request.changes]
        durations = await self._divided(
            changes,
            lambda change: change.lease.topic,
            self._durations.change,
            self._lite.durations.change,
        )
        return pb.ChangeInvisibleDurationResponse(results=map(_change_result, durations))

    async def dead_letter(self, request: pb.DeadLetterRequest, call: Call) -> pb.DeadLetterResponse:
        outcomes = await self._divided(
            [
                DeadLetterRequest(_lease(entry.lease), convert.failure(entry.failure))
                for entry in request.entries
            ],
            lambda wanted: wanted.lease.topic,
            self._dead_letters.dead_letter,
            self._lite.dead_letters.dead_letter,
        )
        results = (pb.LeaseResult(**convert.code_and_message(error)) for error in outcomes)
        return pb.DeadLetterResponse(results=results)

    async def list_blocked_message_groups(
        self, request: pb.ListBlockedMessageGroupsRequest, call: Call
    ) -> pb.ListBlockedMessageGroupsResponse:
        if request.max_groups < 0:
            raise InvalidParameter(f"max_groups is not negative, but {request.max_groups}")
        limit = min(request.max_groups or MAX_BLOCKED_GROUPS, MAX_BLOCKED_GROUPS)
        groups, total = self._leases.blocked_groups(request.consumer_group, limit)
        return pb.ListBlockedMessageGroupsResponse(
            groups=[pb.BlockedMessageGroup(**group._asdict()) for group in groups], total=total
        )

    async def skip_message(
        self, request: pb.SkipMessageRequest, call: Call
    ) -> pb.SkipMessageResponse:
        place = MessagePlace(
            request.consumer_group, request.topic, request.queue_id, request.queue_offset
        )
        await self._dead_letters.skip(place, convert.failure(request.failure))
        return pb.SkipMessageResponse()


def _pop_request(request: pb.PopRequest) -> PopRequest:
    if request.start not in _STARTS:
        raise InvalidParameter(f"start {request.start} is unknown: use a PopStart")
    if request.max_bytes < 0 or request.poll_duration_ms < 0:
        raise InvalidParameter("max_bytes and poll_duration_ms are not negative")
    return PopRequest(
        consumer_group=request.consumer_group,
        topic=request.topic,
        queue_id=request.queue_id if request.HasField("queue_id") else None,
        max_messages=request.max_messages or MAX_MESSAGES,
        max_bytes=min(request.max_bytes or DEFAULT_BYTES, MAX_BYTES),
        invisible_duration_ms=request.invisible_duration_ms,
        filter=(
            convert.filter_of(request.subscription)
            if request.HasField("subscription")
            else _EVERYTHING
        ),
        fifo=request.fifo,
        attempt_id=request.attempt_id,
        start=_STARTS[request.start],
        client_id=request.client_id,
    )


def _lease(lease: pb.Lease) -> LeaseName:
    return LeaseName(
        lease.consumer_group,
        lease.topic,
        lease.queue_id,
        lease.queue_offset,
        lease.lease_id,
        lease.expires_timestamp_ms,
    )


def _lease_set(leases: pb.Lease | pb.LeaseSet, queue_offsets: Sequence[int]) -> LeaseSet:
    return LeaseSet(
        leases.consumer_group,
        leases.topic,
        leases.queue_id,
        leases.lease_id,
        leases.expires_timestamp_ms,
        queue_offsets,
    )


def _change(change: pb.InvisibleChange) -> InvisibleChange:
    by_policy = change.WhichOneof("visible") == "by_retry_policy" and change.by_retry_policy
    return InvisibleChange(
        _lease(change.lease),
        None if by_policy else change.invisible_duration_ms,
        change.uncounted,
        change.unless_changed,
    )


def _change_result(duration: InvisibleDuration) -> pb.InvisibleChangeResult:
    return pb.InvisibleChangeResult(
        **convert.code_and_message(duration.error),
        pop_time_ms=duration.pop_time_ms,
        invisible_duration_ms=duration.invisible_duration_ms,
    )
