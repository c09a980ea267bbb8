"""A redrive through SIGKILLs at random times: each letter once, and its state is always true.

The kills hit the broker, the command, and the job that keeps the states in a facts table.
`--campaign` kills twenty times each: `make fault-letters`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from aerobee_client import AdminClient
from aerobee_client.admin.letters import LetterJobDescription, LetterJobSpec
from aerobee_spark.table import letter_states
from aerobee_spark.table.files import FactsFiles
from aerobee_wire.status import MqError
from fault.conftest import Campaign
from support.clock.polling import until_sync
from support.processes import redriving
from support.processes.redriving import Redrive
from support.processes.service import namesrv_and_broker

pytestmark = pytest.mark.slow

COUNT = {False: 6_000, True: 24_000}
# Seconds of the job for each kill. The campaign has enough of them on a machine with other work.
PACE_S = {False: 1, True: 6}
KINDS = ("broker", "command", "facts")
KILLS = {False: ("broker", "command"), True: 20 * KINDS}
PAGE = 4_096  # states of one request
GROUP, ORIGIN, BROKER = "large", "large-orders", "broker-a"


def test_each_dead_letter_arrives_once_through_kills(tmp_path: Path, campaign: Campaign) -> None:
    seed = random.randrange(1 << 32) if campaign.seed is None else campaign.seed
    print(f"seed {seed}")
    rng, count = random.Random(seed), COUNT[campaign.long]
    kills = rng.sample(KILLS[campaign.long], len(KILLS[campaign.long]))
    table = tmp_path / "facts"
    with namesrv_and_broker(tmp_path) as (namesrv, broker):
        redriving.fill(namesrv.address, GROUP, ORIGIN, count)
        letters = redriving.dead_letters_by_id(namesrv.address, GROUP)
        order = list(letters)
        rate = count // (len(kills) * PACE_S[campaign.long])
        redrive = Redrive(namesrv.address, GROUP, "origin", "job", rate=rate)
        during = 0  # kills while the job ran
        command = redrive.start()
        with AdminClient(namesrv.address) as admin:

            def sent() -> int:
                try:
                    return sum(job.sent for job in admin.letter_jobs(GROUP))
                except MqError:  # the broker starts
                    return 0

            def passed(aim: int) -> Callable[[], bool]:
                return lambda: sent() > aim

            for number, kind in enumerate(kills):
                aim = rng.randrange(
                    count * number // len(kills), count * (number + 1) // len(kills)
                )
                until_sync(passed(aim // 2), f"{aim // 2} are sent", timeout_s=120)
                during += sent() < count
                if kind == "broker":
                    broker.kill()
                    broker.start()
                elif kind == "command":
                    stop(command)
                    command = redrive.start()
                else:
                    facts = landing(namesrv.address, table)
                    time.sleep(rng.random())
                    stop(facts)
                problem = untrue(admin, namesrv.address, order)
                assert not problem, f"seed {seed}, kill {number} ({kind}): {problem}"
            stop(command)
        result = redrive.finish()  # the same id: the job that the broker has resumed
        found = redriving.message_ids(namesrv.address, ORIGIN)
        second = Redrive(namesrv.address, GROUP, "origin", "second").finish()
        output, _ = landing(namesrv.address, table).communicate(timeout=120)
    assert (result["sent"], result["failed"], result["cancelled"]) == (count, 0, False)
    assert found.keys() == letters.keys(), "each arrives, under its message id"
    assert found.total() == count, "none arrives twice"
    assert (second["sent"], second["already"]) == (0, count)
    assert json.loads(output)["states"] == {"redriven": count}
    states = letter_states.read(FactsFiles(table))
    assert states is not None
    assert sorted(states.column("queueOffset").to_pylist()) == list(range(count))
    by_kind = ", ".join(f"{killed} of the {kind}" for kind, killed in Counter(kills).items())
    campaign.report(
        f"seed {seed}: {count:,} dead letters, kills: {by_kind}, {during} of them during the job; "
        "0 lost, 0 doubled, each state true"
    )


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def landing(namesrv: str, table: Path) -> subprocess.Popen[str]:
    """Start the job that writes dead letters and their states into a table."""
    given = ("facts", "--namesrv", namesrv, "--group", GROUP, "--table", str(table), "--json")
    return subprocess.Popen(
        [sys.executable, "-m", "aerobee_spark", *given, "--quiet"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def untrue(admin: AdminClient, namesrv: str, order: list[str]) -> str:
    """Return what a state says wrongly while the job runs; "" if all are true.

    `order` has the message ids of the letters by queue offset. A letter that is not open has its
    message, and each message that was sent has a letter that is not open.
    """
    before = redriving.message_ids(namesrv, ORIGIN)
    handled = {
        order[offset]
        for begin in range(0, len(order), PAGE)
        for offset in admin.letter_states(GROUP, BROKER, 0, begin, min(begin + PAGE, len(order)))
    }
    after = redriving.message_ids(namesrv, ORIGIN)
    if missing := handled - after.keys():
        return f"{len(missing)} letters are sent by their state, but have no message"
    if still_open := before.keys() - handled:
        return f"{len(still_open)} letters are open by their state, but have a message"
    doubled = [each for each, times in after.items() if times > 1]
    return f"{len(doubled)} letters have two messages" if doubled else ""


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
