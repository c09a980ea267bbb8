"""Implement LiteService: SyncLiteTopics, LitePop, ListLiteTopics, ListLiteClients.

Codes: SUBSCRIPTION_GROUP_NOT_EXIST, TOPIC_NOT_EXIST, NO_PERMISSION, INVALID_PARAMETER,
LITE_SUBSCRIPTION_QUOTA_EXCEEDED, ILLEGAL_OPERATION. LitePop also has the codes of Pop.

Difference from Apache's server: the answers to a client's own calls list the lite topics that the
client has lost. So the client receives this list through any proxy.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.v1 import lite_pb2 as pb
from aerobee.broker.v1.pop_pb2 import PopResponse

from aerobee_broker.delivery.lite.inspection import LiteInspection
from aerobee_broker.delivery.lite.lite_pop import LitePop, LitePopRequest, LiteResult
from aerobee_broker.delivery.lite.syncing import Action, Begin, Start, Syncing, SyncRequest
from aerobee_broker.delivery.pop.pop import DEFAULT_BYTES, MAX_BYTES, MAX_MESSAGES
from aerobee_broker.errors import InvalidParameter
from aerobee_chassis.rpc.call import Call

_ACTIONS: Mapping[int, Action] = {
    pb.LITE_SYNC_ADD: Action.ADD,
    pb.LITE_SYNC_REMOVE: Action.REMOVE,
    pb.LITE_SYNC_REPLACE: Action.REPLACE,
    pb.LITE_SYNC_LEAVE: Action.LEAVE,
    pb.LITE_SYNC_KEEP: Action.KEEP,
}
_STARTS: Mapping[str, Start] = {
    "first": Start.FIRST,
    "end": Start.END,
    "number": Start.NUMBER,
    "tail": Start.TAIL,
    "stored_since_ms": Start.TIME,
}


class LiteRpcs:
    def __init__(
        self, syncing: Syncing, pop: LitePop, inspection: LiteInspection, *, broker_name: str
    ) -> None:
        self._syncing = syncing
        self._pop = pop
        self._inspection = inspection
        self._broker_name = broker_name

    async def sync_lite_topics(
        self, request: pb.SyncLiteTopicsRequest, call: Call
    ) -> pb.SyncLiteTopicsResponse:
        action = _ACTIONS.get(request.action)
        if action is None:
            raise InvalidParameter(f"action {request.action} is unknown: use a LiteSync")
        group, client_id = request.consumer_group, request.client_id
        await self._syncing.sync(
            SyncRequest(
                group,
                client_id,
                request.parent,
                action,
                request.lite_topics,
                _begin(request),
                request.may_return,
            )
        )
        return pb.SyncLiteTopicsResponse(lost=self._syncing.take_lost(group, client_id))

    async def lite_pop(self, request: pb.LitePopRequest, call: Call) -> pb.LitePopResponse:
        if request.max_bytes < 0 or request.poll_duration_ms < 0:
            raise InvalidParameter("max_bytes and poll_duration_ms are not negative")
        wanted = LitePopRequest(
            consumer_group=request.consumer_group,
            parent=request.parent,
            client_id=request.client_id,
            max_messages=request.max_messages or MAX_MESSAGES,
            max_bytes=min(request.max_bytes or DEFAULT_BYTES, MAX_BYTES),
            invisible_duration_ms=request.invisible_duration_ms,
            attempt_id=request.attempt_id,
        )
        self._syncing.returned(request.consumer_group, request.client_id, request.parent)
        popped = await self._pop.pop(wanted, request.poll_duration_ms)
        lost = self._syncing.take_lost(request.consumer_group, request.client_id)
        return pb.LitePopResponse(batches=map(self._messages, popped), lost=lost)

    async def list_lite_topics(
        self, request: pb.ListLiteTopicsRequest, call: Call
    ) -> pb.ListLiteTopicsResponse:
        found, total = await self._inspection.list_topics(
            request.parent,
            consumer_group=request.consumer_group,
            limit=request.limit,
            lite_topic=request.lite_topic,
        )
        infos = [
            pb.LiteTopicInfo(
                lite_topic=each.lite_topic,
                queue_id=each.queue_id,
                messages=each.messages,
                lag=each.lag,
                oldest_timestamp_ms=each.oldest_ms,
                newest_timestamp_ms=each.newest_ms,
                subscribers=each.subscribers,
            )
            for each in found
        ]
        return pb.ListLiteTopicsResponse(lite_topics=infos, total=total)

    async def list_lite_clients(
        self, request: pb.ListLiteClientsRequest, call: Call
    ) -> pb.ListLiteClientsResponse:
        found = self._inspection.list_clients(request.parent, request.lite_topic)
        infos = [pb.LiteClientInfo(**each._asdict()) for each in found]
        return pb.ListLiteClientsResponse(clients=infos)

    def _messages(self, result: LiteResult) -> pb.LiteMessages:
        popped = result.popped
        return pb.LiteMessages(
            lite_topic=result.lite_topic,
            queue_id=result.queue_id,
            messages=PopResponse(
                records=popped.records,
                message_count=len(popped.attempts),
                delivery_attempts=popped.attempts,
                lease_id=popped.lease_id,
                pop_time_ms=popped.pop_time_ms,
                invisible_duration_ms=popped.invisible_duration_ms,
                broker_name=self._broker_name,
            ),
        )


def _begin(request: pb.SyncLiteTopicsRequest) -> Begin:
    given = request.WhichOneof("begin")
    if given is None:
        return Begin()
    value = int(getattr(request, given))
    if value < 0:
        raise InvalidParameter(f"invalid {given} {value}: use 0 or more", about="begin")
    return Begin(_STARTS[given], value)
