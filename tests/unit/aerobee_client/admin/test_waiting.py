"""What waits in two brokers, and acting on it."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2 as pb
from aerobee.broker.v1 import transaction_pb2

from aerobee_client import AsyncAdminClient
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryBroker, MemoryCluster
from support.codes import raises_code


@pytest.fixture
def brokers() -> list[MemoryBroker]:
    return [MemoryBroker("a", "10.0.0.11:10911"), MemoryBroker("b", "10.0.0.12:10911")]


def at_b(address: str) -> bool:
    return address.startswith("10.0.0.12")


def list_leases(address: str, request: Any) -> Any:
    answer = pb.ListLeasesResponse(total=5, lite_leases=1)
    since_ms = 10 if at_b(address) else 20
    answer.leases.add(topic="t", queue_offset=3, lease_id=7, since_timestamp_ms=since_ms)
    return answer


async def test_leases_are_merged_and_released(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    cluster.answers["ListLeases"] = list_leases
    found = await admin.list_leases("g", topic="t", client_id="c", limit=9)
    assert [(row.broker_name, row.since_timestamp_ms) for row in found.rows] == [
        ("b", 10),
        ("a", 20),
    ]
    assert (found.total, found.lite_leases, found.unanswered) == (10, 2, {})
    (request, _) = cluster.requests("ListLeases")
    assert (request.consumer_group, request.client_id, request.limit) == ("g", "c", 9)
    cluster.answers["ReleaseLease"] = lambda *_: pb.ReleaseLeaseResponse()
    await admin.release_lease("g", found.rows[0])
    (release,) = cluster.requests("ReleaseLease")
    assert (release.consumer_group, release.queue_offset, release.lease_id) == ("g", 3, 7)
    assert [address for address, name, _ in cluster.calls if name == "ReleaseLease"] == [
        brokers[1].address
    ]


async def test_nothing_is_complete_without_a_broker(
    admin: AsyncAdminClient, cluster: MemoryCluster, brokers: list[MemoryBroker]
) -> None:
    cluster.answers["ListLeases"] = list_leases
    cluster.down.add(brokers[1].address)
    found = await admin.list_leases("g")
    assert (found.total, found.lite_leases, list(found.unanswered)) == (None, None, ["b"])
    assert [row.broker_name for row in found.rows] == ["a"]
    cluster.answers["ListLeases"] = MqError(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "no such group")
    with raises_code(Code.BROKER_UNREACHABLE):  # it may have the group
        await admin.list_leases("g")
    cluster.down.clear()
    with raises_code(Code.SUBSCRIPTION_GROUP_NOT_EXIST):
        await admin.list_leases("g")


async def test_a_transaction_is_ended_where_it_is_open(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    def list_transactions(address: str, request: Any) -> Any:
        answer = pb.ListTransactionsResponse(total=int(at_b(address)))
        if at_b(address):
            answer.transactions.add(transaction_id="T", queue_offset=4, producer_group="p")
        return answer

    cluster.answers["ListTransactions"] = list_transactions
    found = await admin.list_transactions(topic="t", transaction_id="T")
    assert {each.transaction_id for each in cluster.requests("ListTransactions")} == {"T"}
    (transaction,) = found.rows
    assert (found.total, transaction.broker_name) == (1, "b")
    results = [transaction_pb2.EndTransactionResult()]
    cluster.answers["EndTransaction"] = lambda *_: transaction_pb2.EndTransactionResponse(
        results=results
    )
    await admin.end_transaction(transaction, commit=True)
    ((address, _, request),) = [each for each in cluster.calls if each[1] == "EndTransaction"]
    (end,) = request.ends
    assert at_b(address)
    assert (end.transaction_id, end.queue_offset, end.resolution) == (
        "T",
        4,
        transaction_pb2.COMMIT,
    )
    results[0].code = Code.INVALID_TRANSACTION_ID
    with raises_code(Code.INVALID_TRANSACTION_ID):
        await admin.end_transaction(transaction, commit=False)


@pytest.mark.parametrize(("examined", "total"), [(5, 2), (4, None)])
async def test_delayed_messages_of_a_topic_are_counted_if_all_were_examined(
    admin: AsyncAdminClient, cluster: MemoryCluster, examined: int, total: int | None
) -> None:
    def list_delayed(address: str, request: Any) -> Any:
        answer = pb.ListDelayedResponse(total=5, examined=examined if at_b(address) else 5)
        answer.messages.add(topic="t", due_timestamp_ms=10 if at_b(address) else 20, body_size=1)
        return answer

    cluster.answers["ListDelayed"] = list_delayed
    found = await admin.list_delayed(topic="t")
    assert ([row.due_timestamp_ms for row in found.rows], found.total) == ([10, 20], total)
    everything = await admin.list_delayed()
    assert everything.total == 10


async def test_a_delayed_message_that_cannot_be_read_is_unknown(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    def list_delayed(address: str, request: Any) -> Any:
        answer = pb.ListDelayedResponse(total=1, examined=1)
        answer.messages.add(due_timestamp_ms=10, delay="timers")
        return answer

    cluster.answers["ListDelayed"] = list_delayed
    row = (await admin.list_delayed()).rows[0]
    assert (row.topic, row.message_id, row.body_size, row.stored_timestamp_ms) == (None,) * 4
    assert (row.due_timestamp_ms, row.delay) == (10, "timers")


async def test_a_bad_limit_is_refused(admin: AsyncAdminClient, cluster: MemoryCluster) -> None:
    cluster.answers["ListDelayed"] = MqError(Code.INVALID_PARAMETER, "limit -1 is out of range")
    with raises_code(Code.INVALID_PARAMETER):
        await admin.list_delayed(limit=-1)
    with raises_code(Code.INVALID_PARAMETER):
        await admin.list_transactions(limit=1 << 40)
