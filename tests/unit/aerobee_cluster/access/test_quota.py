"""Quotas: a caller gets its rate, and another caller keeps its throughput."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aerobee.access.v1 import access_pb2 as pb
from aerobee.broker.v1 import message_pb2, pop_pb2

from aerobee_cluster.access import quota_buckets
from aerobee_cluster.access.handlers import AccessHandlers
from aerobee_cluster.access.metering import CallMeter
from aerobee_cluster.access.quota_buckets import LONGEST_NAME, Client, QuotaBuckets
from aerobee_cluster.access.store import AccessStore
from aerobee_wire.access import table_file
from aerobee_wire.access.caller import Caller
from aerobee_wire.access.messages import record_of, to_record
from aerobee_wire.access.quotas import DEFAULT, Quota, Rates
from aerobee_wire.access.signature import Signed
from aerobee_wire.access.table import AccessTable
from aerobee_wire.access.users import User
from aerobee_wire.identity import Identity
from aerobee_wire.rpcs import GET_TOPIC_ROUTE, POP, REGISTER_BROKER, SEND, UPDATE_CONFIG
from aerobee_wire.status import Code, MqError
from support.codes import raises_code

GREEDY, MODEST = Client("greedy", "", "10.0.0.1"), Client("modest", "", "10.0.0.1")


class FakeCall:
    def __init__(self, peer: str = "127.0.0.1:40000", role: str = "") -> None:
        self.peer = peer
        self.caller = Caller(Identity("prod", role, "x") if role else None, source=peer)

    async def write(self, message: Any) -> None: ...


def table_with(*quotas: Quota) -> AccessTable:
    table = AccessTable()
    table.merge(table.changes(quotas, now_ms=1, node="n"))
    return table


def buckets_of(*quotas: Quota) -> QuotaBuckets:
    return QuotaBuckets(table_with(*quotas), asyncio.get_running_loop().time)


def user(name: str, **rates: int) -> Quota:
    return Quota("User", name, Rates(**rates))


async def waits(send: Any) -> float:
    """Return the seconds that a call waits."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await send
    return round(loop.time() - begin, 3)


# ---- rates ----


async def test_sends_wait_for_their_rate_after_a_burst_of_two_seconds() -> None:
    buckets = buckets_of(user("greedy", messages_in=10))
    times = [await waits(buckets.send(GREEDY, 10, 0)) for _ in range(5)]
    assert times == [0, 0, 0, 1.0, 1.0]
    assert (buckets.refused, buckets.delayed) == (0, 2)


async def test_sends_that_would_wait_too_long_are_refused_with_the_time() -> None:
    buckets = buckets_of(user("greedy", bytes_in=1_000))
    await buckets.send(GREEDY, 1, 5_000)  # above the burst: a debt of 3 s
    with raises_code(Code.FLOW_CONTROL) as caught:
        await buckets.send(GREEDY, 1, 1)
    assert (caught.value.retry_after_ms, caught.value.about) == (3_000, "User:greedy")
    assert "1000 bytes in a second" in caught.value.message
    await asyncio.sleep(3)
    assert await waits(buckets.send(GREEDY, 1, 1)) == 0
    assert buckets.refused == 1


async def test_refused_send_takes_nothing_of_any_rate() -> None:
    buckets = buckets_of(user("greedy", calls=3, messages_in=10, bytes_in=1_000))
    await buckets.send(GREEDY, 1, 5_000)
    for _ in range(10):
        with raises_code(Code.FLOW_CONTROL):
            await buckets.send(GREEDY, 10, 1)
    await asyncio.sleep(3.1)  # the debt is paid
    assert [await waits(buckets.send(GREEDY, 1, 1)) for _ in range(6)] == [0] * 6, "the burst"
    assert await waits(buckets.call(GREEDY)) == 0
    assert await waits(buckets.call(GREEDY)) == 0.333


async def test_receives_wait_for_what_former_ones_received() -> None:
    buckets = buckets_of(user("greedy", messages_out=10))
    assert await waits(buckets.call(GREEDY, receives=True)) == 0
    buckets.received(GREEDY, 40, 9_999)
    assert await waits(buckets.call(GREEDY)) == 0, "another call does not receive"
    assert await waits(buckets.call(GREEDY, receives=True)) == 2.0


async def test_receives_are_delayed_but_not_refused() -> None:
    """ADR 43. A consumer that is refused would poll more often."""
    buckets = buckets_of(user("greedy", bytes_out=100))
    for _ in range(8):
        buckets.received(GREEDY, 1, 1_000_000)
    times = [await waits(buckets.call(GREEDY, receives=True)) for _ in range(13)]
    assert times == [5.0] * 12 + [0], "at most a minute of the excess counts"
    assert (buckets.refused, buckets.delayed) == (0, 12)


async def test_other_calls_are_delayed_but_not_refused() -> None:
    buckets = buckets_of(user("greedy", calls=10))
    begin = asyncio.get_running_loop().time()
    await asyncio.gather(*(buckets.call(GREEDY) for _ in range(500)))
    assert asyncio.get_running_loop().time() - begin == pytest.approx(5)
    assert buckets.refused == 0
    assert await waits(buckets.send(GREEDY, 1, 1)) == 0, "the debt was at most 5 s"


async def test_calls_have_a_rate_of_their_own() -> None:
    buckets = buckets_of(user("greedy", calls=1))
    assert [await waits(buckets.call(GREEDY)) for _ in range(4)] == [0, 0, 0, 1.0]


async def test_most_specific_quota_of_each_kind_counts_and_each_caller_has_its_own() -> None:
    buckets = buckets_of(
        user("*", calls=1), user("vip", calls=1_000), Quota("Address", "10.0.0.3", Rates(calls=5))
    )
    for _ in range(3):
        await buckets.call(GREEDY)
        await buckets.call(MODEST)
        await buckets.call(Client("vip", "", "10.0.0.2"))
    assert await waits(buckets.call(GREEDY)) == 1.0
    for _ in range(20):
        await buckets.call(Client("", "", "10.0.0.3"))
    assert buckets.delayed == 9 + 1, "10 calls of the burst, and one at the end of it"


async def test_changed_quota_counts_at_once() -> None:
    table = table_with(user("greedy", calls=1))
    buckets = QuotaBuckets(table, asyncio.get_running_loop().time)
    for _ in range(3):
        await buckets.call(GREEDY)
    table.merge(table.changes(delete=[user("greedy", calls=1)], now_ms=2, node="n"))
    assert await waits(buckets.call(GREEDY)) == 0
    assert not buckets.active


async def test_changed_rate_counts_for_a_known_caller() -> None:
    table = table_with(user("greedy", messages_in=1))
    buckets = QuotaBuckets(table, asyncio.get_running_loop().time)
    await buckets.send(GREEDY, 4, 0)
    with raises_code(Code.FLOW_CONTROL):
        await buckets.send(GREEDY, 1, 0)
    table.merge(table.changes([user("greedy", messages_in=100)], now_ms=2, node="n"))
    assert await waits(buckets.send(GREEDY, 1, 0)) == 0.02, "the debt of 2 messages"


async def test_memory_of_known_callers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_buckets, "MAX_KNOWN", 2)
    buckets = buckets_of(user("greedy", calls=1))
    for number in range(10):
        await buckets.call(Client("greedy", f"c{number}", ""))
    assert len(buckets._known) <= 2 and buckets.delayed == 7, "one bucket for all of them"


async def test_caller_that_shared_a_bucket_gets_its_own_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quota_buckets, "MAX_BUCKETS", 2)
    buckets = buckets_of(Quota("Client", "*", Rates(bytes_in=1)))
    first, second, third, fourth = (Client("", name, "") for name in ("c1", "c2", "c3", "c4"))
    await buckets.send(first, 1, 10)
    await buckets.send(second, 1, 10)
    await buckets.send(third, 1, 1_000)
    with raises_code(Code.FLOW_CONTROL):
        await buckets.send(fourth, 1, 1)
    await asyncio.sleep(12)  # the first two buckets are full again; the shared one is not
    assert await waits(buckets.send(fourth, 1, 1)) == 0


async def test_memory_of_buckets_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_buckets, "MAX_BUCKETS", 3)
    buckets = buckets_of(Quota("Address", "*", Rates(calls=1)))
    for number in range(10):
        await buckets.call(Client("", "", f"10.0.0.{number}"))
        await asyncio.sleep(1)
    assert len(buckets._buckets) <= 4


async def test_callers_above_the_bound_share_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller cannot fill the memory, or get more, by client ids that it makes up."""
    monkeypatch.setattr(quota_buckets, "MAX_BUCKETS", 3)
    looks: list[float] = []
    is_full = quota_buckets._Bucket.is_full

    def look(bucket: quota_buckets._Bucket, now_s: float) -> bool:
        looks.append(now_s)
        return is_full(bucket, now_s)

    monkeypatch.setattr(quota_buckets._Bucket, "is_full", look)
    buckets = buckets_of(
        Quota("Client", "*", Rates(bytes_in=1)), Quota("Client", "vip", Rates(bytes_in=1_000))
    )
    for number in range(3):
        await buckets.send(Client("", f"c{number}", ""), 1, 1_000)
    await buckets.send(Client("", "c3", ""), 1, 1_000)
    for number in range(4, 100):
        with raises_code(Code.FLOW_CONTROL):
            await buckets.send(Client("", f"c{number}", ""), 1, 1)
    assert len(buckets._buckets) == 4 and len(looks) == 3, "one look in a second"
    assert await waits(buckets.send(Client("", "vip", ""), 1, 1_000)) == 0, "has a quota of its own"
    await asyncio.sleep(1_000)
    assert await waits(buckets.send(Client("", "c100", ""), 1, 1_000)) == 0
    assert len(buckets._buckets) == 1


# ---- another client ----


class Broker:
    """Stores one message in 1 ms, one after the other."""

    def __init__(self, buckets: QuotaBuckets) -> None:
        self.buckets = buckets
        self.stored = {"greedy": 0, "modest": 0}
        self._lock = asyncio.Lock()

    async def send(self, client: Client) -> None:
        await self.buckets.send(client, 1, 100)
        async with self._lock:
            await asyncio.sleep(0.001)
        self.stored[client.user] += 1

    async def produce(self, client: Client) -> None:
        while True:
            try:
                await self.send(client)
            except MqError as error:  # as the client does
                await asyncio.sleep((error.retry_after_ms or 0) / 1_000)

    async def run(self, **producers: int) -> float:
        """Return the messages of the modest client in a second."""
        clients = {"greedy": GREEDY, "modest": MODEST}
        tasks = [
            asyncio.create_task(self.produce(clients[name]))
            for name, count in producers.items()
            for _ in range(count)
        ]
        await asyncio.sleep(5)  # beyond the burst
        before = self.stored["modest"]
        await asyncio.sleep(10)
        for task in tasks:
            task.cancel()
        return (self.stored["modest"] - before) / 10


async def test_quota_keeps_the_throughput_of_another_client() -> None:
    alone = await Broker(buckets_of()).run(modest=5)
    beside = await Broker(buckets_of()).run(greedy=50, modest=5)
    assert beside < 0.2 * alone, "without a quota"
    limited = await Broker(buckets_of(user("greedy", messages_in=100))).run(greedy=50, modest=5)
    assert limited >= 0.8 * alone


# ---- calls of a server ----


def sends(*bodies: bytes) -> message_pb2.SendRequest:
    return message_pb2.SendRequest(messages=[message_pb2.Message(body=body) for body in bodies])


async def test_messages_and_bytes_of_calls_are_metered() -> None:
    meter = CallMeter(
        buckets_of(Quota("Address", "10.0.0.7", Rates(messages_in=2, messages_out=2)))
    )
    call = FakeCall("10.0.0.7:4000")
    batch = message_pb2.SendRequest(batch={"body_sizes": [1, 1], "bodies": b"ab"})
    await meter.before(SEND.path, sends(b"a", b"b"), call)
    await meter.before(SEND.path, batch, call)
    await meter.before(SEND.path, batch, call)
    assert await waits(meter.before(SEND.path, batch, call)) == 1.0
    pop, answer = pop_pb2.PopRequest(client_id="c"), pop_pb2.PopResponse(message_count=8)
    await meter.before(POP.path, pop, call)
    meter.after(POP.path, pop, call, answer)
    assert await waits(meter.before(POP.path, pop, call)) == 2.0
    assert await waits(meter.before(POP.path, pop, FakeCall("10.0.0.8:4000"))) == 0


async def test_calls_of_the_cluster_and_of_administrators_are_not_metered() -> None:
    meter = CallMeter(buckets_of(Quota("Address", "*", Rates(calls=1, messages_in=1))))
    for role in ("proxy", "broker"):
        for _ in range(9):
            assert await waits(meter.before(SEND.path, sends(b"a"), FakeCall(role=role))) == 0
    for path in (UPDATE_CONFIG.path, REGISTER_BROKER.path, "/grpc.health.v1.Health/Check"):
        for _ in range(9):
            assert await waits(meter.before(path, None, FakeCall())) == 0
    for _ in range(3):
        await meter.before(GET_TOPIC_ROUTE.path, None, FakeCall(role="client"))
    assert await waits(meter.before(GET_TOPIC_ROUTE.path, None, FakeCall(role="client"))) == 1.0


async def test_user_who_signs_its_calls_has_its_quota_with_any_certificate() -> None:
    meter = CallMeter(buckets_of(user("billing", messages_in=1)))
    call = FakeCall(role="proxy")
    signed = Signed(User("billing", (b"s",)), b"s", "")
    call.caller = Caller(call.caller.identity, signed, call.peer)
    for _ in range(3):
        await meter.before(SEND.path, sends(b"a"), call)
    assert await waits(meter.before(SEND.path, sends(b"a"), call)) == 1.0


# ---- the table ----


async def test_quotas_are_changed_listed_and_deleted_by_rpcs() -> None:
    store = AccessStore("n", lambda: 1_800_000_000_000)
    rpc, call = AccessHandlers(store, private=False, log=lambda *_, **__: None), FakeCall()
    quota = pb.Quota(subject="User:billing", messages_in=1_000)
    answer = await rpc.put_quota(pb.PutQuotaRequest(quota=quota), call)
    assert [each.key for each in answer.written] == ["quota/User/billing"]
    keys = pb.ListTableRequest(keys=["quota/User/billing"])
    assert len((await rpc.list_table(keys, call)).records) == 1
    assert list((await rpc.list_quotas(pb.ListQuotasRequest(), call)).quotas) == [quota]
    assert not (await rpc.list_acls(pb.ListAclsRequest(), call)).acls
    assert not (await rpc.list_users(pb.ListUsersRequest(), call)).users
    delete = pb.DeleteQuotaRequest(subject="User:billing")
    await rpc.delete_quota(delete, call)
    assert not store.table.has_quotas
    with raises_code(Code.QUERY_NOT_FOUND):
        await rpc.delete_quota(delete, call)


@pytest.mark.parametrize(
    "quota",
    [
        pb.Quota(subject="billing", calls=1),
        pb.Quota(subject="Topic:orders", calls=1),
        pb.Quota(subject="User:", calls=1),
        pb.Quota(subject="User:x\n", calls=1),
        pb.Quota(subject="User:x"),
        pb.Quota(subject="User:x", calls=-1),
    ],
)
async def test_invalid_quotas_are_rejected(quota: pb.Quota) -> None:
    store = AccessStore("n", lambda: 1)
    rpc = AccessHandlers(store, private=False, log=lambda *_, **__: None)
    with raises_code(Code.INVALID_PARAMETER):
        await rpc.put_quota(pb.PutQuotaRequest(quota=quota), FakeCall())


def test_records_of_quotas_survive_the_wire_and_the_file() -> None:
    table = table_with(user("a/b", calls=5, bytes_out=7), Quota("Address", "::1", Rates(calls=1)))
    deleted = table.changes(delete=[user("gone", calls=1)], now_ms=2, node="n")
    records = [*table.records(), *deleted]
    assert [record_of(to_record(each)) for each in records] == records
    assert (
        table_file.decode(table_file.joined(map(table_file.encode_record, records), 5)).records
        == records
    )


async def test_clients_with_overlong_names_share_one_bucket() -> None:
    """A name stays in memory, and a caller chooses its client id."""
    buckets = buckets_of(Quota("Client", DEFAULT, Rates(calls=1)))
    names = [letter * (LONGEST_NAME + 1) for letter in "abcd"]
    assert [await waits(buckets.call(Client("", name, ""))) for name in names] == [0, 0, 0, 1]
    assert await waits(buckets.call(Client("", "e" * LONGEST_NAME, ""))) == 0
