"""A member of a group without etcd: master or slave as its options say."""

from __future__ import annotations

import asyncio

import structlog

from aerobee_broker.cluster.masters import Masters
from aerobee_broker.replication.coordinators.static_coordinator import StaticCoordinator
from aerobee_broker.roles.master import MasterRole
from aerobee_broker.roles.roles import Roles
from aerobee_chassis.lifecycle import Component
from aerobee_wire.status import MqError

AGAIN_S = 1.0  # after a role that could not be taken


class StaticMember(Component):
    """Starts once the store is open, and has started when it has its role. Nobody is elected: a
    master that hears of a higher epoch, which a person has begun elsewhere, follows."""

    def __init__(self, roles: Roles, coordinator: StaticCoordinator, masters: Masters) -> None:
        self._roles = roles
        self._coordinator = coordinator
        self._masters = masters
        self._options = roles.own.environment.options
        self._task: asyncio.Task[None] | None = None
        self._tried = roles.taken  # set too once a role could not be taken

    async def start(self) -> None:
        self._coordinator.load()
        self._task = asyncio.create_task(self._run(), name="role")
        await self._tried.wait()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self._masters.close()

    async def _run(self) -> None:
        leads = self._options.broker_role != "SLAVE"
        while True:
            try:
                if leads and not await self._is_superseded():
                    await self._lead()
                leads = False
                await self._roles.follow(self._find_master, self._options.broker_id)
            except (MqError, OSError) as error:
                structlog.get_logger().error("role_not_taken", reason=str(error))
            except Exception:
                structlog.get_logger().exception("role_failed")
            self._tried.set()
            await asyncio.sleep(AGAIN_S)
            await self._reopen()

    async def _reopen(self) -> None:
        try:
            await self._roles.own.reopen()
        except (MqError, OSError) as error:
            structlog.get_logger().error("store_not_opened", reason=str(error))

    async def _lead(self) -> None:
        own = self._roles.own
        state = self._coordinator.state
        epoch = max(own.epochs.history.highest, state.epoch if state else 0) + 1
        await self._coordinator.begin(epoch, own.replica)
        await self._roles.lead(epoch, self._coordinator, self._until_outdated)

    async def _until_outdated(self, role: MasterRole) -> None:
        epoch = await asyncio.shield(role.over)
        if not epoch:  # its disk fails, and nobody elects another: it is read and told about
            await asyncio.Event().wait()
        structlog.get_logger().warning("master_superseded", epoch=epoch)

    async def _is_superseded(self) -> bool:
        """Whether the name servers know a master of a higher epoch than this log."""
        group = await self._masters.group()
        highest = self._roles.own.epochs.history.highest
        if group.epoch > highest:
            structlog.get_logger().warning(
                "master_superseded", epoch=group.epoch, own_epoch=highest, master=group.master
            )
        return group.epoch > highest

    async def _find_master(self) -> str:
        return self._options.ha_master_address or (await self._masters.group()).master
