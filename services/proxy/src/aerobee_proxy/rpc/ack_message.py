"""AckMessage: messages are consumed; durable when answered.

Codes of the response and of each entry: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
INVALID_RECEIPT_HANDLE, MULTIPLE_RESULTS, PROXY_TIMEOUT.
"""

from __future__ import annotations

import asyncio

from aerobee.broker.v1.pop_pb2 import LeaseResult
from apache.rocketmq.v2.definition_pb2 import Status
from apache.rocketmq.v2.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
)

from aerobee_proxy.errors import overall, status
from aerobee_proxy.leases import lease_of
from aerobee_proxy.parts import Parts
from aerobee_proxy.renewals import Renewed
from aerobee_proxy.rpc.pipeline import Caller, tell
from aerobee_proxy.rpc.settling import may_try_again
from aerobee_proxy.validation import group_name, handle_of, topic_name


async def ack_message(
    parts: Parts, request: AckMessageRequest, caller: Caller
) -> AckMessageResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    placed: list[_Ack | Status] = []
    done, outcomes = status(), []
    try:
        # All placed before any is waited for: they leave together.
        for entry in request.entries:
            placed.append(await _place(parts, entry.receipt_handle, topic, group))
        for one in placed:
            outcomes.append(one if isinstance(one, Status) else await one.outcome(parts, done))
    finally:  # where the caller left
        for one in placed[len(outcomes) :]:
            if isinstance(one, _Ack):
                one.give_up(parts)
    parts.counts.acknowledged += sum(outcome is done for outcome in outcomes)
    entries = [
        AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=outcome
        )
        for entry, outcome in zip(request.entries, outcomes, strict=True)
    ]
    return AckMessageResponse(status=overall(outcomes), entries=entries)


class _Ack:
    """An acknowledgement on its way to a broker; its lease is not renewed meanwhile."""

    __slots__ = ("_released", "_result")

    def __init__(self, released: Renewed | None, result: asyncio.Future[LeaseResult]) -> None:
        self._released = released
        self._result = result

    async def outcome(self, parts: Parts, done: Status) -> Status:
        """`done`, or what went wrong."""
        try:
            await self._result
        except Exception as error:  # of this entry only
            if may_try_again(error):
                parts.renewals.restore(self._released)
            return tell(ack_message, error)
        return done

    def give_up(self, parts: Parts) -> None:
        self._result.cancel()
        parts.renewals.restore(self._released)


async def _place(parts: Parts, receipt_handle: str, topic: str, group: str) -> _Ack | Status:
    try:
        handle = handle_of(receipt_handle, topic, group)
        released = parts.renewals.release(handle)
        try:
            return _Ack(released, await parts.brokers.ack(handle.broker_name, lease_of(handle)))
        except BaseException as error:
            if may_try_again(error):
                parts.renewals.restore(released)
            raise
    except Exception as error:  # of this entry only
        return tell(ack_message, error)
