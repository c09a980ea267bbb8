"""Find the master of a broker group at the name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.cluster.registration import unreachable
from aerobee_broker.config import BrokerOptions
from aerobee_chassis.rpc.caller import Caller
from aerobee_cluster.name_servers import places_of
from aerobee_wire import rpcs
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import Code, MqError

TIMEOUT_S = 3.0


class GroupAtNameServer(NamedTuple):
    """The registration of a broker group at a name server.

    `addresses` maps broker id to "host:port". `epoch` is the newest epoch that a member registered.
    """

    epoch: int
    addresses: dict[int, str]

    @property
    def master(self) -> str:
        """Return the address of the master, or "" if none is registered."""
        return self.addresses.get(MASTER_ID, "")


class Masters:
    """Query all name servers and use the answer with the highest epoch.

    All are queried because name servers share no data.
    """

    def __init__(self, options: BrokerOptions, namesrvs: Sequence[str]) -> None:
        self._namesrvs = namesrvs
        self._cluster = options.broker_cluster_name
        self._broker_name = options.broker_name
        error_of = unreachable(Code.NAMESRV_UNREACHABLE, "name server")
        self._caller = Caller(error_of, options.peer_tls())

    async def group(self) -> GroupAtNameServer:
        """Return the group as the name servers know it.

        If no reachable name server knows the group, return epoch 0 without addresses.
        """
        places = await places_of(self._namesrvs)
        answers = await asyncio.gather(*(self._ask(namesrv) for namesrv in places))
        found = [answer for answer in answers if answer is not None]
        return max(
            found,
            key=lambda group: (group.epoch, bool(group.master)),
            default=GroupAtNameServer(0, {}),
        )

    async def _ask(self, namesrv: str) -> GroupAtNameServer | None:
        request = namesrv_pb2.WatchBrokersRequest()
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                aclosing(self._caller.stream(namesrv, rpcs.WATCH_BROKERS, request)) as answers,
            ):
                async for answer in answers:
                    return self._of(answer)
        except (MqError, TimeoutError) as error:
            structlog.get_logger().debug("namesrv_not_asked", namesrv=namesrv, reason=str(error))
        return None

    def _of(self, answer: namesrv_pb2.WatchBrokersResponse) -> GroupAtNameServer | None:
        for members in answer.brokers:
            if (members.cluster, members.broker_name) == (self._cluster, self._broker_name):
                return GroupAtNameServer(members.epoch, dict(members.addresses))
        return None

    async def close(self) -> None:
        await self._caller.close()
