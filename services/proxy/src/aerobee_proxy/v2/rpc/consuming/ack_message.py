"""AckMessage: messages are consumed; durable when answered.

Codes of the response and of each entry: ILLEGAL_TOPIC, ILLEGAL_CONSUMER_GROUP,
INVALID_RECEIPT_HANDLE, MULTIPLE_RESULTS, PROXY_TIMEOUT.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from apache.rocketmq.v2.definition_pb2 import Status
from apache.rocketmq.v2.service_pb2 import (
    AckMessageRequest,
    AckMessageResponse,
    AckMessageResultEntry,
)

from aerobee_proxy.cluster.broker_calls import Refusals
from aerobee_proxy.cluster.lease_renewal import Renewed
from aerobee_proxy.cluster.leases import keys_of, lease_set_of
from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import overall, status
from aerobee_proxy.v2.rpc.consuming.lease_handover import may_try_again
from aerobee_proxy.v2.rpc.pipeline import Caller, tell
from aerobee_proxy.v2.validation import check_handle, group_name, topic_name
from aerobee_wire.receipt_handle import ReceiptHandle, decode_common, split

_DONE = AckMessageResultEntry(status=status())


@dataclass(slots=True)
class _Set:
    """Entries whose handles differ only in queue offset: of one pop and one queue."""

    handle: ReceiptHandle  # but for the offset
    places: list[int] = field(default_factory=list)  # in the request
    queue_offsets: list[int] = field(default_factory=list)


async def ack_message(
    parts: Parts, request: AckMessageRequest, caller: Caller
) -> AckMessageResponse:
    topic, group = topic_name(request.topic), group_name(request.group)
    failures: dict[int, Status] = {}  # by the place of the entry
    sets: dict[bytes, _Set] = {}
    for place, entry in enumerate(request.entries):
        try:
            common, queue_offset = split(entry.receipt_handle)
            found = sets.get(common)
            if found is None:
                handle = decode_common(common)
                check_handle(handle, topic, group)
                found = sets[common] = _Set(handle)
        except Exception as error:  # of this entry only
            failures[place] = tell(ack_message, error)
        else:
            found.places.append(place)
            found.queue_offsets.append(queue_offset)
    by_broker: dict[str, list[_Set]] = {}
    for found in sets.values():
        by_broker.setdefault(found.handle.broker_name, []).append(found)
    settled = [_settle(parts, name, several, failures) for name, several in by_broker.items()]
    await (settled[0] if len(settled) == 1 else asyncio.gather(*settled))
    parts.counts.acknowledged += len(request.entries) - len(failures)
    return _response(request, failures)


def _response(request: AckMessageRequest, failures: Mapping[int, Status]) -> AckMessageResponse:
    count = len(request.entries)
    outcomes = [*failures.values()]
    if len(outcomes) < count:
        outcomes.append(_DONE.status)
    response = AckMessageResponse(status=overall(outcomes), entries=[_DONE] * count)
    for asked, answered in zip(request.entries, response.entries, strict=True):
        answered.message_id = asked.message_id
        answered.receipt_handle = asked.receipt_handle
    for place, failure in failures.items():
        response.entries[place].status.CopyFrom(failure)
    return response


async def _settle(
    parts: Parts, broker_name: str, sets: Sequence[_Set], failures: dict[int, Status]
) -> None:
    """Those of one broker: what goes wrong is put into `failures`."""
    released = _release(parts, sets)
    refusals: Sequence[Refusals | Exception]
    try:
        refusals = await parts.brokers.ack(
            broker_name, [lease_set_of(one.handle, one.queue_offsets) for one in sets]
        )
    except Exception as error:
        refusals = [error] * len(sets)
    except BaseException:  # the caller left
        for renewed in released.values():
            parts.renewals.restore(renewed)
        raise
    for one, refused in zip(sets, refusals, strict=True):
        failed: Mapping[int, Exception] = (
            dict.fromkeys(range(len(one.places)), refused)
            if isinstance(refused, Exception)
            else refused
        )
        for at, failure in failed.items():
            place = one.places[at]
            failures[place] = tell(ack_message, failure)
            if may_try_again(failure):
                parts.renewals.restore(released.get(place))


def _release(parts: Parts, sets: Sequence[_Set]) -> Mapping[int, Renewed]:
    """No lease is renewed across its settlement. By the place of the entry."""
    released: dict[int, Renewed] = {}
    if len(parts.renewals):
        for one in sets:
            keys = keys_of(one.handle, one.queue_offsets)
            for place, key in zip(one.places, keys, strict=True):
                renewed = parts.renewals.release(key)
                if renewed is not None:
                    released[place] = renewed
    return released
