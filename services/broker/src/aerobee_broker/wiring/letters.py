"""Create and connect the jobs over dead letters."""

from __future__ import annotations

from aerobee_broker.delivery.letters.letter_jobs import LetterJobs
from aerobee_broker.delivery.letters.outcomes import Outcomes
from aerobee_broker.wiring.consuming import Consuming
from aerobee_broker.wiring.core import Core


def letter_jobs(core: Core, consuming: Consuming) -> LetterJobs:
    return LetterJobs(
        log=core.log,
        topics=core.topics,
        groups=core.groups,
        permission=core.permission,
        outcomes=Outcomes(core.store, core.tables.offsets, consuming.leases.table.find),
        metrics=core.environment.metrics,
        clock=core.environment.clock,
        traces=core.environment.traces,
    )
