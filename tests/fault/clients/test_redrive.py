"""A redrive whose process is killed by SIGKILL at random places, and goes on by its journal: each
dead letter arrives, twice at most what was in flight at a kill, and memory does not grow with
their number. And one whose broker is killed: it waits, and goes on by itself.

`--campaign` redrives 200,000 and kills three times.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from aerobee_client.admin.redriving.journal import MAX_IN_FLIGHT
from fault.conftest import Campaign
from support.processes import redriving
from support.processes.redriving import Redrives
from support.processes.service import namesrv_and_broker

pytestmark = pytest.mark.slow

COUNT = {False: 6_000, True: 200_000}
KILLS = {False: 2, True: 3}
SMALL = 2_000
# Of resident memory, beyond what a redrive of SMALL takes: the cache of SQLite, and pages.
GROWTH_KIB = 32 * 1024


def test_each_dead_letter_arrives_through_kills(tmp_path: Path, campaign: Campaign) -> None:
    seed = random.randrange(1 << 32) if campaign.seed is None else campaign.seed
    print(f"seed {seed}")
    rng, count = random.Random(seed), COUNT[campaign.long]
    with namesrv_and_broker(tmp_path) as (namesrv, _):
        redriving.fill(namesrv.address, "small", "small-orders", SMALL)
        redriving.fill(namesrv.address, "large", "large-orders", count)
        small = Redrives(namesrv.address, "small", "origin", tmp_path / "small").finish()
        redrives = Redrives(namesrv.address, "large", "origin", tmp_path / "large")
        in_flight: set[str] = set()
        announced = 0
        for _ in range(KILLS[campaign.long]):
            announced += rng.randrange(count // 12, count // 4)
            redrives.kill_after(announced)
            left = redrives.unfinished()
            in_flight |= left
            announced = redrives.lines("sending")
        done = redrives.finish()
        letters = redriving.dead_letters_by_id(namesrv.address, "large")
        found = redriving.message_ids(namesrv.address, "large-orders")
    result = done.result
    assert result["sent"] + result["sent_before"] == count == len(letters)
    assert result["perhaps_twice"] == len(left)
    assert found.keys() == letters.keys(), "each arrives, under its message id"
    twice = {message_id for message_id, times in found.items() if times > 1}
    assert twice <= in_flight, "twice is only what was in flight at a kill"
    assert len(in_flight) <= KILLS[campaign.long] * MAX_IN_FLIGHT
    assert done.peak_kib - small.peak_kib <= GROWTH_KIB
    campaign.report(
        f"{count:,} dead letters, {KILLS[campaign.long]} kills (seed {seed}): {len(in_flight):,} "
        f"in flight at a kill, {len(twice):,} of them stored twice, 0 lost; {result['sent']:,} "
        f"sent by the last run; peak memory {done.peak_kib / 1024:.0f} MiB, of a redrive of "
        f"{SMALL:,} {small.peak_kib / 1024:.0f} MiB"
    )


def test_a_redrive_outlives_its_broker(tmp_path: Path) -> None:
    with namesrv_and_broker(tmp_path) as (namesrv, broker):
        redriving.fill(namesrv.address, "large", "large-orders", COUNT[False])
        redrives = Redrives(namesrv.address, "large", "origin", tmp_path / "journal")

        def restart() -> None:
            broker.kill()
            broker.start()

        result = redrives.finish(restart, COUNT[False] // 4).result
        found = redriving.message_ids(namesrv.address, "large-orders")
        letters = redriving.dead_letters_by_id(namesrv.address, "large")
    assert (result["sent"], result["failed"], result["interrupted"]) == (COUNT[False], 0, False)
    assert found.keys() == letters.keys()
