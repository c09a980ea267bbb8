"""Check-back: which producers are asked about open transactions, when, and how often."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aerobee.broker.v1 import client_pb2
from aerobee.broker.v1.client_pb2 import TransactionCheck
from structlog.testing import capture_logs

from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_broker.registry.clients import MAX_PENDING_CHECKS, Client
from aerobee_broker.rpc.clients import ClientRpcs
from aerobee_chassis.metrics.series import Distribution
from aerobee_wire import topics as names
from aerobee_wire.status import Code
from support.broker.handlers import FakeCall
from support.broker.harness import Begin, BrokerHarness, message
from support.broker.transactions import end, half
from support.observing.series import series_value

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK


class Producer(FakeCall):
    """A client of a producer group, over the RPCs; `answer`: how it ends what it is asked about."""

    def __init__(
        self,
        harness: BrokerHarness,
        name: str,
        *groups: str,
        answer: Resolution = Resolution.UNKNOWN,
    ) -> None:
        super().__init__()
        self.harness = harness
        self.name = name
        self.groups = groups or ("producers",)
        self.answer = answer
        # (seconds since it connected, check)
        self.asked: list[tuple[float, TransactionCheck]] = []
        broker = harness.broker
        self._rpcs = ClientRpcs(
            broker.clients,
            broker.groups,
            broker.locks,
            broker.transaction_checks,
            broker.replies,
            polls=broker.polls,
            clock=harness.clock,
        )
        self._began = asyncio.get_running_loop().time()
        harness.broker.clients.heartbeat(Client(name, producer_groups=frozenset(self.groups)))
        request = client_pb2.WatchClientRequest(client_id=name)
        self._task = asyncio.create_task(self._rpcs.watch_client(request, self))

    async def write(self, notice: Any) -> None:
        if notice.WhichOneof("notice") != "transaction_check":
            return
        check = notice.transaction_check
        now = asyncio.get_running_loop().time() - self._began
        self.asked.append((now, check))
        answer = End(check.transaction_id, check.queue_offset, self.answer, check.producer_group)
        await self.harness.broker.transactions.end([answer])

    @property
    def bodies(self) -> list[bytes]:
        return [check.message.body for _, check in self.asked]

    @property
    def times(self) -> list[int]:
        return [round(at) for at, _ in self.asked]

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    """Starts the broker, or stops it and starts it again; with the rounds of every second."""
    running: list[tuple[BrokerHarness, asyncio.Task[None]]] = []

    async def every_second(harness: BrokerHarness) -> None:
        while True:
            await harness.broker.transaction_checks.round()
            await harness.broker.transaction_upkeep.round()
            await asyncio.sleep(1)

    async def stop() -> None:
        while running:
            harness, task = running.pop()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await harness.end()

    async def start(**options: Any) -> BrokerHarness:
        clock = running[0][0].clock if running else None
        await stop()
        harness = await BrokerHarness.begin(tmp_path, clock=clock, **options)
        running.append((harness, asyncio.create_task(every_second(harness))))
        return harness

    yield start
    await stop()


async def test_the_first_check_comes_after_transactionTimeOut(begin: Begin) -> None:
    harness = await begin()
    producer = Producer(harness, "p", answer=COMMIT)
    stored = await half(harness, b"a", UNIQ_KEY="U", TAGS="red", CHECK="me")
    await asyncio.sleep(5.5)
    assert producer.asked == []
    await asyncio.sleep(1.5)
    (_, check), *others = producer.asked
    assert others == []
    assert (check.producer_group, check.transaction_id) == ("producers", "U")
    assert (check.queue_offset, check.check_number) == (stored.queue_offset, 1)
    assert (check.message.topic, check.message.queue_id, check.message.body) == ("t", 1, b"a")
    assert check.message.properties["TAGS"] == "red"
    assert "REAL_TOPIC" not in check.message.properties
    await asyncio.sleep(120)
    assert len(producer.asked) == 1
    assert await harness.bodies("t", (0, 1)) == [b"a"]


async def test_a_check_may_be_answered_with_a_rollback(begin: Begin) -> None:
    harness = await begin()
    producer = Producer(harness, "p", answer=ROLLBACK)
    await half(harness)
    await asyncio.sleep(120)
    assert producer.times == [6]
    assert await harness.bodies("t", (0, 1)) == []
    assert len(harness.broker.transactions) == 0


async def test_an_ended_transaction_is_not_checked(begin: Begin) -> None:
    harness = await begin()
    producer = Producer(harness, "p")
    stored = await half(harness)
    await asyncio.sleep(3)
    assert await end(harness, stored) is Code.SUCCESS
    await asyncio.sleep(120)
    assert producer.asked == []


async def test_after_transactionCheckMax_checks_it_is_given_up(begin: Begin) -> None:
    harness = await begin(transactionCheckMax=3)
    producer = Producer(harness, "p")
    stored = await half(harness, b"a", UNIQ_KEY="U")
    await asyncio.sleep(95)
    assert producer.times == [6, 36, 66]
    assert [check.check_number for _, check in producer.asked] == [1, 2, 3]
    assert await harness.bodies(names.CHECK_MAX_TIME_TOPIC) == []
    await asyncio.sleep(5)
    record = (await harness.read(names.CHECK_MAX_TIME_TOPIC))[0]
    assert (record.body, record.properties["TRANSACTION_CHECK_TIMES"]) == (b"a", "3")
    assert (record.properties["REAL_TOPIC"], record.properties["UNIQ_KEY"]) == ("t", "U")
    assert await end(harness, stored) is Code.INVALID_TRANSACTION_ID
    assert await harness.bodies("t", (0, 1)) == []
    await asyncio.sleep(120)
    assert len(producer.asked) == 3


async def test_the_default_intervals_are_rocketmqs(begin: Begin) -> None:
    harness = await begin()
    producer = Producer(harness, "p")
    await half(harness)
    await asyncio.sleep(1_000)
    assert producer.times == [6 + 30 * number for number in range(15)]
    assert await harness.bodies(names.CHECK_MAX_TIME_TOPIC) == [b"a"]


async def test_producers_of_a_group_are_asked_in_turn(begin: Begin) -> None:
    harness = await begin()
    here, there = Producer(harness, "p1"), Producer(harness, "p2")
    other = Producer(harness, "q", "others")
    await half(harness)
    await asyncio.sleep(100)
    assert sorted(here.times + there.times) == [6, 36, 66, 96]
    assert len(here.times) == len(there.times) == 2
    assert other.asked == []


async def test_without_a_producer_no_check_is_counted(begin: Begin) -> None:
    harness = await begin(transactionCheckMax=2)
    stored = await half(harness)
    await asyncio.sleep(3_600)
    assert harness.broker.transactions.get(stored.queue_offset) is not None
    late = Producer(harness, "p", answer=COMMIT)
    await asyncio.sleep(2)
    assert [check.check_number for _, check in late.asked] == [1]
    assert await harness.bodies("t", (0, 1)) == [b"a"]


async def test_a_producer_without_a_watch_is_not_asked(begin: Begin) -> None:
    harness = await begin()
    harness.broker.clients.heartbeat(Client("mute", producer_groups=frozenset({"producers"})))
    stored = await half(harness)
    await asyncio.sleep(60)
    transaction = harness.broker.transactions.get(stored.queue_offset)
    assert transaction is not None
    assert transaction.half.checks == 0


async def test_a_producer_that_left_is_not_asked(begin: Begin) -> None:
    harness = await begin()
    gone, stays = Producer(harness, "p1"), Producer(harness, "p2")
    await asyncio.sleep(1)
    await gone.leave()
    for _ in range(4):
        await half(harness)
    await asyncio.sleep(10)
    assert (len(gone.asked), len(stays.asked)) == (0, 4)


@pytest.mark.parametrize(("seconds", "first"), [("60", 60), ("2", 2)])
async def test_the_first_check_waits_for_the_immunity_time(
    begin: Begin, seconds: str, first: int
) -> None:
    harness = await begin()
    producer = Producer(harness, "p")
    await half(harness, CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
    await asyncio.sleep(first + 20)
    assert producer.times == [first]


async def test_checks_are_counted_across_restarts(begin: Begin) -> None:
    harness = await begin(transactionCheckMax=3)
    await half(harness)
    numbers = []
    for _ in range(3):
        producer = Producer(harness, "p")
        await asyncio.sleep(20)
        numbers += [check.check_number for _, check in producer.asked]
        await producer.leave()
        harness = await begin(transactionCheckMax=3)
    assert numbers == [1, 2, 3]
    await asyncio.sleep(2)
    assert await harness.bodies(names.CHECK_MAX_TIME_TOPIC) == [b"a"], "without a producer"


async def test_a_half_message_older_than_fileReservedTime_is_given_up(begin: Begin) -> None:
    harness = await begin(fileReservedTime=1)
    await half(harness)
    await asyncio.sleep(3_599)
    assert await harness.bodies(names.CHECK_MAX_TIME_TOPIC) == []
    await asyncio.sleep(2)
    record = (await harness.read(names.CHECK_MAX_TIME_TOPIC))[0]
    assert record.properties["TRANSACTION_CHECK_TIMES"] == "0"


async def test_a_slow_producer_has_a_bounded_number_of_checks(begin: Begin) -> None:
    harness = await begin()
    watch = harness.broker.clients.watch("stuck")
    harness.broker.clients.heartbeat(Client("stuck", producer_groups=frozenset({"producers"})))
    given = {"TRAN_MSG": "true", "PGROUP": "producers"}
    for _ in range(11):
        halves = [message("t", b"x", 1, properties=dict(given)) for _ in range(100)]
        await harness.broker.sending.sender.send(halves)
    await asyncio.sleep(10)
    assert len(await watch.next()) == MAX_PENDING_CHECKS
    await asyncio.sleep(2)
    assert len(await watch.next()) == 100, "the others a second later"


async def test_only_clients_that_may_publish_to_the_topic_get_checks(begin: Begin) -> None:
    harness = await begin()
    clients = harness.broker.clients
    other = clients.watch("a", "mallory", lambda topic: topic != "t")
    own = clients.watch("b", "shop")
    for client_id in ("a", "b"):
        clients.heartbeat(Client(client_id, producer_groups=frozenset({"producers"})))
    await half(harness)
    await asyncio.sleep(10)
    assert len(await own.next()) == 1
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(other.next(), 100)


async def test_metrics_count_transactions(begin: Begin) -> None:
    harness = await begin(transactionCheckMax=1)
    Producer(harness, "p")
    ends = [await half(harness), await half(harness)]
    for stored, resolution in zip(ends, (COMMIT, ROLLBACK), strict=True):
        await end(harness, stored, resolution)
    await half(harness)

    def value(name: str, **labels: str) -> object:
        harness.broker.gauges.measure(6)
        return series_value(harness.metrics.registry, name, labels)

    assert value("rocketmq_half_messages", topic="t") == 1
    assert value("rocketmq_commit_messages_total", topic="t") == 1
    assert value("rocketmq_rollback_messages_total", topic="t") == 1
    latency = value("rocketmq_finish_message_latency_milliseconds", topic="t")
    assert isinstance(latency, Distribution) and sum(latency.counts) == 1
    await asyncio.sleep(10)
    assert value("aerobee_transaction_checks_total", topic="t") == 1
    assert value("aerobee_oldest_half_message_seconds") == pytest.approx(10, abs=1)
    await asyncio.sleep(60)
    assert value("aerobee_given_up_half_messages_total", topic="t") == 1
    assert value("rocketmq_half_messages", topic="t") == 0
    assert value("aerobee_oldest_half_message_seconds") == 0


async def test_a_damaged_half_message_is_rolled_back_or_given_up(begin: Begin) -> None:
    harness = await begin(transactionCheckMax=2)
    rolled_back, left = await half(harness, b"damage me"), await half(harness, b"damage me too")
    log = harness.store.path / "commitlog" / f"{0:020d}"
    for stored in (rolled_back, left):
        with log.open("r+b") as file:
            file.seek(stored.physical_offset)
            at = stored.physical_offset + file.read(200).index(b"damage")
            file.seek(at)
            file.write(b"D")

    assert await end(harness, rolled_back) is Code.MESSAGE_CORRUPTED
    assert await end(harness, rolled_back, ROLLBACK) is Code.SUCCESS
    producer = Producer(harness, "p")
    with capture_logs() as logs:
        await asyncio.sleep(100)
    assert producer.asked == []
    events = [line["event"] for line in logs]
    assert events.count("half_message_lost") == events.count("half_message_given_up") == 1
    assert len(harness.broker.transactions) == 0
    assert await harness.bodies(names.CHECK_MAX_TIME_TOPIC) == []


async def test_ended_transactions_are_removed_from_the_schedule(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_broker.delivery.transaction.open_transactions.SLACK", 4)
    harness = await begin()
    checks = harness.broker.transaction_checks
    for number in range(40):
        properties = {
            "TRAN_MSG": "true",
            "PGROUP": f"nobody-{number}",
            "CHECK_IMMUNITY_TIME_IN_SECONDS": "86400" if number % 2 else "0",
        }
        stored = (
            await harness.broker.sending.sender.send([message("t", b"a", properties=properties)])
        )[0]
        await checks.round()
        if number < 38:
            assert await end(harness, stored) is Code.SUCCESS
    await checks.round()
    schedule = checks.schedule
    without = schedule._without_producer
    held = (len(schedule._due), len(schedule._times), sum(map(len, without.values())))
    assert max(held) <= 2 * 2 + 4
    assert "nobody-38" in without, "its transaction is open"
