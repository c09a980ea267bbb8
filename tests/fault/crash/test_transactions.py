"""Transactions and the power: a crash in each call that changes the disk.

A half message that was acknowledged is open or ended, an end that was acknowledged holds, and an
end that was not has happened or has not, also when the power goes between a committed message and
its op record.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from aerobee_broker.delivery.send.send import SendResult
from aerobee_broker.delivery.transaction.transactions import End, Resolution
from aerobee_broker.metadata.topics import TopicConfig
from aerobee_wire.status import Code
from fault.conftest import Campaign
from fault.slow_disk import on_a_virtual_loop, until_power_cut
from support.broker.harness import BrokerHarness, message
from support.disk.simulated_disk import SimulatedDisk

PATH = Path("/broker")
COMMIT, ROLLBACK, UNKNOWN = Resolution.COMMIT, Resolution.ROLLBACK, Resolution.UNKNOWN
OPTIONS: dict[str, Any] = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 2_000}


class History:
    """What a producer did and what it was told."""

    def __init__(self) -> None:
        self.sent: dict[bytes, SendResult] = {}  # acknowledged half messages
        self.tried: dict[bytes, Resolution] = {}
        self.ended: dict[bytes, Resolution] = {}  # acknowledged

    async def run(self, harness: BrokerHarness) -> None:
        for number in range(6):
            bodies = [b"%d%c" % (number, letter) for letter in b"abcd"]
            await self.send(harness, bodies)
            await self.end(harness, {bodies[0]: COMMIT, bodies[1]: ROLLBACK, bodies[2]: COMMIT})
            if number % 2:
                await harness.broker.transaction_upkeep.round()
                await harness.tables.save()
        await self.end(harness, {b"0d": COMMIT, b"1d": ROLLBACK})

    async def send(self, harness: BrokerHarness, bodies: list[bytes]) -> None:
        given = {"TRAN_MSG": "true", "PGROUP": "p"}
        # Of some hundred bytes each, so that a write covers several sectors.
        padded = [body.ljust(300, b".") for body in bodies]
        halves = [message("t", body, 0, properties=dict(given)) for body in padded]
        stored = await harness.broker.sending.sender.send(halves)
        self.sent.update(zip(bodies, stored, strict=True))

    async def end(self, harness: BrokerHarness, ends: dict[bytes, Resolution]) -> None:
        self.tried |= ends
        request = [named(self.sent[body], how) for body, how in ends.items()]
        assert await harness.broker.transactions.end(request) == [None] * len(ends)
        self.ended |= ends


def named(stored: SendResult, how: Resolution) -> End:
    return End(stored.transaction_id, stored.queue_offset, how)


async def begin(disk: SimulatedDisk) -> BrokerHarness:
    harness = await BrokerHarness.begin(PATH, disk=disk, **OPTIONS)
    harness.tables.topics.put(TopicConfig("t", 1, 1))
    return harness


async def crashed(disk: SimulatedDisk) -> History:
    """Runs the history until the power goes, or to its end."""
    history = History()

    async def run() -> None:
        await history.run(await begin(disk))

    await until_power_cut(disk, run(), patience_s=2.0)
    return history


async def visible(harness: BrokerHarness) -> list[bytes]:
    return [body.rstrip(b".") for body in await harness.bodies("t", (0,))]


async def check(history: History, disk: SimulatedDisk) -> bool:
    """Returns whether a torn commit was mended."""
    with capture_logs() as logs:
        harness = await begin(disk)
    mended = any(line["event"] == "torn_commit_mended" for line in logs)
    seen = await visible(harness)
    for body, stored in history.sent.items():
        transaction = harness.broker.transactions.get(stored.queue_offset)
        is_open = (
            transaction is not None and transaction.half.transaction_id == stored.transaction_id
        )
        tried, ended = history.tried.get(body), history.ended.get(body)
        if tried is not COMMIT:
            assert body not in seen
        if ended is not None:
            assert not is_open
            assert seen.count(body) == (ended is COMMIT)
        elif tried is None:
            assert is_open
        else:
            assert seen.count(body) <= 1
            assert tried is ROLLBACK or is_open is not (body in seen), "lost, or open and there"
        # A producer that got no answer says it again; and what was ended cannot end again.
        outcome = (await harness.broker.transactions.end([named(stored, COMMIT)]))[0]
        assert (outcome is None) is is_open
        if outcome is not None:
            assert outcome.code is Code.INVALID_TRANSACTION_ID
    await harness.end()
    again = await begin(disk)
    assert len(again.broker.transactions) == len(harness.broker.transactions)
    final = await visible(again)
    assert all(final.count(body) <= 1 for body in history.sent)
    await again.end()
    return mended


async def steps() -> int:
    disk = SimulatedDisk(1)
    disk.crash_at = 1 << 30
    history = await crashed(disk)
    assert len(history.ended) == 20
    assert not await check(history, disk.after_kill())
    return disk.steps


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
def test_a_crash_in_any_call_loses_no_end_and_no_half_message(
    campaign: Campaign, power: bool
) -> None:
    async def run() -> None:
        histories = mended = ends = 0
        for seed in campaign.seeds(3, 20):
            for crash_at in range(1, await steps()):
                disk = SimulatedDisk(crash_at + 1_000 * seed)
                disk.crash_at = crash_at
                history = await crashed(disk)
                left = disk.after_power_cut(crash_at + seed) if power else disk.after_kill()
                mended += await check(history, left)
                histories += 1
                ends += len(history.ended)
        if campaign.seed is None:
            assert mended, "no power cut fell between a committed message and its op record"
        campaign.report(
            f"{histories} crashes, {ends} acknowledged ends, {mended} torn commits mended, 0 lost, "
            "0 doubled"
        )

    on_a_virtual_loop(run)
