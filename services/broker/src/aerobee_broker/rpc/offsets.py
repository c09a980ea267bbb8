"""Implement OffsetService: the offsets of consumer groups.

The RPCs for the offsets of queues are in `reads.py`.

Codes: TOPIC_NOT_EXIST, SUBSCRIPTION_GROUP_NOT_EXIST, INVALID_PARAMETER (a queue that the topic does
not have, a negative offset), QUEUE_LOCK_NOT_HELD, ILLEGAL_OPERATION (a member consumes the topic).

Difference from Apache's server: the answer omits a queue without a stored offset, and does not
guess one. The caller decides where to begin.
"""

from __future__ import annotations

from dataclasses import asdict

from aerobee.broker.v1 import offset_pb2 as pb

from aerobee_broker.delivery.lite.lag import GroupProgress
from aerobee_broker.delivery.pull.offsets import OffsetQueries, QueueOffset
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.registry.handovers import Handovers
from aerobee_chassis.rpc.call import Call


class OffsetRpcs:
    def __init__(
        self, queries: OffsetQueries, handovers: Handovers, progress: GroupProgress
    ) -> None:
        self._queries = queries
        self._handovers = handovers
        self._progress = progress

    async def query_consumer_offsets(
        self, request: pb.QueryConsumerOffsetsRequest, call: Call
    ) -> pb.QueryConsumerOffsetsResponse:
        stored = self._queries.stored(request.consumer_group, request.topic)
        held = self._handovers.take(
            request.consumer_group, request.client_id, request.topic, request.queue_ids
        )
        return pb.QueryConsumerOffsetsResponse(
            offsets=map(_queue_offset, stored),
            held=[
                pb.HeldQueue(queue_id=queue_id, client_id=owner) for queue_id, owner in held.items()
            ],
        )

    async def update_consumer_offsets(
        self, request: pb.UpdateConsumerOffsetsRequest, call: Call
    ) -> pb.UpdateConsumerOffsetsResponse:
        beyond_end = self._queries.update(
            request.consumer_group,
            [
                QueueOffset(given.topic, given.queue_id, given.queue_offset)
                for given in request.offsets
            ],
            client_id=request.client_id,
            locked=request.locked,
        )
        self._handovers.release(
            request.consumer_group,
            request.client_id,
            [(queue.topic, queue.queue_id) for queue in request.released],
        )
        return pb.UpdateConsumerOffsetsResponse(beyond_end=map(_queue_offset, beyond_end))

    async def reset_consumer_offsets(
        self, request: pb.ResetConsumerOffsetsRequest, call: Call
    ) -> pb.ResetConsumerOffsetsResponse:
        to = request.WhichOneof("to")
        if to is None:
            raise InvalidParameter("say where to: timestamp_ms (below 0: the end) or queue_offset")
        offsets = await self._queries.reset(
            request.consumer_group,
            request.topic,
            list(request.queue_ids),
            timestamp_ms=request.timestamp_ms if to == "timestamp_ms" else None,
            queue_offset=request.queue_offset if to == "queue_offset" else None,
            requested_by=request.requested_by or call.peer,
        )
        return pb.ResetConsumerOffsetsResponse(offsets=map(_queue_offset, offsets))

    async def forget_consumer_offsets(
        self, request: pb.ForgetConsumerOffsetsRequest, call: Call
    ) -> pb.ForgetConsumerOffsetsResponse:
        offsets = await self._queries.forget(
            request.consumer_group, request.topic, dry_run=request.dry_run
        )
        return pb.ForgetConsumerOffsetsResponse(offsets=map(_queue_offset, offsets))

    async def get_consume_stats(
        self, request: pb.GetConsumeStatsRequest, call: Call
    ) -> pb.GetConsumeStatsResponse:
        progress = await self._progress.of(request.consumer_group, request.topic)
        return pb.GetConsumeStatsResponse(
            queues=[pb.QueueConsumeStats(**asdict(queue)) for queue in progress]
        )


def _queue_offset(offset: QueueOffset) -> pb.QueueOffset:
    return pb.QueueOffset(**asdict(offset))
