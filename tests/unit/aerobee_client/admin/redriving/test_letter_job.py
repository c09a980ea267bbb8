"""A job over the dead letters of a group is followed while brokers leave and return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias, cast

import pytest
from aerobee.broker.v1 import dead_letter_pb2 as pb

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.dead_letters import PATIENCE_S
from aerobee_client.admin.letters import LetterJobDescription, LetterJobSpec, LetterPreview
from aerobee_client.admin.redriving.letter_job import GroupLetterJob
from support.clock.virtual_loop import VirtualLoop

RUNNING, DONE = pb.LETTER_JOB_RUNNING, pb.LETTER_JOB_DONE
Jobs: TypeAlias = dict[str, pb.LetterJob]  # by broker name


class Brokers:
    """The registered brokers show their jobs, which depend on the seconds since the start."""

    def __init__(self, jobs_at: Callable[[float], Jobs]) -> None:
        self._jobs_at = jobs_at

    async def letter_jobs(self, **_: Any) -> list[LetterJobDescription]:
        jobs = self._jobs_at(asyncio.get_running_loop().time())
        return [LetterJobDescription.of(name, job) for name, job in jobs.items()]


def followed(jobs_at: Callable[[float], Jobs]) -> tuple[GroupLetterJob, dict[str, int], float]:
    """Return the job at its end, the letters sent by broker, and the seconds until then."""
    admin = cast("AsyncAdminClient", Brokers(jobs_at))
    job = GroupLetterJob(admin, "j", LetterJobSpec(consumer_group="billing"), started=["a", "b"])

    async def follow() -> tuple[dict[str, int], float]:
        sent: dict[str, int] = {}
        async for jobs in job.follow():
            sent = {each.broker_name: each.sent for each in jobs}
        return sent, asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return job, *runner.run(follow())


class ThreeBrokers:
    """Broker a has ended its share, b runs with its share, and c has not begun."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self.started: dict[str, int] = {}

    async def letter_jobs(self, **_: Any) -> list[LetterJobDescription]:
        return [LetterJobDescription.of(name, job) for name, job in self._jobs.items()]

    async def start_letter_job(self, broker: str, job_id: str, spec: LetterJobSpec) -> None:
        self.started[broker] = spec.limit


@pytest.mark.parametrize(("limit", "last"), [(100, {"c": 70}), (20, {}), (35, {"c": 5})])
def test_a_job_that_is_started_again_keeps_its_limit(limit: int, last: dict[str, int]) -> None:
    share = pb.LetterJobSpec(limit=20)
    brokers = ThreeBrokers(
        {
            "a": pb.LetterJob(state=DONE, sent=10, spec=pb.LetterJobSpec(limit=15)),
            "b": pb.LetterJob(state=RUNNING, sent=3, spec=share),
        }
    )
    spec = LetterJobSpec(consumer_group="billing", limit=limit)
    job = GroupLetterJob(cast("AsyncAdminClient", brokers), "j", spec)
    preview = LetterPreview.of(pb.PreviewLetterJobResponse(selected=80, would_send=80))
    job.previews = dict.fromkeys(("a", "b", "c"), preview)
    asyncio.run(job.start())
    assert brokers.started == last
    assert job.started == ["a", "b", *last]


def test_a_broker_that_leaves_with_a_running_job_is_lost() -> None:
    def jobs_at(now_s: float) -> Jobs:
        there = {"b": pb.LetterJob(state=RUNNING, sent=7)} if now_s < 1 else {}
        return {"a": pb.LetterJob(state=DONE, sent=9), **there}

    job, sent, _ = followed(jobs_at)
    assert (job.lost, sent) == (["b"], {"a": 9, "b": 7})


def test_the_other_jobs_are_followed_to_their_ends_without_a_lost_broker() -> None:
    end_s = 10 * PATIENCE_S

    def jobs_at(now_s: float) -> Jobs:
        return {"a": pb.LetterJob(state=DONE if now_s >= end_s else RUNNING, sent=int(now_s))}

    job, sent, ended_s = followed(jobs_at)
    assert job.lost == ["b"] and sent["a"] >= end_s
    assert ended_s < end_s + 1, "it waits for the lost broker only once"


def test_a_broker_that_returns_is_followed_again() -> None:
    def jobs_at(now_s: float) -> Jobs:
        there = {"b": pb.LetterJob(state=DONE, sent=8)} if now_s > 3 * PATIENCE_S else {}
        state = DONE if now_s > 4 * PATIENCE_S else RUNNING
        return {"a": pb.LetterJob(state=state, sent=9), **there}

    job, sent, _ = followed(jobs_at)
    assert (job.lost, sent) == ([], {"a": 9, "b": 8})


def test_a_broker_that_leaves_after_its_end_keeps_its_counts() -> None:
    def jobs_at(now_s: float) -> Jobs:
        there = {"b": pb.LetterJob(state=DONE, sent=8)} if now_s < 1 else {}
        return {"a": pb.LetterJob(state=RUNNING if now_s < 2 else DONE, sent=9), **there}

    job, sent, ended_s = followed(jobs_at)
    assert (job.lost, sent) == ([], {"a": 9, "b": 8}) and ended_s < PATIENCE_S
