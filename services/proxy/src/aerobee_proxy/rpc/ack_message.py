"""AckMessage: messages are consumed; durable when answered.

Codes of the response and of each entry: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
INVALID_RECEIPT_HANDLE, MULTIPLE_RESULTS, PROXY_TIMEOUT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

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
from aerobee_proxy.rpc.pipeline import Caller, tell
from aerobee_proxy.rpc.settling import may_try_again
from aerobee_proxy.validation import group_name, handle_of, topic_name
from aerobee_wire.receipt_handle import ReceiptHandle


async def ack_message(
    parts: Parts, request: AckMessageRequest, caller: Caller
) -> AckMessageResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    done = status()
    outcomes = [done] * len(request.entries)
    by_broker: dict[str, list[tuple[int, ReceiptHandle]]] = {}
    for place, entry in enumerate(request.entries):
        try:
            handle = handle_of(entry.receipt_handle, topic, group)
        except Exception as error:  # of this entry only
            outcomes[place] = tell(ack_message, error)
        else:
            by_broker.setdefault(handle.broker_name, []).append((place, handle))
    settled = [_settle(parts, name, several, outcomes) for name, several in by_broker.items()]
    await (settled[0] if len(settled) == 1 else asyncio.gather(*settled))
    parts.counts.acknowledged += sum(outcome is done for outcome in outcomes)
    entries = [
        AckMessageResultEntry(
            message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=outcome
        )
        for entry, outcome in zip(request.entries, outcomes, strict=True)
    ]
    return AckMessageResponse(status=overall(outcomes), entries=entries)


async def _settle(
    parts: Parts, broker_name: str, several: list[tuple[int, ReceiptHandle]], outcomes: list[Status]
) -> None:
    """Those of one broker: what goes wrong is put into `outcomes`."""
    # No lease is renewed across its settlement.
    released = [parts.renewals.release(handle) for _, handle in several]
    results: Sequence[LeaseResult | BaseException]
    try:
        results = await parts.brokers.ack(broker_name, [lease_of(handle) for _, handle in several])
    except Exception as error:
        results = [error] * len(several)
    except BaseException:  # the caller left
        for one in released:
            parts.renewals.restore(one)
        raise
    for (place, _), result, one in zip(several, results, released, strict=True):
        if isinstance(result, Exception):
            if may_try_again(result):
                parts.renewals.restore(one)
            outcomes[place] = tell(ack_message, result)
