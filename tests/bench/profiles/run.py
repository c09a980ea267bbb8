"""Flame graphs of broker, proxy and client under the main loads, and where their time goes.

make profile
make profile ARGS='--only lone_send'
make profile ARGS='--only v2_send,push --seconds 20'
make profile ARGS='--only batches --native'     # with the frames of C, where libraries have symbols

Each row runs twice: once without py-spy, for the processor time of each message, and once with it,
for how this time is distributed. Writes build/profile/ROW/{broker,proxy,client}.svg, which a
browser shows, and build/profile/profile.json, and prints a table for each row. The time of code
that no step names is the step "other".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.profiles import sampler, steps
from bench.profiles.rows import ROWS, Row, load, site
from bench.profiles.sampler import SamplerError, Stack
from bench.profiles.threads import NEVER, Usage, between, usage

HERE = Path(__file__).resolve().parents[3]
OUTPUT = HERE / "build" / "profile"
SAMPLER = OUTPUT / "env" / "bin" / "py-spy"
WARM_UP_S = 1.5
MARGIN_S = 1.5  # of load before and after the samples: py-spy first looks for Python in the process


@dataclass(frozen=True)
class Profile:
    """Of one process: its µs for a message, and how they are distributed over the steps."""

    process: str
    us: float
    steps: Mapping[str, float]  # µs for a message
    samples: int


async def profile(row: Row, folder: Path, given: argparse.Namespace) -> list[Profile]:
    """Run a row. Raises SamplerError."""
    whole_s = WARM_UP_S + given.seconds + given.seconds + 2 * MARGIN_S
    with (
        tempfile.TemporaryDirectory(prefix="aerobee-profile-") as data,
        site(Path(data)) as services,
    ):
        async with load(row, services, whole_s) as (client, work):
            pids = {name: each.pid for name, each in services.of(row).items()} | {"client": client}
            await work.rate(row.in_flight, WARM_UP_S)
            before = {name: usage(pid) for name, pid in pids.items()}
            began = time.perf_counter()
            rate = await work.rate(row.in_flight, given.seconds)
            messages = rate * (time.perf_counter() - began)
            middle = {name: usage(pid) for name, pid in pids.items()}
            await sampled(
                work.rate(row.in_flight, given.seconds + 2 * MARGIN_S), pids, folder, given
            )
            after = {name: usage(pid) for name, pid in pids.items()}
    return [
        distributed(
            name,
            {thread: 1e6 * each.cpu_s / messages for thread, each in cost.items()},
            between(middle[name], after[name]),
            sampler.stacks(folder / f"{name}.svg"),
        )
        for name in pids
        for cost in (between(before[name], middle[name]),)
    ]


async def sampled(
    working: Coroutine[object, object, float],
    pids: Mapping[str, int],
    folder: Path,
    given: argparse.Namespace,
) -> None:
    """Sample processes while they work. Raises SamplerError."""
    task = asyncio.ensure_future(working)
    try:
        await asyncio.sleep(MARGIN_S / 2)
        await asyncio.gather(
            *(
                asyncio.to_thread(
                    sampler.record, given.sampler, pid, given.seconds, folder / f"{name}.svg",
                    rate=given.rate, native=given.native,
                )
                for name, pid in pids.items()
            )
        )  # fmt: skip
        await task
    finally:
        task.cancel()


def distributed(
    process: str,
    costs_us: Mapping[int, float],
    while_sampled: Mapping[int, Usage],
    found: Mapping[int, Counter[Stack]],
) -> Profile:
    """Distribute what the threads of a process cost over the steps of their stacks.

    A thread that could run, and waits for a processor, is sampled too: after a wait in the code
    that waited, and after a preemption mostly in code that woke another thread. The scheduler
    counts this time, and it is taken off such code: on a busy machine, it is half of all samples.
    """
    shares: defaultdict[str, float] = defaultdict(float)
    for thread, cost_us in costs_us.items():
        stacks = found.get(thread)
        if not stacks:
            shares[steps.LIBRARIES] += cost_us
            continue
        waited, woke = (
            Counter({stack: count for stack, count in stacks.items() if kind(stack)})
            for kind in (steps.waits, steps.wakes)
        )
        kept: defaultdict[str, float] = defaultdict(float)
        factors: dict[Stack, float] = {}
        for part, late in zip((waited, woke), while_sampled.get(thread, NEVER).late, strict=True):
            left = 1 - late * stacks.total() / max(1, part.total())
            # Something is left, so that the time of a thread that did nothing else has a step.
            factors |= dict.fromkeys(part, max(left, 0.01))
        for stack, count in stacks.items():
            kept[steps.step_of(process, stack)] += count * factors.get(stack, 1.0)
        for step, weight in kept.items():
            shares[step] += cost_us * weight / sum(kept.values())
    samples = sum(each.total() for each in found.values())
    return Profile(process, sum(costs_us.values()), _descending(shares), samples)


def _descending(shares: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def shown(title: str, profiles: list[Profile]) -> Table:
    table = Table("process", "step", "µs/message", "%", box=None, title=title, title_justify="left")
    for each in profiles:
        table.add_row(each.process, f"({each.samples} samples)", f"{each.us:.2f}", "100")
        for step, us in each.steps.items():
            table.add_row("", step, f"{us:.2f}", f"{100 * us / each.us:.0f}")
    return table


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make profile", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--only", default="", help=f"rows, separated by commas: {', '.join(ROWS)}")
    parser.add_argument("--seconds", type=float, default=8.0, help="of samples for each row")
    parser.add_argument("--rate", type=int, default=sampler.RATE_HZ, help="samples a second")
    parser.add_argument("--native", action="store_true", help="frames of C too")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="a folder")
    parser.add_argument("--sampler", type=Path, default=SAMPLER, help="py-spy")
    return parser.parse_args()


async def run(given: argparse.Namespace) -> None:
    """Raises SamplerError."""
    wanted = [name for name in given.only.split(",") if name] or list(ROWS)
    for name in wanted:
        if name not in ROWS:
            raise SamplerError(f"unknown row {name!r}: use some of {', '.join(ROWS)}")
    given.sampler = sampler.find(given.sampler)
    report: dict[str, list[dict[str, Any]]] = {}
    path = given.output / "profile.json"
    for number, name in enumerate(wanted, 1):
        row = ROWS[name]
        print(f"{number} of {len(wanted)}: {name}: {row.what} …", file=sys.stderr, flush=True)
        folder = given.output / name
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        found = await profile(row, folder, given)
        Console(width=120).print(shown(f"{name}: {row.what}", found))
        report[name] = [asdict(each) for each in found]
        path.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"wrote {path}, and a flame graph of each process beside it")


def main() -> int:
    try:
        asyncio.run(run(parse()))
    except SamplerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
