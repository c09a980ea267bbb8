"""A job over dead letters continues on the next master, which has the states of the letters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_client import AdminClient
from aerobee_client.admin.letters import LetterJobDescription, LetterJobSpec, LetterState
from aerobee_wire.status import MqError
from support.clock.polling import until_sync
from support.processes import redriving
from support.processes.broker_group import BROKER, BrokerGroup, broker_group

TWO = "totalReplicas=2"
GROUP, ORIGIN, COUNT = "letters", "letters-orders", 2_000


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    with broker_group(tmp_path) as group:
        yield group


def jobs(admin: AdminClient) -> list[LetterJobDescription]:
    try:
        return admin.letter_jobs(GROUP)
    except MqError:  # there is no master at the moment
        return []


def test_a_job_continues_after_a_promotion_and_each_letter_is_sent_once(
    group: BrokerGroup,
) -> None:
    master = group.add("brokerRole=SYNC_MASTER", TWO)
    slave = group.add("brokerRole=SLAVE", TWO, "inSyncReplicas=2")
    group.until_in_sync(master, slave)
    redriving.fill(group.namesrv, GROUP, ORIGIN, COUNT)
    with AdminClient(group.namesrv) as admin:
        spec = LetterJobSpec(consumer_group=GROUP, target="origin", rate=500.0)
        admin.start_letter_job(BROKER, "job", spec)
        until_sync(lambda: jobs(admin) and jobs(admin)[0].sent > COUNT // 8, "it sends")
        admin.promote_replica(BROKER, to=slave.number)
        until_sync(
            lambda: [job.state for job in jobs(admin)] == ["done"], "it has ended", timeout_s=60
        )
        (job,) = jobs(admin)
        states = admin.letter_states(GROUP, BROKER, 0, 0, COUNT)
    assert (job.sent, job.failed, job.already) == (COUNT, 0, 0)
    assert {status.state for status in states.values()} == {LetterState.REDRIVEN}
    assert len(states) == COUNT
    found = redriving.message_ids(group.namesrv, ORIGIN)
    assert found.total() == len(found) == COUNT
