"""Receiving messages on lease, and giving back those that did not reach the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog
from aerobee.broker.v1.pop_pb2 import PopRequest, PopResponse

from aerobee_proxy.background import Background
from aerobee_proxy.cluster.batches import BrokerBatches
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.leasing.lease_renewal import LeaseRenewal
from aerobee_proxy.cluster.leasing.leases import invisible_change, key_of
from aerobee_proxy.counts import ProxyCounts
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.rpcs import POP
from aerobee_wire.status import MqError

ANSWER_S = 5.0  # for the broker to answer once the long poll is over


class Receiver:
    def __init__(
        self,
        calls: BrokerCalls,
        batches: BrokerBatches,
        lease_renewal: LeaseRenewal,
        background: Background,
        counts: ProxyCounts,
    ) -> None:
        self._calls = calls
        self._batches = batches
        self._lease_renewal = lease_renewal
        self._background = background
        self._counts = counts

    async def pop(self, broker_name: str, request: PopRequest) -> PopResponse:
        """Pops from one broker, with a long poll. Raises MqError.

        While the broker is away, this waits for the broker instead of for messages: after an error
        at once, SDKs would ask again after 1 s, and one of them 50 times a second.
        """

        def attempt(left_s: float) -> tuple[PopRequest, float]:
            request.poll_duration_ms = round(left_s * 1_000)
            return request, left_s + ANSWER_S

        deadline_s = asyncio.get_running_loop().time() + request.poll_duration_ms / 1_000
        return await self._calls.call_until(broker_name, POP, attempt, deadline_s=deadline_s)

    def renew(self, leases: Iterable[tuple[ReceiptHandle, str]], client_id: str, user: str) -> None:
        """Renews leases, each a receipt handle and a message id, while the client lives."""
        track = self._lease_renewal.track
        for handle, message_id in leases:
            track(handle, client_id, message_id, user)

    def delivered(self, messages: int) -> None:
        """The client got this many messages."""
        self._counts.received += messages

    def give_back(self, handles: Sequence[ReceiptHandle]) -> None:
        """Makes messages that may not have reached the client visible at once, without counting a
        delivery. Goes on in the background."""
        for handle in handles:
            self._lease_renewal.untrack(key_of(handle))
        self._background.run(self._make_visible(handles))

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
