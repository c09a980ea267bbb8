"""What the scrub costs sends, and how fast a replica repairs many damaged records from another.

The scrub of the first broker never pauses between its rounds, which is the worst case: by default
it runs once in 24 hours.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

import grpc

from bench.measure import Result, rate
from bench.replication.catch_up import GIB, IN_FLIGHT, SENDERS, latencies, quiet
from bench.replication.clusters import LARGE_FILES, TWO_COPIES
from bench.replication.throughput import sends
from bench.servers.echo import OPTIONS
from support.clock.polling import until_sync
from support.processes.broker_group import BrokerGroup, Member
from support.processes.service import broker_process, namesrv_process, run

ROUNDS = 24
ROUND_S = 4.0
RECORDS = 1_000
LIMIT_S = 60.0
WITHOUT, ALWAYS = "scrubInterval=0", "scrubInterval=1"


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder, quiet() as stack:
        path = Path(folder)
        found = await beside_sends(path / "alone")
        namesrv = stack.enter_context(namesrv_process(path / "namesrv")).address
        group = BrokerGroup(path, namesrv, stack)
        return [*found, await repair(group)]


async def beside_sends(data: Path) -> list[Result]:
    """Sends to one broker, in pairs of runs with and without its scrub.

    The ratios are the geometric means over the pairs, because one run varies by 6 %.
    """
    await fill_alone(data)
    found: dict[str, list[list[float]]] = {WITHOUT: [], ALWAYS: []}
    for turn in range(ROUNDS):
        for setting in (WITHOUT, ALWAYS) if turn % 2 else (ALWAYS, WITHOUT):
            found[setting].append(await one_round(data, setting))
    rates = {key: [len(each) / ROUND_S for each in rounds] for key, rounds in found.items()}
    tails = {
        key: [statistics.quantiles(each, n=100)[98] for each in rounds]
        for key, rounds in found.items()
    }
    note = f"{SENDERS} senders, 1 GiB log, the scrub never pauses; baseline: without it"
    ours, base = (statistics.geometric_mean(rates[key]) for key in (ALWAYS, WITHOUT))
    tail, base_tail = (statistics.geometric_mean(tails[key]) for key in (ALWAYS, WITHOUT))
    return [
        Result("scrub_sends", "messages/s", ours, base, ours / base, 0.97, note),
        Result("scrub_send_p99", "ms", tail, base_tail, tail / base_tail, 1.1, note),
    ]


async def fill_alone(data: Path) -> None:
    with broker_process(data, f"--set={LARGE_FILES}") as broker:
        async with grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel:
            send, moved = await sends(channel), 0.0
            while moved < GIB // 1_024:
                moved += 2 * await rate(send, IN_FLIGHT, seconds=2)


async def one_round(data: Path, setting: str) -> list[float]:
    """Milliseconds of the sends of one run of the broker."""
    with broker_process(data, f"--set={LARGE_FILES}", f"--set={setting}") as broker:
        async with grpc.aio.insecure_channel(broker.address, options=OPTIONS) as channel:
            await latencies(channel, asyncio.sleep(1))  # to warm up
            return await latencies(channel, asyncio.sleep(ROUND_S), pause_s=0)


async def repair(group: BrokerGroup) -> Result:
    """From the start of a replica whose log is damaged, until it is whole."""
    given = (LARGE_FILES, TWO_COPIES)
    master = await asyncio.to_thread(group.add, "brokerRole=ASYNC_MASTER", *given)
    async with grpc.aio.insecure_channel(master.address, options=OPTIONS) as channel:
        send = await sends(channel)
        while (end := (await group.statuses())[master.number].end_offset) < GIB:
            await rate(send, IN_FLIGHT, seconds=1)
    slave = await asyncio.to_thread(group.add, "brokerRole=SLAVE", *given)
    await asyncio.to_thread(group.until_in_sync, master, slave, timeout_s=180)
    slave.process.stop()
    damage(slave, end)
    took = await asyncio.to_thread(repaired, slave)
    slave.process.stop()
    checked = run("aerobee_broker.inspection", "check", str(slave.data), timeout_s=120)
    assert checked.returncode == 0, checked.stdout
    note = f"{end / GIB:.1f} GiB, from the start of the replica; baseline: the limit"
    return Result("repair_1000_records_s", "s", took, LIMIT_S, took / LIMIT_S, 1.0, note)


def damage(slave: Member, end: int) -> None:
    """Change one byte in each of RECORDS parts of its log, as storage does; it is off."""
    chance = random.Random(7)
    path = min(path for path in (slave.store / "commitlog").iterdir() if path.name.isdigit())
    with path.open("r+b") as file:
        size = min(end, path.stat().st_size)
        for part in range(RECORDS):
            at = chance.randrange(part * size // RECORDS, (part + 1) * size // RECORDS)
            file.seek(at)
            byte = file.read(1)[0] ^ 0x10
            file.seek(at)
            file.write(bytes([byte]))
    (slave.store / "abort").touch()  # as after a crash


def repaired(slave: Member) -> float:
    began = time.perf_counter()
    slave.start()

    def is_whole() -> bool:
        found = slave.events_now("damage_repaired")
        done = bool(slave.events_now("scrub_completed"))
        return done and bool(found) and found[-1]["still_damaged_bytes"] == 0

    until_sync(is_whole, "the log is whole", timeout_s=5 * LIMIT_S)
    return time.perf_counter() - began


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
