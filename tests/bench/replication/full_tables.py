"""What large tables cost in a failover: the gap when a master is killed that has a million delayed
messages and a hundred thousand leases, beside that of the same group before it had them.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable

from aerobee.broker.v1 import message_pb2, pop_pb2

from aerobee_client import AsyncAdminClient
from bench.measure import Result
from bench.replication.failover import COPIES, KILL, Gaps, elected_group, gaps, until_in_sync
from support.broker.calls import BrokerCaller

TIMERS, LEASES = 1_000_000, 100_000
DELAYED, LEASED, GROUP = "delayed", "leased", "holders"
A_CALL = 1_000  # messages
IN_FLIGHT = 4
DELAY_S = 86_400
INVISIBLE_MS = 12 * 3_600_000
LEASED_QUEUES = 8  # a group holds 20,000 messages of a queue at most
ROUNDS = 5
MORE_S = 1.0  # that the tables may cost
BODY = b"a body of 24 bytes in all"[:24]
LARGE_FILES = f"mappedFileSizeCommitLog={64 << 20}"


async def in_parts(total: int, part: Callable[[], Awaitable[int]]) -> None:
    """Until the results of `part` are `total` together."""
    done = 0

    async def work() -> None:
        nonlocal done
        while done < total:
            count = await part()
            done += count

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def delay(master: BrokerCaller, count: int) -> None:
    """Send messages that are due in a day."""
    await master.put_topic(DELAYED, message_type="DELAY")
    delayed = [
        message_pb2.Message(topic=DELAYED, body=BODY, properties={"TIMER_DELAY_SEC": str(DELAY_S)})
    ] * A_CALL

    async def send() -> int:
        await master.call(master.messages.Send, message_pb2.SendRequest(messages=delayed))
        return A_CALL

    await in_parts(count, send)


async def fill(master: BrokerCaller) -> None:
    """The tables."""
    await master.put_topic(LEASED, queues=LEASED_QUEUES)
    await master.put_group(GROUP)
    queues = itertools.cycle(range(LEASED_QUEUES))

    async def send() -> int:
        await master.send_batch(LEASED, [BODY] * A_CALL, next(queues))
        return A_CALL

    subscription = message_pb2.Subscription(topic=LEASED, expression="*")
    request = pop_pb2.PopRequest(
        consumer_group=GROUP,
        topic=LEASED,
        invisible_duration_ms=INVISIBLE_MS,
        subscription=subscription,
        start=pop_pb2.POP_START_EARLIEST,
        client_id="bench",
    )

    async def lease() -> int:
        count = int((await master.call(master.pops.Pop, request)).message_count)
        assert count, "there are more messages than leases"
        return count

    await delay(master, TIMERS)
    await in_parts(LEASES + A_CALL * LEASED_QUEUES, send)
    await in_parts(LEASES, lease)


async def results() -> list[Result]:
    async with elected_group(LARGE_FILES) as group:
        async with AsyncAdminClient(group.namesrv) as admin:
            without = await gaps(KILL, group, ROUNDS)
            master = await until_in_sync(admin, group)
            async with BrokerCaller(master.address) as caller:
                await fill(caller)
        full = await gaps(KILL, group, ROUNDS)
    return [_row(full, without)]


def _row(full: Gaps, without: Gaps) -> Result:
    allowed = without.median + MORE_S
    note = (
        f"{COPIES} copies, kill -9, {ROUNDS} times each; with {TIMERS:,} delayed messages and "
        f"{LEASES:,} leases, longest {full.most:.2f} s; without {without.median:.2f} s; "
        f"baseline: that and {MORE_S:g} s"
    )
    name = "failover_gap_full_tables_s"
    return Result(name, "s", full.median, allowed, full.median / allowed, 1.0, note)


if __name__ == "__main__":
    print(asyncio.run(results()), file=sys.stderr)
