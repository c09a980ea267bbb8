"""A million delayed messages: what a send costs beside them, and a start of the broker.

Real processes, synchronous flush. The messages are due in a day.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.growth.points import cost_us, cpu_s, curve
from bench.measure import Result, resident_mb
from bench.replication.catch_up import quiet
from bench.replication.full_tables import LARGE_FILES, delay
from bench.telemetry import stub_of
from bench.throughput import IN_FLIGHT, ingest
from support.broker.calls import BrokerCaller
from support.processes.service import ServiceProcess, broker_process

COUNTS = (0, 100_000, 1_000_000)
ROUNDS = 5
ROUND_S = 1.5
PATIENCE_S = 180.0  # for a stop and for a start on a busy machine
LIMITS = {"send": ("us/message", 1.2), "start": ("ms", 4.0)}


def start_ms(broker: ServiceProcess) -> float:
    """Stop the broker in order, and start it. Return its processor time until it serves."""
    broker.stop(PATIENCE_S)
    broker.start(PATIENCE_S)
    return cpu_s(broker.pid) * 1_000


async def results() -> list[Result]:
    """Measure a broker with delayed messages in turns with one that has none."""
    kinds = ("send", "start")
    points: dict[str, dict[int, list[float]]] = {kind: {} for kind in kinds}
    base: dict[str, dict[int, list[float]]] = {kind: {} for kind in kinds}
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder, quiet() as stack:
        full, empty = (
            stack.enter_context(broker_process(Path(folder, name), f"--set={LARGE_FILES}"))
            for name in ("full", "empty")
        )
        delayed = 0
        for count in COUNTS:
            async with BrokerCaller(full.address) as caller:
                await delay(caller, count - delayed)
            delayed = count
            print(f"{count:,} messages are delayed", file=sys.stderr, flush=True)
            for _ in range(ROUNDS):
                for broker, found in ((full, points), (empty, base)):
                    found["start"].setdefault(count, []).append(start_ms(broker))
                    async with stub_of(broker) as stub:
                        send = ingest(stub)
                        await cost_us(broker.pid, send, IN_FLIGHT, ROUND_S / 4)
                        cost = await cost_us(broker.pid, send, IN_FLIGHT, ROUND_S)
                    found["send"].setdefault(count, []).append(cost)
        more_mb = resident_mb(full.pid) - resident_mb(empty.pid)
    note = (
        f"processor time of the broker, {more_mb:.0f} MB more with {COUNTS[-1]:,}; baseline: none"
    )
    return [
        row
        for kind, (unit, limit) in LIMITS.items()
        for count in COUNTS
        for row in curve(
            f"growth_delayed_{kind}", {count: points[kind][count]}, base[kind][count],
            unit=unit, limit=limit, note=note,
        )
    ]  # fmt: skip
