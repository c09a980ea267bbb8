"""Define `aerobee bench`: load on a cluster, and a message through each of its queues."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated

import click

from aerobee_cli import output
from aerobee_cli.bench.load import HEAD, Load, Outcome, Run, check, failed
from aerobee_cli.bench.scratch import PREFIX, Scratch, created, delete, leftovers, new_scratch
from aerobee_cli.command_line import CommandGroup, Option
from aerobee_cli.errors import FAILED, INTERRUPTED, CommandError
from aerobee_cli.options import BadOption, ClusterOptions, Yes, confirm, end
from aerobee_cli.output import Item, counted
from aerobee_cli.progress import Progress
from aerobee_cli.table import Column, Table, number
from aerobee_cli.times import parse_duration

if TYPE_CHECKING:
    from aerobee_cli.bench.load import Latencies, QueueCheck

app = CommandGroup()

MIB = 1 << 20
MAX_RATE = 1_000_000
DEFAULT_DURATION = "10s"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _milliseconds(title: str, key: str, *, extra: bool = False) -> Column:
    return Column(title, key, _ms, right=True, extra=extra)


GROUP_COLUMNS = (
    Column("group", "group"),
    number("arrived", "arrived"),
    number("lost", "lost"),
    number("twice", "twice"),
    number("out of order", "out_of_order"),
    Column(
        "messages/s", "rate", lambda value: "" if value is None else f"{value:,.0f}", right=True
    ),
    _milliseconds("p50 (ms)", "latency_p50_ms"),
    _milliseconds("p99 (ms)", "latency_p99_ms"),
    _milliseconds("max (ms)", "latency_max_ms", extra=True),
)
CHECK_COLUMNS = (
    Column("broker", "broker_name"),
    number("queue", "queue_id"),
    _milliseconds("send (ms)", "send_ms"),
    _milliseconds("receive (ms)", "receive_ms"),
    Column("problem", "problem", text=True),
)


def _seconds(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text).total_seconds()
    except ValueError as error:
        raise BadOption(f"{option}: {error}") from None
    if not seconds:
        raise BadOption(f"{option} {text}: give more than 0")
    return seconds


@app.add(epilog="Example: aerobee bench --rate 5000 --groups 2 --duration 1m")
def bench(
    *,
    messages: Annotated[
        int | None,
        Option(min=1, metavar="N", help="End after N messages, in place of --duration."),
    ] = None,
    duration: Annotated[
        str | None,
        Option(metavar="TIME", help=f"Send for 30s, 5m, … Default: {DEFAULT_DURATION}."),
    ] = None,
    rate: Annotated[
        float | None,
        Option(min=0.001, max=MAX_RATE, metavar="N", help="Messages a second. Default: no limit."),
    ] = None,
    size: Annotated[
        int, Option(min=HEAD.size, max=4 * MIB, metavar="BYTES", help="Bytes of a body.")
    ] = 1_024,
    groups: Annotated[
        int, Option(min=0, max=100, metavar="N", help="Consumer groups, each of which gets all.")
    ] = 1,
    queues: Annotated[
        int, Option(min=1, max=1_000, metavar="N", help="Queues of the topic on each broker.")
    ] = 8,
    in_flight: Annotated[
        int, Option(min=1, max=10_000, metavar="N", help="Sends that wait for an answer at once.")
    ] = 64,
    lease: Annotated[
        bool, Option("--lease", help="The groups lease messages, as the official SDKs do.")
    ] = False,
    wait: Annotated[
        str, Option(metavar="TIME", help="End if no missing message arrives for this time.")
    ] = "30s",
    try_queues: Annotated[
        bool,
        Option("--check", help="Only send and read one message through each queue."),
    ] = False,
    timeout: Annotated[
        str, Option(metavar="TIME", help="With --check: the limit of a send, and of a read.")
    ] = "10s",
    clean: Annotated[
        bool,
        Option("--clean", help="Only delete topics and groups of runs that were killed."),
    ] = False,
    yes: Yes = False,
    options: ClusterOptions,
) -> None:
    """Put load on a cluster, and show how fast it was, and what arrived.

    The command creates a topic and groups of its own on each broker, and deletes them at the end,
    also after Ctrl-C. The first Ctrl-C ends the sends, and the second one the wait for messages.

    Exit code 0: each message arrived in each group. 1: a send failed, a message was lost, or a
    queue does not answer. 3: a broker of the cluster took no part.
    """
    if try_queues and clean:
        raise BadOption("give --check or --clean, not both")
    if messages is not None and duration is not None:
        raise BadOption("give --messages or --duration, not both")
    if messages is None and duration is None:
        duration = DEFAULT_DURATION
    load = Load(
        groups=(),
        size=size,
        in_flight=in_flight,
        messages=messages,
        duration_s=None if duration is None else _seconds("--duration", duration),
        rate=rate,
        wait_s=_seconds("--wait", wait),
    )
    timeout_s = _seconds("--timeout", timeout)
    address = options.address
    output.silence_client()
    if clean:
        _clean(address, yes=yes)
    elif try_queues:
        _check(address, queues, timeout_s, json=options.json)
    else:
        _load(address, load, new_scratch(groups), queues, lease=lease, json=options.json)


# ---- load ----


def _load(
    namesrv: str, load: Load, scratch: Scratch, queues: int, *, lease: bool, json: bool
) -> None:
    progress = Progress(sys.stderr)
    try:
        outcome = asyncio.run(_run(namesrv, load, scratch, queues, progress, lease=lease))
    finally:
        progress.close()
        # An error of the run is printed after this.
        for text in _left(scratch):
            output.note(text)
    item, arrived = item_of(outcome, scratch), groups_of(outcome)
    output.show_one({**item, "groups": arrived} if json else item, as_json=json)
    if arrived and not json:
        print()
        Table(GROUP_COLUMNS).show(arrived)
    for arrival in outcome.arrived:
        if arrival.error:
            output.note(f"{arrival.group}: {arrival.error}")
    if outcome.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if not outcome.is_complete:
        raise click.exceptions.Exit(FAILED)
    end(_absent(scratch))


def _absent(scratch: Scratch) -> list[str]:
    return [f"broker {name}: {problem}" for name, problem in scratch.problems.items()]


def _left(scratch: Scratch) -> list[str]:
    texts = [f"not deleted: {text}" for text in scratch.left]
    return [*texts, "delete them later: aerobee bench --clean"] if texts else []


async def _run(
    namesrv: str, load: Load, scratch: Scratch, queues: int, progress: Progress, *, lease: bool
) -> Outcome:
    from aerobee_cli.bench.load import PRODUCER_GROUP, Leasing, Pulling
    from aerobee_client import AsyncAdminClient, AsyncProducer, MessageQueue

    run: Run | None = None
    is_stopped = False

    def stop() -> None:
        nonlocal is_stopped
        is_stopped = True
        if run is not None:
            run.stop()

    # From the start on: an interrupt must not leave the topic behind.
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, stop)
    async with AsyncAdminClient(namesrv) as admin, created(admin, scratch, queues):
        _check_some(scratch)
        places = [
            MessageQueue(scratch.topic, broker, queue_id)
            for queue_id in range(queues)
            for broker in sorted(scratch.brokers)
        ]
        async with AsyncExitStack() as stack:
            producer = AsyncProducer(PRODUCER_GROUP, namesrv=namesrv)
            await stack.enter_async_context(producer)
            driver = (Leasing if lease else Pulling)(producer, places)
            await driver.join(scratch, namesrv, stack)
            run = Run(driver, replace(load, groups=scratch.groups))
            if is_stopped:
                run.stop()
            return await run.run(
                lambda outcome: progress.show(lambda elapsed_s: progress_text(outcome, elapsed_s))
            )


def _check_some(scratch: Scratch) -> None:
    """Raise CommandError if no broker has the topic."""
    if not scratch.brokers:
        raise CommandError("; ".join(_absent(scratch)) or "no broker is registered: start one")


def progress_text(outcome: Outcome, elapsed_s: float) -> str:
    """Return a line about a running load."""
    rate = outcome.sent / elapsed_s if elapsed_s else 0.0
    p99 = outcome.latencies.percentile(0.99)
    parts = [f"{outcome.sent:,} sent", f"{rate:,.0f} a second"]
    if p99 is not None:
        parts.append(f"p99 {p99:.1f} ms")
    if outcome.failed:
        parts.append(f"{outcome.failed:,} failed")
    if outcome.arrived:
        parts.append(f"{min(each.messages for each in outcome.arrived):,} arrived in each group")
    return ", ".join(parts)


def item_of(outcome: Outcome, scratch: Scratch) -> Item:
    """Return the result of the sends. A value that is not known is None."""
    rate = outcome.send_rate
    return {
        "topic": scratch.topic,
        "brokers": sorted(scratch.brokers),
        "absent_brokers": dict(scratch.problems),
        "size": outcome.load.size,
        "sent": outcome.sent,
        "failed": outcome.failed,
        "error": outcome.error,
        "seconds": round(outcome.elapsed_s, 3),
        "rate": _rounded(rate),
        "mib_per_second": None if rate is None else round(rate * outcome.load.size / MIB, 2),
        **_latencies("send_", outcome.latencies),
    }


def groups_of(outcome: Outcome) -> list[Item]:
    """Return the result of each group. A value that is not known is None."""
    return [
        {
            "group": each.group,
            "arrived": each.messages,
            "lost": outcome.lost(each),
            "twice": each.twice,
            "out_of_order": each.out_of_order,
            "rate": _rounded(outcome.receive_rate(each)),
            **_latencies("", each.latencies),
        }
        for each in outcome.arrived
    ]


def _latencies(prefix: str, latencies: Latencies) -> dict[str, float | None]:
    return {
        f"{prefix}latency_p50_ms": _rounded(latencies.percentile(0.5), 3),
        f"{prefix}latency_p99_ms": _rounded(latencies.percentile(0.99), 3),
        f"{prefix}latency_max_ms": _rounded(latencies.max_ms, 3),
    }


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)


# ---- one message through each queue ----


def _check(namesrv: str, queues: int, timeout_s: float, *, json: bool) -> None:
    scratch = new_scratch(0)
    try:
        found = asyncio.run(_try_queues(namesrv, scratch, queues, timeout_s))
    finally:
        for text in _left(scratch):
            output.note(text)
    items: list[Item] = [asdict(each) for each in found]
    Table(CHECK_COLUMNS).show(items, as_json=json)
    bad = failed(found)
    output.note(f"{counted(len(found) - len(bad), 'queue')} answered, {len(bad):,} did not")
    if bad:
        raise click.exceptions.Exit(FAILED)


async def _try_queues(
    namesrv: str, scratch: Scratch, queues: int, timeout_s: float
) -> list[QueueCheck]:
    from aerobee_cli.bench.load import PRODUCER_GROUP
    from aerobee_client import AsyncAdminClient, AsyncProducer

    async with AsyncAdminClient(namesrv) as admin, created(admin, scratch, queues):
        if not (scratch.brokers or scratch.problems):
            raise CommandError("no broker is registered: start one")
        async with AsyncProducer(PRODUCER_GROUP, namesrv=namesrv) as producer:
            return await check(admin, producer, scratch, queues, timeout_s)


# ---- what killed runs left ----


def _clean(namesrv: str, *, yes: bool) -> None:
    async def clean() -> Sequence[str]:
        from aerobee_client import AsyncAdminClient

        async with AsyncAdminClient(namesrv) as admin:
            topics, groups = await leftovers(admin)
            errors = await delete(admin, topics, groups)
        output.note(f"{counted(len(topics), 'topic')} and {counted(len(groups), 'group')} deleted")
        return [f"not deleted: {name}: {error.message}" for name, error in errors]

    confirm(f"Delete all topics and groups {PREFIX}*, also those of running benchmarks?", yes)
    end(asyncio.run(clean()))
