"""List the replicas of a broker, and promote one of them to master: part of AsyncAdminClient."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aerobee.broker.v1 import replica_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import BrokerAdmin
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError, illegal_operation

PROMOTION_S = 60.0  # the replicas catch up, and the new master restores its delivery state

Statuses = list[replica_pb2.GetReplicationStatusResponse]


@checked_class
class ReplicaAdmin(BrokerAdmin):
    async def replicas(
        self, broker_name: str, *, silent: list[MqError] | None = None
    ) -> list[d.ReplicaDescription]:
        """Return the replicas of a broker that name servers know, by replica id.

        Args:
            broker_name: The name of the broker.
            silent: Collects the errors of replicas that do not answer. Without it, or if no replica
                answers, the first error is raised.

        Returns:
            The replicas; an empty list for a broker that keeps one copy.

        Raises:
            MqError: BROKER_NOT_EXIST if no such broker is registered.
        """
        registered = await self._brokers.addresses_of(broker_name)
        addresses = sorted(set(registered.values()))
        statuses = await self._statuses(broker_name, addresses, silent)
        master = _master(statuses)
        found = [d.ReplicaDescription.of(status, master) for status in statuses]
        return sorted(found, key=lambda each: each.replica_id)

    async def replica(self, broker: str) -> d.ReplicaDescription | None:
        """Return the description of one replica.

        Fields that only the master knows are set only if this replica is the master.

        Args:
            broker: The name of a broker, for its master; or the address of a replica.

        Returns:
            The description; None if the broker keeps one copy.

        Raises:
            MqError: BROKER_NOT_EXIST, or SERVICE_NOT_AVAILABLE while its store opens.
        """
        request = replica_pb2.GetReplicationStatusRequest()
        try:
            status = await self._brokers.ask_named(broker, rpcs.GET_REPLICATION_STATUS, request)
        except MqError as error:
            if error.code is Code.REQUEST_CODE_NOT_SUPPORTED:
                return None
            raise
        return d.ReplicaDescription.of(status, _master([status]))

    async def promote_replica(
        self, broker_name: str, *, to: int | None = None, unclean: bool = False
    ) -> d.PromotionResult:
        """Make a replica the master. Return when the new master serves clients.

        If the previous master can be reached, it stops in an orderly way, and no send fails.

        Args:
            broker_name: The name of the broker.
            to: The replica id. Default: the in-sync replica with the longest log, besides the
                master.
            unclean: Whether to promote it even if acknowledged messages may be lost.

        Returns:
            The new master.

        Raises:
            MqError: BROKER_NOT_EXIST, ILLEGAL_OPERATION if the replica does not exist or messages
                might be lost, or FLUSH_SLAVE_TIMEOUT if the replicas do not catch up.
        """
        found = await self.replicas(broker_name, silent=[])
        target = _chosen(broker_name, found, to)
        answer = await self._brokers.ask(
            f"{broker_name}, replica {target.replica_id}",
            target.address,
            rpcs.PROMOTE,
            replica_pb2.PromoteRequest(unclean=unclean),
            timeout_s=PROMOTION_S,
        )
        place = (broker_name, target.replica_id, target.address)
        return d.PromotionResult.of(place, answer)

    async def _statuses(
        self, broker_name: str, addresses: Sequence[str], silent: list[MqError] | None
    ) -> Statuses:
        request = replica_pb2.GetReplicationStatusRequest()
        asked = (
            self._brokers.ask(broker_name, address, rpcs.GET_REPLICATION_STATUS, request)
            for address in addresses
        )
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: Statuses = []
        failed: list[MqError] = []
        for answer in answers:
            if isinstance(answer, replica_pb2.GetReplicationStatusResponse):
                found.append(answer)
            elif not isinstance(answer, MqError):
                raise answer
            elif answer.code is not Code.REQUEST_CODE_NOT_SUPPORTED:  # a broker that keeps one copy
                failed.append(answer)
        if failed and (silent is None or not found):
            raise failed[0]
        if silent is not None:
            silent += failed
        return found


def _master(statuses: Statuses) -> replica_pb2.GetReplicationStatusResponse | None:
    """Return the master with the highest epoch, because a former master may still answer."""
    masters = [each for each in statuses if each.role == "master"]
    return max(masters, key=lambda each: each.replica.epoch, default=None)


def _chosen(
    broker_name: str, found: Sequence[d.ReplicaDescription], to: int | None
) -> d.ReplicaDescription:
    """Return the replica to promote: `to`, or the in-sync replica with the longest log.

    Raises MqError with the code ILLEGAL_OPERATION if there is no such replica.
    """
    if not found:
        reason = f"broker {broker_name} keeps one copy: there is no other one to be made master"
        raise illegal_operation(reason)
    if to is not None:
        for each in found:
            if each.replica_id == to:
                return each
        known = ", ".join(str(each.replica_id) for each in found)
        raise illegal_operation(
            f"no replica {to} of broker {broker_name} answers: there are {known}"
        )
    able = [
        each
        for each in found
        if each.role in ("slave", "candidate")
        and not (each.learner or each.copying)
        and each.in_sync is not False
    ]
    if not able:
        raise illegal_operation(
            f"no other replica of broker {broker_name} is in sync: wait until one has caught up "
            "(aerobee broker ha-status)"
        )
    return max(able, key=lambda each: each.reach)
