"""A consumer that pops from the broker of `harness.py`, and short forms for what it receives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from aerobee_broker.delivery.pop.dead_letters import DeadLetterRequest
from aerobee_broker.delivery.pop.invisible_duration import InvisibleChange, InvisibleDuration
from aerobee_broker.delivery.pop.lease_table import LeaseName, LeaseSet
from aerobee_broker.delivery.pop.selector import PopRequest
from aerobee_broker.delivery.pull.offsets import QueueOffset
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.filter.filter import Filter, compile_filter
from aerobee_wire.record import iter_records
from aerobee_wire.status import Code
from support.broker.harness import BrokerHarness

TOPIC, GROUP = "orders", "billing"


@dataclass(frozen=True)
class Received:
    body: bytes
    attempt: int
    lease: LeaseName


def pop_request(**fields: Any) -> PopRequest:
    given = {
        "consumer_group": GROUP,
        "topic": TOPIC,
        "queue_id": None,
        "max_messages": 32,
        "max_bytes": 4 << 20,
        "filter": compile_filter("TAG", "*"),
        "fifo": False,
        "attempt_id": "",
        "start": "automatic",
    }
    return PopRequest(**(given | fields))


class PopConsumer:
    def __init__(self, harness: BrokerHarness, group: str = GROUP, topic: str = TOPIC) -> None:
        self.harness = harness
        self.group = group
        self.topic = topic

    async def put(self, *bodies: bytes, **fields: Any) -> list[SendResult]:
        """Messages into its topic."""
        return await self.harness.send(self.topic, *bodies, **fields)

    async def pop(
        self,
        count: int = 32,
        *,
        invisible_ms: int = 10_000,
        poll_ms: int = 0,
        wanted: Filter | str = "*",
        **fields: Any,
    ) -> list[Received]:
        asked = pop_request(
            consumer_group=self.group,
            topic=self.topic,
            max_messages=count,
            invisible_duration_ms=invisible_ms,
            filter=compile_filter("TAG", wanted) if isinstance(wanted, str) else wanted,
            **fields,
        )
        popped = await self.harness.broker.consuming.pop.pop(asked, poll_ms)
        if popped is None:
            return []
        expires = popped.pop_time_ms + popped.invisible_duration_ms
        return [
            Received(
                record.body,
                attempt,
                LeaseName(
                    self.group,
                    record.topic,
                    record.queue_id,
                    record.queue_offset,
                    popped.lease_id,
                    expires,
                ),
            )
            for record, attempt in zip(iter_records(popped.records), popped.attempts, strict=True)
        ]

    async def ack(self, *messages: Received) -> list[Code]:
        """One by one in one request."""
        return await self.ack_sets(*(lease_set(message) for message in messages))

    async def ack_sets(self, *lease_sets: LeaseSet) -> list[Code]:
        """A code for each lease of each set."""
        failures = await self.harness.broker.consuming.leases.acks.ack(lease_sets)
        codes = [[Code.SUCCESS] * len(lease_set.queue_offsets) for lease_set in lease_sets]
        for failure in failures:
            codes[failure.set_index][failure.offset_index] = failure.error.code
        indices = [(failure.set_index, failure.offset_index) for failure in failures]
        assert indices == sorted(set(indices)), "each once, in order"
        return [code for of_set in codes for code in of_set]

    async def change(
        self, got: Received, invisible_ms: int | None, **fields: Any
    ) -> InvisibleDuration:
        change = InvisibleChange(got.lease, invisible_ms, **fields)
        [duration] = await self.harness.broker.consuming.leases.durations.change([change])
        return duration

    @staticmethod
    def renewed(got: Received, duration: InvisibleDuration) -> Received:
        """The same with the end of its lease that a change gave it."""
        expires_ms = duration.pop_time_ms + duration.invisible_duration_ms
        return replace(got, lease=got.lease._replace(expires_ms=expires_ms))

    async def dead_letter(self, got: Received, reason: str = "") -> Code:
        requests = [DeadLetterRequest(got.lease, Failure(reason))]
        [error] = await self.harness.broker.consuming.leases.dead_letters.dead_letter(requests)
        return Code.SUCCESS if error is None else error.code

    async def reset(self, queue_offset: int) -> list[QueueOffset]:
        """Of its group, in queue 0."""
        queries = self.harness.broker.consuming.offset_queries
        return await queries.reset(self.group, self.topic, [0], queue_offset=queue_offset)

    def committed(self, queue_id: int = 0) -> int | None:
        return self.harness.tables.offsets.get(self.group, self.topic, queue_id)


def lease_set(first: Received, *others: Received) -> LeaseSet:
    """Of messages of one pop and one queue."""
    lease = first.lease
    for other in others:
        queue_offset = other.lease.queue_offset
        assert other.lease == lease._replace(queue_offset=queue_offset), "of one pop and queue"
    offsets = [received.lease.queue_offset for received in (first, *others)]
    return LeaseSet(
        lease.consumer_group, lease.topic, lease.queue_id, lease.lease_id, lease.expires_ms, offsets
    )


def bodies(messages: list[Received]) -> list[bytes]:
    return [message.body for message in messages]


def attempts(messages: list[Received]) -> list[int]:
    return [message.attempt for message in messages]


def deliveries(messages: list[Received]) -> list[tuple[bytes, int]]:
    """Body and delivery attempt of each."""
    return [(message.body, message.attempt) for message in messages]
