"""Implement TrackMessage of SearchService.

Codes: QUERY_NOT_FOUND, TOPIC_NOT_EXIST, INVALID_PARAMETER, ILLEGAL_OPERATION (no index),
FLOW_CONTROL (too many searches run).

Apache's server compares a message with the present offset of each group. So it cannot distinguish a
message that was consumed from one that was skipped by a reset.
"""

from __future__ import annotations

from aerobee.broker.v1 import message_pb2
from aerobee.broker.v1 import search_pb2 as pb

from aerobee_broker.delivery.tracking.state import GroupState, Place
from aerobee_broker.delivery.tracking.tracking import Tracked, Tracking
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.rpc import convert
from aerobee_chassis.rpc.call import Call


class TrackingRpcs:
    def __init__(self, tracking: Tracking) -> None:
        self._tracking = tracking

    async def track_message(
        self, request: pb.TrackMessageRequest, call: Call
    ) -> pb.TrackMessageResponse:
        groups = list(request.consumer_groups)
        match request.WhichOneof("message"):
            case "unique_message_id":
                found = await self._tracking.by_id(request.unique_message_id, groups)
            case "place":
                at = request.place
                place = Place(at.topic, at.queue_id, at.queue_offset)
                found = [await self._tracking.by_place(place, groups)]
            case _:
                raise InvalidParameter("give a unique_message_id or a place")
        return pb.TrackMessageResponse(messages=map(_tracked, found))


def _tracked(tracked: Tracked) -> pb.TrackedMessage:
    message = None if tracked.record is None else convert.stored_message(tracked.record)
    if message is not None:
        message.ClearField("body")
    return pb.TrackedMessage(
        place=_place(tracked.place),
        message=message,
        groups=map(_group_state, tracked.groups),
        due_timestamp_ms=tracked.due_ms,
        uncommitted=tracked.is_half,
    )


def _place(place: Place) -> pb.MessagePlace:
    return pb.MessagePlace(
        topic=place.topic, queue_id=place.queue_id, queue_offset=place.queue_offset
    )


def _group_state(state: GroupState) -> pb.GroupState:
    failure = state.failure
    return pb.GroupState(
        consumer_group=state.consumer_group,
        state=state.state.name,
        reason=state.reason,
        client_id=state.client_id,
        since_timestamp_ms=state.since_ms,
        at_timestamp_ms=state.at_ms,
        until_timestamp_ms=state.until_ms,
        attempt=state.attempt,
        ahead=state.ahead,
        place=None if state.place is None else _place(state.place),
        failure=message_pb2.Failure(reason=failure.reason, description=failure.description),
    )
