"""A redrive through SIGKILLs of the broker and of the command at random times: each letter once.

`--campaign` redrives 100,000 and kills twenty times.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_client import AdminClient
from aerobee_client.admin.letters import LetterJobDescription, LetterJobSpec
from aerobee_wire.status import MqError
from fault.conftest import Campaign
from support.clock.polling import until_sync
from support.processes import redriving
from support.processes.redriving import Redrive
from support.processes.service import namesrv_and_broker

pytestmark = pytest.mark.slow

COUNT = {False: 6_000, True: 100_000}
KILLS = {False: 4, True: 20}
GROUP, ORIGIN = "large", "large-orders"


def test_each_dead_letter_arrives_once_through_kills(tmp_path: Path, campaign: Campaign) -> None:
    seed = random.randrange(1 << 32) if campaign.seed is None else campaign.seed
    print(f"seed {seed}")
    rng, count, kills = random.Random(seed), COUNT[campaign.long], KILLS[campaign.long]
    with namesrv_and_broker(tmp_path) as (namesrv, broker):
        redriving.fill(namesrv.address, GROUP, ORIGIN, count)
        redrive = Redrive(namesrv.address, GROUP, "origin", "job")
        with redrive.started() as command, AdminClient(namesrv.address) as admin:

            def sent() -> int:
                try:
                    return sum(job.sent for job in admin.letter_jobs(GROUP))
                except MqError:  # the broker starts
                    return 0

            def passed(aim: int) -> Callable[[], bool]:
                return lambda: sent() > aim

            for number in range(kills):
                aim = rng.randrange(count * number // kills, count * (number + 1) // kills) // 2
                until_sync(passed(aim), f"{aim} are sent", timeout_s=120)
                if number % 2:
                    command.kill()
                broker.kill()
                broker.start()
        result = redrive.finish()  # the same id: the job that the broker has resumed
        found = redriving.message_ids(namesrv.address, ORIGIN)
        letters = redriving.dead_letters_by_id(namesrv.address, GROUP)
        second = Redrive(namesrv.address, GROUP, "origin", "second").finish()
    assert (result["sent"], result["failed"], result["cancelled"]) == (count, 0, False)
    assert found.keys() == letters.keys(), "each arrives, under its message id"
    assert found.total() == count, "none arrives twice"
    assert (second["sent"], second["already"]) == (0, count)
    campaign.report(f"{count:,} dead letters, {kills} kills (seed {seed}): 0 lost, 0 doubled")


def test_a_start_that_is_repeated_through_kills_begins_one_job(tmp_path: Path) -> None:
    """A caller that does not know whether its start was stored repeats it."""
    with namesrv_and_broker(tmp_path) as (namesrv, broker):
        redriving.fill(namesrv.address, GROUP, ORIGIN, 500)
        spec = LetterJobSpec(consumer_group=GROUP, target="origin", rate=500.0)
        with AdminClient(namesrv.address) as admin:
            for _ in range(5):
                until_sync(lambda: started(admin, spec), "it is started", timeout_s=60)
                broker.kill()
                broker.start()
            until_sync(
                lambda: [job.state for job in jobs(admin)] == ["done"], "it has ended", timeout_s=60
            )
            assert [job.sent for job in jobs(admin)] == [500]
        assert redriving.message_ids(namesrv.address, ORIGIN).total() == 500


def started(admin: AdminClient, spec: LetterJobSpec) -> bool:
    try:
        admin.start_letter_job("broker-a", "job", spec)
    except MqError:
        return False
    return True


def jobs(admin: AdminClient) -> list[LetterJobDescription]:
    try:
        return admin.letter_jobs(GROUP)
    except MqError:
        return []
