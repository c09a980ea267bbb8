"""A consumer that pops from `broker_parts.Parts`, in the words of a test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aerobee_broker.delivery.pop.dead_letters import DeadLetterRequest
from aerobee_broker.delivery.pop.invisible_duration import InvisibleChange, InvisibleDuration
from aerobee_broker.delivery.pop.lease_table import LeaseName, LeaseSet
from aerobee_broker.delivery.pop.selector import PopRequest
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.filter.filter import Filter, compile_filter
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code
from support.broker.harness import Parts

TOPIC, GROUP = "orders", "billing"


@dataclass(frozen=True)
class Got:
    body: bytes
    attempt: int
    lease: LeaseName


class PopConsumer:
    def __init__(self, parts: Parts, group: str = GROUP, topic: str = TOPIC) -> None:
        self.parts = parts
        self.group = group
        self.topic = topic

    async def pop(
        self,
        count: int = 32,
        *,
        invisible_ms: int = 10_000,
        poll_ms: int = 0,
        wanted: Filter | str = "*",
        **fields: Any,
    ) -> list[Got]:
        request = PopRequest(
            consumer_group=self.group,
            topic=self.topic,
            queue_id=fields.pop("queue_id", None),
            max_messages=count,
            max_bytes=fields.pop("max_bytes", 4 << 20),
            invisible_duration_ms=invisible_ms,
            filter=compile_filter("TAG", wanted) if isinstance(wanted, str) else wanted,
            fifo=fields.pop("fifo", False),
            attempt_id=fields.pop("attempt_id", ""),
            start=fields.pop("start", "automatic"),
        )
        assert not fields
        popped = await self.parts.broker.pop.pop(request, poll_ms)
        if popped is None:
            return []
        expires = popped.pop_time_ms + popped.invisible_duration_ms
        return [
            Got(
                record.body,
                attempt,
                LeaseName(
                    self.group,
                    self.topic,
                    record.queue_id,
                    record.queue_offset,
                    popped.lease_id,
                    expires,
                ),
            )
            for record, attempt in zip(iter_records(popped.records), popped.attempts, strict=True)
        ]

    async def ack(self, *several: Got) -> list[Code]:
        """One by one in one request."""
        return await self.ack_sets(*(lease_set(one) for one in several))

    async def ack_sets(self, *lease_sets: LeaseSet) -> list[Code]:
        """A code for each lease of each set."""
        failures = await self.parts.broker.acks.ack(lease_sets)
        assert failures == sorted(failures, key=lambda one: (one.set_index, one.offset_index)), (
            "in order"
        )
        why = {(one.set_index, one.offset_index): one.error.code for one in failures}
        assert len(why) == len(failures)
        return [
            why.get((number, index), Code.SUCCESS)
            for number, one in enumerate(lease_sets)
            for index in range(len(one.queue_offsets))
        ]

    async def change(self, got: Got, invisible_ms: int | None, **fields: bool) -> InvisibleDuration:
        change = InvisibleChange(got.lease, invisible_ms, **fields)
        [duration] = await self.parts.broker.invisible_durations.change([change])
        return duration

    @staticmethod
    def renewed(got: Got, duration: InvisibleDuration) -> Got:
        """The same with the end of its lease that a change gave it."""
        expires_ms = duration.pop_time_ms + duration.invisible_duration_ms
        return replace(got, lease=got.lease._replace(expires_ms=expires_ms))

    async def dead_letter(self, got: Got, reason: str = "") -> Code:
        requests = [DeadLetterRequest(got.lease, Failure(reason))]
        [error] = await self.parts.broker.dead_letters.dead_letter(requests)
        return Code.SUCCESS if error is None else error.code

    def committed(self, queue_id: int = 0) -> int | None:
        return self.parts.tables.offsets.get(self.group, self.topic, queue_id)


def lease_set(first: Got, *others: Got) -> LeaseSet:
    """Of messages of one pop and one queue."""
    name = first.lease
    assert all(one.lease[:3] == name[:3] for one in others), "of one queue"
    assert all(one.lease[4:] == name[4:] for one in others), "of one pop"
    offsets = [one.lease.queue_offset for one in (first, *others)]
    return LeaseSet(*name[:3], name.lease_id, name.expires_ms, offsets)


def bodies(several: list[Got]) -> list[bytes]:
    return [one.body for one in several]
