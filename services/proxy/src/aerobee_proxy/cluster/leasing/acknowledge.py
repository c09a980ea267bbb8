"""Acknowledge or dead-letter leased messages, and change their invisible durations.

During such a request, this proxy must not renew the lease, so its renewal stops before the broker
is called. If the request fails and the client may retry, renewal resumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from aerobee.broker.v1.message_pb2 import Failure
from aerobee.broker.v1.pop_pb2 import DeadLetterEntry, DeadLetterRequest, InvisibleChangeResult

from aerobee_cluster.leases import is_over
from aerobee_proxy.cluster.availability import AWAY
from aerobee_proxy.cluster.batches import BrokerBatches, LeaseFailures
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.leasing.lease_renewal import LeaseRenewal, TrackedLease
from aerobee_proxy.counts import ProxyCounts
from aerobee_wire.handles.leases import (
    check_handle,
    invisible_change,
    key_of,
    keys_of,
    lease_of,
    lease_set_of,
)
from aerobee_wire.handles.receipt_handle import ReceiptHandle, decode_common, split
from aerobee_wire.rpcs import DEAD_LETTER
from aerobee_wire.status import MqError, failure_of

MAX_TIME_MS = 253_402_300_799_000  # the year 9999; a handle from a client may contain any time


class BrokerAway(MqError):
    """The error of a lease whose broker is unavailable. The client may retry."""


@dataclass(slots=True)
class _LeaseSet:
    """The leases of a request whose receipt handles differ only in the queue offset.

    They belong to the same pop and the same queue.
    """

    handle: ReceiptHandle  # the common part; the queue offset is not used
    indexes: list[int] = field(default_factory=list)  # the positions in the client's request
    queue_offsets: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Acknowledgements:
    calls: BrokerCalls
    batches: BrokerBatches
    lease_renewal: LeaseRenewal
    counts: ProxyCounts

    async def acknowledge(
        self, receipt_handles: Sequence[str], topic: str, consumer_group: str
    ) -> Mapping[int, Exception]:
        """Acknowledge messages of one topic and group. They are durable when the call returns.

        Return the failures by the index of the receipt handle. A failure that is not an MqError is
        a defect of this program.
        """
        failures: dict[int, Exception] = {}
        sets: dict[bytes, _LeaseSet] = {}
        for index, text in enumerate(receipt_handles):
            try:
                common, queue_offset = split(text)
                found = sets.get(common)
                if found is None:
                    handle = decode_common(common)
                    check_handle(handle, topic, consumer_group)
                    found = sets[common] = _LeaseSet(handle)
            except Exception as error:  # fails this receipt handle only
                failures[index] = error
            else:
                found.indexes.append(index)
                found.queue_offsets.append(queue_offset)
        by_broker: dict[str, list[_LeaseSet]] = {}
        for found in sets.values():
            by_broker.setdefault(found.handle.broker_name, []).append(found)
        calls = [self._acknowledge(name, own, failures) for name, own in by_broker.items()]
        await (calls[0] if len(calls) == 1 else asyncio.gather(*calls))
        self.counts.acknowledged += len(receipt_handles) - len(failures)
        return failures

    async def _acknowledge(
        self, broker_name: str, sets: Sequence[_LeaseSet], failures: dict[int, Exception]
    ) -> None:
        """Acknowledge leases of one broker, and add the failures to `failures`.

        The keys of `failures` are the indexes of the receipt handles in the client's request.
        """
        untracked = self._untrack(sets)
        answers: Sequence[LeaseFailures | Exception]
        try:
            answers = await self.batches.acknowledge(
                broker_name, [lease_set_of(own.handle, own.queue_offsets) for own in sets]
            )
        except Exception as error:
            answers = [error] * len(sets)
        except BaseException:  # the caller was cancelled
            for lease in untracked.values():
                self.lease_renewal.retrack(lease)
            raise
        for own, answer in zip(sets, answers, strict=True):
            failed: Mapping[int, Exception] = (
                dict.fromkeys(range(len(own.indexes)), answer)
                if isinstance(answer, Exception)
                else answer
            )
            for position, failure in failed.items():
                index = own.indexes[position]
                failures[index] = _client_error(failure, own.handle, untracked.get(index))
                if index in untracked and not is_over(failure):
                    self.lease_renewal.retrack(untracked[index])

    def _untrack(self, sets: Sequence[_LeaseSet]) -> Mapping[int, TrackedLease]:
        """Stop the renewal of leases.

        Return the leases that were being renewed, by the index of their receipt handle.
        """
        untracked: dict[int, TrackedLease] = {}
        if len(self.lease_renewal):
            for own in sets:
                keys = keys_of(own.handle, own.queue_offsets)
                for index, key in zip(own.indexes, keys, strict=True):
                    lease = self.lease_renewal.untrack(key)
                    if lease is not None:
                        untracked[index] = lease
        return untracked

    async def change_invisible_duration(
        self,
        handle: ReceiptHandle,
        duration_ms: int,
        *,
        counted: bool,
        rejection: Failure | None = None,
    ) -> InvisibleChangeResult:
        """Make a message visible to its group after `duration_ms`.

        If `counted` is false, this delivery does not count as an attempt. Set `rejection` if the
        consumer failed to consume the message, to an empty one if the reason is unknown. Raises
        MqError, with the code INVALID_RECEIPT_HANDLE if the lease has ended.
        """
        change = invisible_change(handle, duration_ms, counted=counted)
        if rejection is not None:
            change.rejected = True
            change.failure.CopyFrom(rejection)
        with self._without_renewal(handle):
            return await self.batches.change_invisible_duration(handle.broker_name, change)

    async def dead_letter(self, handle: ReceiptHandle, failure: Failure) -> None:
        """Move a message to the dead-letter topic of its group.

        Raises MqError, with the code INVALID_RECEIPT_HANDLE if the lease has ended.
        """
        entry = DeadLetterEntry(lease=lease_of(handle), failure=failure)
        with self._without_renewal(handle):
            answer = await self.calls.call_patiently(
                handle.broker_name, DEAD_LETTER, DeadLetterRequest(entries=[entry])
            )
            refused = failure_of(answer.results[0])
            if refused is not None:
                raise refused

    @contextmanager
    def _without_renewal(self, handle: ReceiptHandle) -> Iterator[None]:
        untracked = self.lease_renewal.untrack(key_of(handle))
        try:
            yield
        except BaseException as error:
            if untracked is not None and not is_over(error):
                self.lease_renewal.retrack(untracked)
            if isinstance(error, MqError):
                raise _client_error(error, handle, untracked) from None
            raise


def _client_error(
    failure: Exception, handle: ReceiptHandle, renewed: TrackedLease | None
) -> Exception:
    """Convert the failure of a broker call to the error for the client.

    If the broker is unavailable, the error says when the lease ends. `renewed` is the lease if this
    proxy renews it, because a renewed lease may end later than `handle` says.
    """
    if not isinstance(failure, MqError) or failure.code not in AWAY:
        return failure
    expires_ms = handle.expires_ms if renewed is None else renewed.expires_ms
    end = datetime.fromtimestamp(min(expires_ms, MAX_TIME_MS) / 1_000, UTC)
    return BrokerAway(
        failure.code,
        f"broker {handle.broker_name} is unavailable; the lease ends at {end:%Y-%m-%dT%H:%M:%SZ}, "
        "retry",
    )
