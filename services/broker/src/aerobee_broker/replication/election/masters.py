"""Find the master of a broker group at the name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import NamedTuple

import structlog
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_broker.cluster.registration import unreachable
from aerobee_broker.config import BrokerOptions
from aerobee_broker.replication.election.log_records import LogRecord
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

    async def record_logs(self, records: Mapping[str, LogRecord]) -> dict[str, LogRecord] | None:
        """Send records by store id to all name servers, and return the newest that they know.

        Return None if no name server answers.
        """
        request = namesrv_pb2.RecordLogsRequest(
            cluster=self._cluster,
            broker_name=self._broker_name,
            records=[
                namesrv_pb2.LogRecord(
                    store_id=store_id,
                    generation=record.generation,
                    end_offset=record.end,
                    epoch=record.epoch,
                )
                for store_id, record in records.items()
            ],
        )
        places = await places_of(self._namesrvs)
        answers = await asyncio.gather(*(self._record(each, request) for each in places))
        if all(answer is None for answer in answers):
            return None
        known: dict[str, LogRecord] = {}
        for each in (each for answer in answers if answer is not None for each in answer.records):
            record = LogRecord(each.generation, each.end_offset, each.epoch)
            known[each.store_id] = record.joined(known.get(each.store_id, record))
        return known

    async def _record(
        self, namesrv: str, request: namesrv_pb2.RecordLogsRequest
    ) -> namesrv_pb2.RecordLogsResponse | None:
        try:
            return await self._caller.call(namesrv, rpcs.RECORD_LOGS, request, timeout_s=TIMEOUT_S)
        except MqError as error:  # also of an older version
            log = structlog.get_logger()
            log.debug("log_not_recorded", namesrv=namesrv, reason=error.message)
        return None

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
