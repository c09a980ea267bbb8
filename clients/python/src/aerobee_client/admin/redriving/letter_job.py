"""A job over the dead letters of one group, on all brokers that have letters of the group.

Each broker runs the job with its own share of the limit and the rate. Starting it again with the
same id continues to follow it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from aerobee_client.admin.dead_letters import AWAY, PATIENCE_S, DeadLetters
from aerobee_client.admin.letters import LetterJobDescription, LetterJobSpec, LetterPreview
from aerobee_wire.backoff import Backoff
from aerobee_wire.status import MqError
from aerobee_wire.topics import retry_topic

if TYPE_CHECKING:
    from aerobee_client.admin.client import AsyncAdminClient
    from aerobee_client.admin.descriptions import ClientDescription

POLL_S = 0.1  # between two looks at a running job

# Listed letters: broker name → queue id → queue offsets.
Listed = Mapping[str, Mapping[int, Sequence[int]]]


def reads_retries(clients: Sequence[ClientDescription], consumer_group: str) -> bool:
    """Return whether a connected client of a group reads the group's retry topic.

    A client that leases messages reads it with any other topic, as those of the official SDKs do. A
    client that pulls subscribes to it. Return True if no client is connected.
    """
    topic = retry_topic(consumer_group)
    return not clients or any(
        topic in client.subscriptions
        or (
            (found := client.consumers.get(consumer_group)) is not None
            and found.consume_type == "pop"
        )
        for client in clients
    )


@dataclass(slots=True)
class GroupLetterJob:
    """A job over the dead letters of one group.

    `listed` limits it to these letters; None for no limit. Call `preview` before `start`.
    """

    admin: AsyncAdminClient
    job_id: str
    spec: LetterJobSpec
    listed: Listed | None = None
    previews: dict[str, LetterPreview] = field(default_factory=dict)  # by broker name
    started: list[str] = field(default_factory=list)  # the brokers on which the job has begun
    # Brokers that left the name servers before the end of the job was known.
    lost: list[str] = field(default_factory=list)
    # Brokers that had left the name servers before the preview. Their letters are not counted.
    away: tuple[str, ...] = ()
    _known: dict[str, LetterJobDescription] = field(default_factory=dict)  # by broker name

    async def preview(self) -> dict[str, LetterPreview]:
        """Count what the job would do, by broker name.

        Raises MqError, also if a broker with letters does not answer.
        """
        letters = DeadLetters(self.admin, self.spec.consumer_group)
        queues = await letters.queues()
        self.away = letters.away
        for error in letters.silent:
            raise error
        names = sorted({queue.broker_name for queue in queues})
        if self.listed is not None:
            names = [name for name in names if self.listed.get(name)]
        found = await asyncio.gather(*map(self._preview_at, names))
        self.previews = dict(zip(names, found, strict=True))
        return self.previews

    async def _preview_at(self, broker: str) -> LetterPreview:
        try:
            return await self.admin.preview_letter_job(broker, self._spec_at(broker))
        except MqError as error:
            error.at_broker(broker)
            raise

    def shares(self, begun: Sequence[LetterJobDescription] = ()) -> dict[str, int]:
        """Return how many letters the job would send within its limit, by broker name.

        Brokers on which it has begun are left out: the limits of `begun` are used up.
        """
        names = self.previews.keys() - {job.broker_name for job in begun}
        left = self.spec.limit or sum(self.previews[name].would_send for name in names)
        if self.spec.limit:
            left = max(0, left - sum(map(_used, begun)))
        shares = {}
        for name in sorted(names):
            shares[name] = min(left, self.previews[name].would_send)
            left -= shares[name]
        return shares

    def _spec_at(self, broker: str) -> LetterJobSpec:
        if self.listed is None:
            return self.spec
        return replace(self.spec, listed=self.listed[broker])

    async def start(self) -> None:
        """Start the job on each broker that has something to do, unless it has begun there.

        Raises MqError.
        """
        jobs = await self.admin.letter_jobs(job_id=self.job_id)
        begun, shares = {job.broker_name for job in jobs}, self.shares(jobs)
        busy = {name: found for name, found in self.previews.items() if found.selected}
        self.started += sorted(begun)
        total = sum(found.would_send for found in busy.values())
        for name, found in busy.items():
            if name in begun:
                continue
            spec = self._spec_at(name)
            if self.spec.limit:
                if not shares[name]:
                    continue
                spec = replace(spec, limit=shares[name])
            if spec.rate and total:
                spec = replace(spec, rate=max(0.001, spec.rate * found.would_send / total))
            await self.admin.start_letter_job(name, self.job_id, spec)
            self.started.append(name)

    async def follow(self) -> AsyncGenerator[list[LetterJobDescription]]:
        """Yield the progress at each broker until the job has ended on all of them.

        If a broker does not answer, wait for it for up to PATIENCE_S. A broker that then is no
        longer at the name servers is in `lost`, with the last progress that it reported. Raises
        MqError.
        """
        while True:
            await self._update()
            yield [self._known[name] for name in sorted(self._known)]
            if not self._running() - set(self.lost):
                return
            await asyncio.sleep(POLL_S)

    def _running(self) -> set[str]:
        """Return the brokers whose last known state is not the end of the job."""
        ended = {name for name, job in self._known.items() if job.state != "running"}
        return set(self.started) - ended

    async def _update(self) -> None:
        """Ask the brokers that are not lost for their progress."""
        loop = asyncio.get_running_loop()
        deadline, backoff = loop.time() + PATIENCE_S, Backoff(0.1, 2.0)
        while awaited := self._running():
            try:
                found = await self.admin.letter_jobs(job_id=self.job_id)
                answered = {job.broker_name: job for job in found}
                self._known |= answered
                absent = awaited - answered.keys()
                delay_s = backoff.next_s()
                if absent <= set(self.lost) or loop.time() + delay_s > deadline:
                    self.lost = sorted(absent)
                    return
            except MqError as error:
                delay_s = backoff.next_s()
                may_come_back = error.retryable or error.code in AWAY
                if not may_come_back or loop.time() + delay_s > deadline:
                    raise
            await asyncio.sleep(delay_s)


def _used(job: LetterJobDescription) -> int:
    """Return how much of the limit of the whole job a job at one broker takes."""
    return (job.limit or job.total) if job.state == "running" else job.sent
