"""PopService over a broker without sockets: acknowledgements of leases and lease sets."""

from __future__ import annotations

from aerobee.broker.v1 import pop_pb2

from aerobee_wire.status import Code
from support.broker.handlers import Handlers


async def test_leases_and_lease_sets_are_acknowledged_in_one_request(handlers: Handlers) -> None:
    await handlers.harness.group("g")
    await handlers.harness.send("t", *[b"x"] * 4)
    request = pop_pb2.PopRequest(consumer_group="g", topic="t", invisible_duration_ms=60_000)
    popped = await handlers("Pop", request)
    assert popped.message_count == 4
    queue = {"consumer_group": "g", "topic": "t", "lease_id": popped.lease_id}
    leases = [pop_pb2.Lease(**queue, queue_offset=offset) for offset in (7, 0)]
    sets = [
        pop_pb2.LeaseSet(**queue, queue_offsets=[1]),
        pop_pb2.LeaseSet(**queue, queue_offsets=[2, 8, 3, 9]),
    ]
    answer = await handlers("Ack", pop_pb2.AckRequest(leases=leases, lease_sets=sets))
    over = int(Code.INVALID_RECEIPT_HANDLE)
    assert [result.code for result in answer.results] == [over, 0]
    failures = [
        (failure.lease_set, failure.place, failure.result.code) for failure in answer.failures
    ]
    assert failures == [(1, 1, over), (1, 3, over)]
    assert answer.lease_sets == 2, "an older broker leaves this at 0"
    assert handlers.harness.tables.offsets.get("g", "t", 0) == 4


async def test_an_ack_of_too_many_leases_is_refused(handlers: Handlers) -> None:
    lease_set = pop_pb2.LeaseSet(consumer_group="g", topic="t", queue_offsets=[0] * 200_001)
    request = pop_pb2.AckRequest(lease_sets=[lease_set] * 2)
    assert (await handlers.refused("Ack", request)).code is Code.INVALID_PARAMETER
