"""Kill the master during the demo, and wait for the new master.

Without etcd, the demo promotes a replica by `promote_replica`, like an operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from aerobee_cli.demo.job import Job
from aerobee_cli.errors import CommandError
from aerobee_cli.processes.suite import Replicas, Suite
from aerobee_client import AsyncAdminClient, MqError
from aerobee_client.admin.descriptions import ReplicaDescription

POLL_S = 0.05
# If the expected state is not reached in this time, the demo fails.
PATIENCE_S = 120.0

T = TypeVar("T")
Say = Callable[[str], None]


class Failover:
    """Runs a job of the demo with a failover.

    `broker` is the name of the broker group. `say` is called with a line of text for each step.
    """

    def __init__(self, suite: Suite, broker: str, replicas: Replicas, job: Job, say: Say) -> None:
        self._suite = suite
        self._broker = broker
        self._replicas = replicas
        self._job = job
        self._say = say

    async def run(self) -> None:
        """Run the job, and fail over in its middle.

        Return when all flights were consumed or dead-lettered and all replicas are in sync again.
        Raises MqError or CommandError.
        """
        running = asyncio.create_task(self._job.run())
        failing_over = asyncio.create_task(self._fail_over())
        try:
            await asyncio.gather(running, failing_over)
        finally:
            running.cancel()
            failing_over.cancel()
            await asyncio.gather(running, failing_over, return_exceptions=True)

    async def until_all_in_sync(self) -> None:
        """Wait until all replicas are in sync. Raises CommandError after PATIENCE_S."""
        await self._whole()

    async def _fail_over(self) -> None:
        await self._job.under_way.wait()
        old = await self._whole()
        loop = asyncio.get_running_loop()
        async with self._suite.killed(old.address):
            killed_at = loop.time()
            self._say(
                f"  killed replica {old.replica_id}, the master, after "
                f"{len(self._job.sent):,} flights"
            )
            if not self._replicas.etcd:
                await _until(self._promote, "another replica is made master")
            new = await _until(lambda: self._master_after(old), "another replica is master")
            took_s = loop.time() - killed_at
            how = "elected" if self._replicas.etcd else "promoted"
            self._say(f"  replica {new.replica_id} is {how}: master after {took_s:.1f} s")
        await self._whole()
        self._say(f"  replica {old.replica_id} is back, as a slave, and has caught up")

    async def _whole(self) -> ReplicaDescription:
        """Wait until all replicas are in sync, and return the master."""
        return await _until(self._master_of_all, "all replicas are in sync")

    async def _promote(self) -> bool:
        """Promote a replica. Raises MqError while a slave still writes received data to its log."""
        async with AsyncAdminClient(self._job.namesrv) as admin:
            await admin.promote_replica(self._broker)
        return True

    async def _found(self) -> list[ReplicaDescription]:
        async with AsyncAdminClient(self._job.namesrv) as admin:
            return await admin.replicas(self._broker, silent=[])

    async def _master_of_all(self) -> ReplicaDescription | None:
        found = await self._found()
        in_sync = [each for each in found if each.in_sync]
        return _master(found) if len(in_sync) == self._replicas.copies else None

    async def _master_after(self, old: ReplicaDescription) -> ReplicaDescription | None:
        master = _master(await self._found())
        return master if master and master.epoch > old.epoch else None


def _master(found: list[ReplicaDescription]) -> ReplicaDescription | None:
    masters = [each for each in found if each.role == "master"]
    return max(masters, key=lambda each: each.epoch, default=None)


async def _until(ask: Callable[[], Awaitable[T | None]], what: str) -> T:
    """Wait until `ask` returns a true value, and return it.

    An MqError does not end the wait, because a process may not be ready. Raises CommandError after
    PATIENCE_S.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_S
    error: MqError | None = None
    while loop.time() < deadline:
        try:
            if found := await ask():
                return found
        except MqError as raised:
            error = raised
        await asyncio.sleep(POLL_S)
    reason = f": {error.message}" if error else ""
    raise CommandError(f"after {PATIENCE_S:g} s it is still not so that {what}{reason}")
