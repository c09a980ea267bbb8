"""Calling brokers: all masters, those of a topic, or one; which of their failures count."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from aerobee.namesrv.v1 import namesrv_pb2
from google.protobuf.message import Message

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.route_cache import MASTER_ID
from aerobee_client.cluster.transport import Transport
from aerobee_client.errors import BrokerUnreachable
from aerobee_client.runtime.facade import AsyncClient
from aerobee_wire import rpcs
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

DEFAULT_TIMEOUT = timedelta(seconds=5)


class Brokers:
    """The brokers that the name servers know. `timeout_s`: of each call."""

    def __init__(self, instance: ClientInstance, timeout_s: float) -> None:
        self._instance = instance
        self._timeout_s = timeout_s

    async def cluster_info(self) -> namesrv_pb2.GetClusterInfoResponse:
        return await self._instance.namesrv.call(
            rpcs.GET_CLUSTER_INFO, namesrv_pb2.GetClusterInfoRequest()
        )

    async def masters(self, cluster: str | None = None) -> dict[str, str]:
        """Broker name → address, of the masters (of `cluster`). Raises BROKER_NOT_EXIST when there
        is none."""
        info = await self.cluster_info()
        masters = {
            data.broker_name: data.addresses[MASTER_ID]
            for data in info.brokers
            if MASTER_ID in data.addresses and cluster in (None, data.cluster)
        }
        if not masters:
            where = f"in cluster {cluster!r}" if cluster else "at the name server"
            slaves = [each for each in info.brokers if cluster in (None, each.cluster)]
            reason = f"no broker is registered {where}: start one"
            if slaves:
                names = sorted(each.broker_name for each in slaves)
                reason = f"{', '.join(names)} {_without_master(names)}"
            raise MqError(Code.BROKER_NOT_EXIST, reason, retryable=True)
        return masters

    async def of_topic(self, topic: str, *, reads: bool = False) -> dict[str, str]:
        """Broker name → address, of the brokers in the route of `topic`. `reads`: for what a slave
        answers too; its address where there is no master. Raises TOPIC_NOT_EXIST."""
        routes = self._instance.routes
        route = await routes.refresh(topic)
        names = {data.broker_name for data in route.queues}
        address_of = routes.reading_address_of if reads else routes.address_of
        return {name: address_of(name) for name in sorted(names)}

    async def ask_broker_of(self, topic: str, broker_name: str, rpc: Rpc[Q, R], request: Q) -> R:
        """Asks a broker in the route of `topic` what a slave answers too: its master, or a slave
        where there is none."""
        await self._instance.routes.route(topic)
        address = self._instance.routes.reading_address_of(broker_name)
        try:
            return await self.ask(broker_name, address, rpc, request)
        except BrokerUnreachable:
            self._instance.routes.forget(topic)  # fetched again by the next call
            raise

    async def ask_named(self, broker: str, rpc: Rpc[Q, R], request: Q) -> R:
        """Asks a master by its name, or a broker by its address. Raises BROKER_NOT_EXIST."""
        address = broker
        if ":" not in broker:
            info = await self.cluster_info()
            known = {each.broker_name: each.addresses for each in info.brokers}
            if broker not in known:
                names = ", ".join(sorted(known)) or "none"
                reason = f"no broker {broker!r} is registered: there are {names}"
                raise MqError(Code.BROKER_NOT_EXIST, reason)
            if MASTER_ID not in known[broker]:
                reason = f"{broker} {_without_master([broker])}"
                raise MqError(Code.BROKER_NOT_EXIST, reason, retryable=True)
            address = known[broker][MASTER_ID]
        return await self.ask(broker, address, rpc, request)

    async def ask(
        self,
        broker_name: str,
        address: str,
        rpc: Rpc[Q, R],
        request: Q,
        *,
        timeout_s: float | None = None,
    ) -> R:
        """Asks one broker. A refusal names it. `timeout_s`: None, that of each call."""
        if timeout_s is None:
            timeout_s = self._timeout_s
        try:
            return await self._instance.transport.call(address, rpc, request, timeout_s=timeout_s)
        except MqError as error:
            if broker_name != address and error.code is not Code.BROKER_UNREACHABLE:
                error.add_context(f"broker {broker_name}")
            raise

    async def ask_masters(
        self, rpc: Rpc[Q, R], request: Q, *, absent: Collection[Code] = ()
    ) -> dict[str, R]:
        """`ask_each` of all masters."""
        return await self.ask_each(await self.masters(), rpc, request, absent=absent)

    async def ask_each(
        self,
        brokers: Mapping[str, str],
        rpc: Rpc[Q, R],
        request: Q,
        *,
        absent: Collection[Code] = (),
        silent: list[MqError] | None = None,
    ) -> dict[str, R]:
        """Asks `brokers` (name → address) at once; returns the answers by name. A broker that
        refuses with a code of `absent` is left out, unless all do. Any other failure is raised, or
        collected in `silent` when that is given and another broker answers."""
        answers = await asyncio.gather(
            *(self.ask(name, address, rpc, request) for name, address in brokers.items()),
            return_exceptions=True,
        )
        found: dict[str, R] = {}
        missing: BaseException | None = None
        for name, answer in zip(brokers, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[name] = answer
            elif isinstance(answer, MqError) and answer.code in absent:
                missing = answer
            elif isinstance(answer, MqError) and silent is not None:
                silent.append(answer)
                missing = answer
            else:
                raise answer
        if missing is not None and not found:
            raise missing
        return found

    async def ask_having(
        self, brokers: Mapping[str, str], rpc: Rpc[Q, R], request: Q, *, absent: Code
    ) -> dict[str, R]:
        """`ask_each`, without those that refuse with the code `absent`; empty when all do."""
        try:
            return await self.ask_each(brokers, rpc, request, absent=(absent,))
        except MqError as error:
            if error.code is not absent:
                raise
            return {}


def _without_master(names: Sequence[str]) -> str:
    """What follows the names of brokers of which only slaves are registered."""
    verb = "has" if len(names) == 1 else "have"
    return f"{verb} no master at the moment: see aerobee broker ha-status {names[0]}"


class BrokerAdmin(AsyncClient):
    """What the parts of an admin client have in common. `timeout`: of each call to a broker."""

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        transport: Transport | None = None,
    ) -> None:
        self._instance = ClientInstance(namesrv, transport=transport)
        self._brokers = Brokers(self._instance, timeout.total_seconds())

    async def close(self) -> None:
        await self._instance.close()


@contextmanager
def numbers_fit() -> Iterator[None]:
    """Raises INVALID_PARAMETER when the block gives a field of protobuf a number that it cannot
    hold."""
    try:
        yield
    except ValueError as error:
        raise MqError(Code.INVALID_PARAMETER, f"give a smaller number: {error}") from None
