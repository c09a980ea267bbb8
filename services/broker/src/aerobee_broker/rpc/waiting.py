"""Implement the RPCs of AdminService about what waits, and ReleaseLease.

Codes: SUBSCRIPTION_GROUP_NOT_EXIST, INVALID_PARAMETER, INVALID_RECEIPT_HANDLE (the message is not
on the lease any more).
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.broker.v1 import admin_pb2 as pb

from aerobee_broker.delivery.pop.invisible_duration import InvisibleChange
from aerobee_broker.delivery.pop.lease_table import LeaseName
from aerobee_broker.delivery.waiting import Waiting
from aerobee_chassis.rpc.call import Call


@dataclass(frozen=True, slots=True)
class WaitingRpcs:
    waiting: Waiting

    async def list_leases(self, request: pb.ListLeasesRequest, call: Call) -> pb.ListLeasesResponse:
        found = await self.waiting.held(
            request.consumer_group,
            topic=request.topic,
            client_id=request.client_id,
            message_id=request.message_id,
            limit=request.limit,
        )
        return pb.ListLeasesResponse(
            leases=[pb.HeldLease(**row._asdict()) for row in found.rows],
            total=found.total,
            lite_leases=self.waiting.leased_lite_messages(request.consumer_group),
        )

    async def release_lease(
        self, request: pb.ReleaseLeaseRequest, call: Call
    ) -> pb.ReleaseLeaseResponse:
        lease = LeaseName(
            request.consumer_group,
            request.topic,
            request.queue_id,
            request.queue_offset,
            request.lease_id,
            0,
        )
        (result,) = await self.waiting.leases.change([InvisibleChange(lease, 0, uncounted=True)])
        if result.error is not None:
            raise result.error
        return pb.ReleaseLeaseResponse()

    async def list_transactions(
        self, request: pb.ListTransactionsRequest, call: Call
    ) -> pb.ListTransactionsResponse:
        found = self.waiting.open_transactions(
            topic=request.topic,
            producer_group=request.producer_group,
            transaction_id=request.transaction_id,
            limit=request.limit,
        )
        return pb.ListTransactionsResponse(
            transactions=[pb.OpenTransaction(**row._asdict()) for row in found.rows],
            total=found.total,
        )

    async def list_delayed(
        self, request: pb.ListDelayedRequest, call: Call
    ) -> pb.ListDelayedResponse:
        found = await self.waiting.delayed(topic=request.topic, limit=request.limit)
        return pb.ListDelayedResponse(
            messages=[pb.DelayedMessage(**row._asdict()) for row in found.rows],
            total=found.total,
            examined=found.examined,
        )
