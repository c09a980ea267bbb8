"""Transactions of the Python client while its processes and two brokers are killed in turn, at any
moment: what is in the database of the program is what consumers see.

`--campaign` kills 40 times and prints what there was of each.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from pathlib import Path

import pytest

from fault.conftest import Campaign
from support.client.programs.shop import QUICK_CHECKS, create_topic, settled, transacting
from support.client.programs.transacting import Database
from support.processes.service import broker_process, namesrv_process

pytestmark = pytest.mark.slow

ROUNDS = {False: 2, True: 40}
ROWS_A_ROUND = 30


def named(broker_name: str) -> str:
    return f"--set=brokerName={broker_name}"


async def test_every_transaction_is_settled_as_its_producer_meant(
    tmp_path: Path, campaign: Campaign
) -> None:
    seed = random.randrange(1 << 32) if campaign.seed is None else campaign.seed
    rng = random.Random(seed)
    database = Database(tmp_path / "database")
    with ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(tmp_path)).address
        brokers = [
            stack.enter_context(
                broker_process(tmp_path / name, *QUICK_CHECKS, named(name), namesrv=namesrv)
            )
            for name in ("broker-a", "broker-b")
        ]
        await create_topic(namesrv)
        first = stack.enter_context(ExitStack())
        first.enter_context(transacting(namesrv, database.path, "never"))
        for _ in range(ROUNDS[campaign.long]):
            await database.grows(ROWS_A_ROUND)
            await asyncio.sleep(rng.random() / 5)
            killed = rng.choice((*brokers, None))
            if killed is None:
                first.close()
                first.enter_context(transacting(namesrv, database.path, "never"))
            else:
                await asyncio.to_thread(killed.kill)
                await asyncio.sleep(rng.random())
                await asyncio.to_thread(killed.start)
        await database.grows(ROWS_A_ROUND)
        first.close()
        halves, visible = await settled(namesrv, brokers, database)
    campaign.report(
        f"seed {seed}: {len(halves)} half messages, {len(visible)} committed, "
        f"{len(visible) - len(set(visible))} of them twice"
    )
