"""A load over a driver in memory: what is counted, how fast it sends, and when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee_cli.bench import scratch
from aerobee_cli.bench.load import HEAD, Latencies, Load, Outcome, Run
from aerobee_wire.status import Code, MqError

SEND_S, RECEIVE_S = 0.01, 0.005


class Memory:
    """A driver that stores bodies for its groups. Sends and receives take a fixed time.

    Numbers in `failing` are not stored. Those in `unheard` are stored, but not acknowledged. Those
    in `lose` never arrive, those in `repeat` twice, and those in `delay` after the next one.
    """

    receivers = 1

    def __init__(
        self,
        *groups: str,
        failing: Sequence[int] = (),
        unheard: Sequence[int] = (),
        lose: Sequence[int] = (),
        repeat: Sequence[int] = (),
        delay: Sequence[int] = (),
    ) -> None:
        self.sizes: set[int] = set()
        self.sent_s: list[float] = []
        self._groups: dict[str, list[bytes]] = {group: [] for group in groups}
        self._late: list[bytes] = []
        self._failing, self._unheard = failing, unheard
        self._lose, self._repeat, self._delay = lose, repeat, delay

    async def send(self, lane: int, body: bytes) -> None:
        at, number, _ = HEAD.unpack_from(body)
        assert at == lane
        self.sent_s.append(asyncio.get_running_loop().time())
        self.sizes.add(len(body))
        await asyncio.sleep(SEND_S)
        arriving = [body] * (1 + (number in self._repeat))
        if number in self._failing or number in self._lose:
            arriving = []
        if number in self._delay:
            self._late, arriving = arriving, []
        elif arriving:
            arriving, self._late = arriving + self._late, []
        for stored in self._groups.values():
            stored.extend(arriving)
        if number in self._failing or number in self._unheard:
            raise MqError(Code.BROKER_UNREACHABLE, f"no {number}")

    async def receive(self, group: str) -> Sequence[bytes]:
        await asyncio.sleep(RECEIVE_S)
        bodies, self._groups[group] = self._groups[group], []
        return bodies


def load(**settings: object) -> Load:
    given: dict[str, object] = {"groups": ("a", "b"), "size": 100, "in_flight": 1, "messages": 10}
    return Load(**given | settings)  # type: ignore[arg-type]


async def run(driver: Memory, wanted: Load) -> Outcome:
    return await Run(driver, wanted).run(lambda _: None)


async def test_each_group_gets_each_message_once_and_in_order() -> None:
    driver = Memory("a", "b")
    outcome = await run(driver, load(in_flight=3))
    assert (outcome.sent, outcome.failed, driver.sizes) == (10, 0, {100})
    assert outcome.is_complete and not outcome.interrupted
    for arrived in outcome.arrived:
        assert (arrived.messages, arrived.twice, arrived.out_of_order) == (10, 0, 0)
        assert outcome.lost(arrived) == 0
        slowest_ms = (SEND_S + RECEIVE_S) * 1_000
        assert arrived.latencies.percentile(1) == pytest.approx(slowest_ms)
    assert outcome.latencies.percentile(0.99) == pytest.approx(SEND_S * 1_000)


async def test_lost_repeated_and_reordered_messages_are_counted() -> None:
    lost = await run(Memory("a", lose=[3, 4]), load(groups=("a",), wait_s=5))
    assert lost.lost(lost.arrived[0]) == 2 and not lost.is_complete
    twice = await run(Memory("a", repeat=[3]), load(groups=("a",)))
    assert twice.arrived[0].twice == 1 and twice.is_complete
    late = await run(Memory("a", delay=[3]), load(groups=("a",)))
    assert late.arrived[0].out_of_order == 1 and late.is_complete


async def test_a_failed_send_is_counted_and_is_not_a_lost_message() -> None:
    outcome = await run(Memory("a", failing=[2, 3]), load(groups=("a",)))
    assert (outcome.sent, outcome.failed, outcome.error) == (8, 2, "no 2")
    assert outcome.lost(outcome.arrived[0]) == 0 and not outcome.is_complete


async def test_a_message_that_arrives_without_its_acknowledgement_hides_no_loss() -> None:
    outcome = await run(Memory("a", unheard=[2], lose=[7]), load(groups=("a",), wait_s=5))
    [arrived] = outcome.arrived
    assert (outcome.sent, arrived.messages, outcome.lost(arrived)) == (9, 9, 1)


async def test_a_rate_spreads_the_sends_over_all_lanes() -> None:
    driver = Memory()
    await run(driver, load(groups=(), rate=200, in_flight=4))
    assert driver.sent_s == pytest.approx([number / 200 for number in range(10)])


async def test_a_late_send_counts_its_wait_for_a_lane() -> None:
    """One lane sends 100 a second, so at 200 a second each send waits longer."""
    outcome = await run(Memory(), load(groups=(), rate=200))
    waited_s = 9 / 100 - 9 / 200
    assert outcome.latencies.max_ms == pytest.approx((waited_s + SEND_S) * 1_000)


async def test_a_duration_ends_the_sends() -> None:
    driver = Memory()
    fast = await run(driver, load(groups=(), messages=None, duration_s=1.0))
    assert fast.sent == pytest.approx(1 / SEND_S, abs=1) and max(driver.sent_s) < 1
    paced = await run(Memory(), load(groups=(), messages=None, duration_s=1.0, rate=5))
    assert paced.sent == 5


async def test_the_first_stop_ends_the_sends_and_the_second_the_wait() -> None:
    test = Run(Memory("a", lose=[0]), load(groups=("a",), messages=None, duration_s=60, rate=0.5))
    running = asyncio.create_task(test.run(lambda _: None))
    await asyncio.sleep(3)
    test.stop()
    await asyncio.sleep(1)
    assert not running.done(), "it waits for the lost message"
    test.stop()
    outcome = await running
    assert outcome.interrupted and outcome.sent == 2 and outcome.lost(outcome.arrived[0]) == 1


async def test_an_error_of_a_driver_that_is_not_of_the_queue_ends_the_run() -> None:
    class Broken(Memory):
        async def send(self, lane: int, body: bytes) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run(Broken(), load(groups=()))


def test_percentiles_are_at_most_a_hundredth_too_high() -> None:
    latencies = Latencies()
    assert latencies.percentile(0.5) is None and latencies.max_ms is None
    for milliseconds in range(1, 1_001):
        latencies.add(milliseconds)
    for share, exact in ((0.5, 500), (0.99, 990), (1, 1_000)):
        found = latencies.percentile(share)
        assert found is not None and exact <= found <= exact * 1.01
    latencies.add(0.0)
    assert latencies.percentile(0) is not None


# ---- test scratch ----
#
# The topic of a benchmark is made where producers may send.


class Admin:
    """Two brokers, of which b drains."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def cluster(self) -> Any:
        brokers = [SimpleNamespace(broker_name=name) for name in "ab"]
        return SimpleNamespace(brokers=brokers, away=())

    async def broker_status(self, broker: str) -> Any:
        return SimpleNamespace(draining_since_ms=1 if broker == "b" else 0)

    async def create_topic(self, topic: str, *, queues: int, broker: str) -> list[Any]:
        self.made.append(broker)
        return []

    async def delete_topic(self, topic: str, *, silent: list[Any]) -> bool:
        return True


async def test_a_broker_that_drains_takes_no_part() -> None:
    admin: Any = Admin()
    of_run = scratch.new_scratch(0)
    async with scratch.created(admin, of_run, 8):
        assert (admin.made, of_run.brokers) == (["a"], ["a"])
        assert "drains" in of_run.problems["b"]
