"""Implement PopService: Pop, Notification, Ack, ChangeInvisibleDuration, DeadLetter.

The RPCs for administrators are ListBlockedMessageGroups and SkipMessage.

Codes of Pop and Notification: NO_PERMISSION, SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST,
POLLING_FULL, SUBSCRIPTION_PARSE_FAILED. Codes of a lease: SUCCESS, INVALID_RECEIPT_HANDLE,
INVALID_PARAMETER (its new duration), QUERY_NOT_FOUND (the message of a dead letter is no longer
stored). Codes of each RPC: INVALID_PARAMETER, FLUSH_DISK_TIMEOUT, SERVICE_NOT_AVAILABLE, DISK_FULL,
SYSTEM_BUSY.

Differences from Apache's server: a request settles leases of any groups and topics, and has one
result for each lease. The proxy makes the receipt handles; the broker identifies a lease by queue,
queue offset and lease id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aerobee.broker.v1 import pop_pb2 as pb

from aerobee_broker.delivery.pop.dead_letters import DeadLetterRequest, MessagePlace
from aerobee_broker.delivery.pop.invisible_duration import InvisibleChange, InvisibleDuration
from aerobee_broker.delivery.pop.lease_space import LeaseSpaces
from aerobee_broker.delivery.pop.lease_table import LeaseName, LeaseSet
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
from aerobee_wire.status import Code

# Limit per request: the answer for a lease is a hundred times as large as its name.
MAX_LEASES = 400_000
MAX_BLOCKED_GROUPS = 1_000  # limit per answer: each group costs a read of its first message
_DONE = pb.LeaseResult(code=int(Code.SUCCESS))
_EVERYTHING = Filter("TAG", "*")
_STARTS: Mapping[int, Start] = {
    pb.POP_START_AUTOMATIC: "automatic",
    pb.POP_START_EARLIEST: "earliest",
    pb.POP_START_LATEST: "latest",
}


class PopRpcs:
    def __init__(
        self, pop: Pop, notifications: Notifications, leases: LeaseSpaces, *, broker_name: str
    ) -> None:
        self._pop = pop
        self._notifications = notifications
        self._leases = leases
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
            raise InvalidParameter(
                f"invalid poll_duration_ms {request.poll_duration_ms}: use 0 or more"
            )
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
        # `[:]` makes a list, which is faster to iterate than a protobuf field.
        lease_sets += [_lease_set(leases, leases.queue_offsets[:]) for leases in request.lease_sets]
        response = pb.AckResponse(results=[_DONE] * single, lease_sets=len(lease_sets) - single)
        for set_index, index, error in await self._leases.ack(lease_sets):
            result = pb.LeaseResult(**convert.code_and_message(error))
            if set_index < single:
                response.results[set_index].CopyFrom(result)
            else:
                response.failures.add(lease_set=set_index - single, place=index, result=result)
        return response

    async def change_invisible_duration(
        self, request: pb.ChangeInvisibleDurationRequest, call: Call
    ) -> pb.ChangeInvisibleDurationResponse:
        durations = await self._leases.change([_change(change) for change in request.changes])
        return pb.ChangeInvisibleDurationResponse(results=map(_change_result, durations))

    async def dead_letter(self, request: pb.DeadLetterRequest, call: Call) -> pb.DeadLetterResponse:
        outcomes = await self._leases.dead_letter(
            [
                DeadLetterRequest(_lease(entry.lease), convert.failure(entry.failure))
                for entry in request.entries
            ]
        )
        results = (pb.LeaseResult(**convert.code_and_message(error)) for error in outcomes)
        return pb.DeadLetterResponse(results=results)

    async def list_blocked_message_groups(
        self, request: pb.ListBlockedMessageGroupsRequest, call: Call
    ) -> pb.ListBlockedMessageGroupsResponse:
        if request.max_groups < 0:
            raise InvalidParameter(f"invalid max_groups {request.max_groups}: use 0 or more")
        limit = min(request.max_groups or MAX_BLOCKED_GROUPS, MAX_BLOCKED_GROUPS)
        groups, total = self._leases.queues.blocked_groups(request.consumer_group, limit)
        return pb.ListBlockedMessageGroupsResponse(
            groups=[pb.BlockedMessageGroup(**group._asdict()) for group in groups], total=total
        )

    async def skip_message(
        self, request: pb.SkipMessageRequest, call: Call
    ) -> pb.SkipMessageResponse:
        place = MessagePlace(
            request.consumer_group, request.topic, request.queue_id, request.queue_offset
        )
        await self._leases.queues.dead_letters.skip(place, convert.failure(request.failure))
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
        convert.failure(change.failure).bounded() if change.rejected else None,
    )


def _change_result(duration: InvisibleDuration) -> pb.InvisibleChangeResult:
    return pb.InvisibleChangeResult(
        **convert.code_and_message(duration.error),
        pop_time_ms=duration.pop_time_ms,
        invisible_duration_ms=duration.invisible_duration_ms,
    )
