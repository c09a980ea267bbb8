"""Call brokers: all masters, the brokers of a topic, or one broker.

The functions also decide which failures of single brokers are raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

from aerobee.namesrv.v1 import namesrv_pb2
from google.protobuf.message import Message

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.credentials import Credentials
from aerobee_client.errors import BrokerUnreachable
from aerobee_client.runtime.facade import AsyncClient
from aerobee_client.runtime.kinds import checked_class
from aerobee_client.tls import Tls
from aerobee_cluster.transport import Transport
from aerobee_wire import rpcs
from aerobee_wire.route import MASTER_ID
from aerobee_wire.rpcs import Request, Rpc
from aerobee_wire.status import Code, MqError, invalid_parameter

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

DEFAULT_TIMEOUT = timedelta(seconds=5)
# A broker that fails so has not refused the call.
NO_ANSWER = frozenset({Code.BROKER_UNREACHABLE, Code.REQUEST_TIMEOUT})


class Brokers:
    """Calls the brokers that the name servers know.

    `timeout_s` is the time limit of each call.
    """

    def __init__(self, instance: ClientInstance, timeout_s: float) -> None:
        self._instance = instance
        self.timeout_s = timeout_s

    async def cluster_info(self) -> namesrv_pb2.GetClusterInfoResponse:
        info = await self._instance.namesrv.call(
            rpcs.GET_CLUSTER_INFO, namesrv_pb2.GetClusterInfoRequest()
        )
        for broker in info.brokers:
            for address in broker.addresses.values():
                self._instance.transport.expect(address, broker.broker_name)
        return info

    async def masters(
        self, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, str]:
        """Return the addresses of the masters by broker name, of one cluster or broker if given.

        Raises MqError with the code BROKER_NOT_EXIST if there are none.
        """
        info = await self.cluster_info()
        masters = _masters(info, cluster)
        if broker is None:
            return masters
        if broker not in masters:
            raise _not_registered(info, broker)
        return {broker: masters[broker]}

    async def addresses_of(self, broker_name: str) -> Mapping[int, str]:
        """Return the addresses of a broker's replicas by registration id.

        Raises MqError with the code BROKER_NOT_EXIST if the broker is not registered.
        """
        info = await self.cluster_info()
        known = {each.broker_name: each.addresses for each in info.brokers}
        if broker_name not in known:
            raise _not_registered(info, broker_name)
        return known[broker_name]

    async def of_topic(
        self, topic: str, *, reads: bool = False, silent: list[MqError] | None = None
    ) -> dict[str, str]:
        """Return the addresses of the brokers in the route of `topic`, by broker name.

        Set `reads` for requests that a slave can answer too; a broker without a master then has the
        address of a slave. If `silent` is given, an error is appended for each broker that had the
        topic and is not registered any more. Raises MqError with the code TOPIC_NOT_EXIST if there
        is no route.
        """
        routes = self._instance.routes
        route = await routes.refresh(topic)
        names = {data.broker_name for data in route.queues}
        address_of = routes.reading_address_of if reads else routes.address_of
        found = {name: address_of(name) for name in sorted(names)}
        if silent is not None:
            silent += (await self.away_from_topic(topic, found)).values()
        return found

    async def away_from_topic(self, topic: str, registered: Collection[str]) -> dict[str, MqError]:
        """Return an error for each broker that had `topic` and is not registered any more."""
        request = namesrv_pb2.GetTopicRouteRequest(topic=topic)
        response = await self._instance.namesrv.call(rpcs.GET_TOPIC_ROUTE, request)
        away: dict[str, MqError] = {
            name: BrokerUnreachable(name, "it is not registered at the name server any more")
            for name in response.away_brokers
            if name not in registered
        }
        for name, error in away.items():
            error.at_broker(name)
        return away

    async def ask_broker_of(self, topic: str, broker_name: str, rpc: Rpc[Q, R], request: Q) -> R:
        """Send a read request to a broker in the route of `topic`.

        The master answers the request, or a slave if there is no master.
        """
        await self._instance.routes.route(topic)
        address = self._instance.routes.reading_address_of(broker_name)
        try:
            return await self.ask(broker_name, address, rpc, request)
        except BrokerUnreachable:
            self._instance.routes.forget(topic)  # the next call fetches the route again
            raise

    async def ask_named(
        self, broker: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float | None = None
    ) -> R:
        """Send a request to the master of the broker named `broker`, or to the address `broker`.

        `timeout_s` is as in `ask`. Raises MqError with the code BROKER_NOT_EXIST if there is no
        such master.
        """
        address = broker
        if ":" not in broker:
            addresses = await self.addresses_of(broker)
            if MASTER_ID not in addresses:
                raise _missing(broker, f"{broker} {_without_master([broker])}")
            address = addresses[MASTER_ID]
        return await self.ask(broker, address, rpc, request, timeout_s=timeout_s)

    async def ask(
        self,
        broker_name: str,
        address: str,
        rpc: Rpc[Q, R],
        request: Q,
        *,
        timeout_s: float | None = None,
    ) -> R:
        """Send a request to one broker. The text of an error names the broker.

        If `timeout_s` is None, the default time limit applies.
        """
        if timeout_s is None:
            timeout_s = self.timeout_s
        try:
            return await self._instance.transport.call(address, rpc, request, timeout_s=timeout_s)
        except MqError as error:
            error.at_broker(broker_name)
            if broker_name != address:
                error.add_context(f"broker {broker_name}")
            raise

    async def ask_masters(
        self,
        rpc: Rpc[Q, R],
        request: Q,
        *,
        absent: Collection[Code] = (),
        silent: list[MqError] | None = None,
    ) -> dict[str, R]:
        """Send a request to all masters, as `ask_each` does."""
        masters = await self.masters_to_ask(silent)
        return await self.ask_each(masters, rpc, request, absent=absent, silent=silent)

    async def ask_answering(
        self,
        brokers: Mapping[str, str],
        rpc: Rpc[Q, R],
        request: Q,
        *,
        timeout_s: float | None = None,
    ) -> tuple[dict[str, R], dict[str, MqError]]:
        """Send a request to all `brokers` (addresses by name) at once. `timeout_s` is as in `ask`.

        Returns the answers, and the errors of the other brokers, by broker name.
        """
        answers = await asyncio.gather(
            *(
                self.ask(name, address, rpc, request, timeout_s=timeout_s)
                for name, address in brokers.items()
            ),
            return_exceptions=True,
        )
        found: dict[str, R] = {}
        errors: dict[str, MqError] = {}
        for name, answer in zip(brokers, answers, strict=True):
            if isinstance(answer, MqError):
                errors[name] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[name] = answer
        return found, errors

    async def masters_and_missing(
        self, cluster: str | None = None
    ) -> tuple[dict[str, str], dict[str, MqError]]:
        """Return the addresses of the masters, and an error for each broker without a master.

        Both are by broker name, of one cluster if given. The second includes brokers that have left
        the name server without being drained. Raises MqError with the code BROKER_NOT_EXIST if
        there is no master.
        """
        info = await self.cluster_info()
        masters = _masters(info, cluster)
        missing = _away(info, cluster)
        for data in info.brokers:
            if data.broker_name not in masters and cluster in (None, data.cluster):
                reason = f"{data.broker_name} {_without_master([data.broker_name])}"
                missing[data.broker_name] = _missing(data.broker_name, reason)
        return masters, missing

    async def masters_to_ask(self, silent: list[MqError] | None) -> dict[str, str]:
        """Return the addresses of the masters, for a question to the whole cluster.

        If `silent` is given, an error is appended for each broker that `masters_and_missing` finds
        missing. Raises MqError with the code BROKER_NOT_EXIST if there is no master.
        """
        masters, missing = await self.masters_and_missing()
        if silent is not None:
            silent += missing.values()
        return masters

    async def readers_to_ask(self, silent: list[MqError] | None) -> dict[str, str]:
        """Return the address of one replica of each broker, for a question about its messages.

        It is the master, or a slave if there is no master. If `silent` is given, an error is
        appended for each broker that has left the name server without being drained.
        """
        info = await self.cluster_info()
        if silent is not None:
            silent += _away(info).values()
        return {
            data.broker_name: data.addresses[min(data.addresses)]
            for data in info.brokers
            if data.addresses
        }

    async def masters_to_change(
        self,
        silent: list[MqError] | None,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> dict[str, str]:
        """Return the addresses of the masters, for a change on each, or on one broker if given.

        `silent` is as in `masters_to_ask`. A broker that it already names is left out, so that a
        series of changes waits for a broker without an answer once.
        """
        if silent is None or broker is not None:
            return await self.masters(cluster, broker)
        masters, missing = await self.masters_and_missing(cluster)
        named = {error.broker_name for error in silent}
        silent += [error for name, error in missing.items() if name not in named]
        return {name: address for name, address in masters.items() if name not in named}

    async def check_each(
        self,
        brokers: Mapping[str, str],
        rpc: Rpc[Q, R],
        request: Q,
        *,
        absent: Code | None,
        silent: list[MqError] | None,
    ) -> tuple[dict[str, str], dict[str, R]]:
        """Ask all `brokers` (addresses by name) at once, before a change on each of them.

        The error of a broker is raised, so that a refusal by one prevents the change on all. If
        `silent` is given, the errors of brokers that do not answer are appended to it instead,
        unless none answers.

        Returns:
            The brokers that answer, and their answers. A broker that refuses with the code `absent`
            is one of them, and has no answer.
        """
        answers, errors = await self.ask_answering(brokers, rpc, request)
        refusals = {name: error for name, error in errors.items() if error.code is not absent}
        for error in refusals.values():
            if silent is None or error.code not in NO_ANSWER:
                raise error
        reached = {name: at for name, at in brokers.items() if name not in refusals}
        for error in refusals.values():
            if not reached:
                raise error
            if silent is not None:
                silent.append(error)
        return reached, answers

    async def ask_each(
        self,
        brokers: Mapping[str, str],
        rpc: Rpc[Q, R],
        request: Q,
        *,
        absent: Collection[Code] = (),
        silent: list[MqError] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, R]:
        """Send a request to all `brokers` (addresses by name) at once. Return the answers by name.

        A broker that refuses with a code in `absent` is left out, unless all brokers do. Any other
        failure is raised. If `silent` is given and at least one broker answers, failures are
        appended to `silent` instead. `timeout_s` is as in `ask`.
        """
        requests = dict.fromkeys(brokers, request)
        return await self.ask_several(
            brokers, rpc, requests, absent=absent, silent=silent, timeout_s=timeout_s
        )

    async def ask_several(
        self,
        brokers: Mapping[str, str],
        rpc: Rpc[Q, R],
        requests: Mapping[str, Q],
        *,
        absent: Collection[Code] = (),
        silent: list[MqError] | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, R]:
        """Send each of `brokers` its own request, by broker name, as `ask_each` does."""
        answers = await asyncio.gather(
            *(
                self.ask(name, address, rpc, requests[name], timeout_s=timeout_s)
                for name, address in brokers.items()
            ),
            return_exceptions=True,
        )
        found: dict[str, R] = {}
        missing: BaseException | None = None
        for name, answer in zip(brokers, answers, strict=True):
            if not isinstance(answer, BaseException):
                found[name] = answer
            elif isinstance(answer, MqError) and answer.code in absent:
                missing = missing or answer  # a silent broker may have what the others lack
            elif isinstance(answer, MqError) and silent is not None:
                silent.append(answer)
                missing = answer
            else:
                raise answer
        if missing is not None and not found:
            raise missing
        return found


def _masters(
    info: namesrv_pb2.GetClusterInfoResponse, cluster: str | None = None
) -> dict[str, str]:
    """Return the addresses of the masters as `Brokers.masters` does."""
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
        elif away := _away(info, cluster):
            reason = "; ".join(error.message for error in away.values())
        raise MqError(Code.BROKER_NOT_EXIST, reason, retryable=True)
    return masters


def _away(
    info: namesrv_pb2.GetClusterInfoResponse, cluster: str | None = None
) -> dict[str, MqError]:
    """Return an error for each broker that has left the name server without being drained."""
    return {
        away.broker_name: _missing(
            away.broker_name,
            f"{away.broker_name} is not registered any more: start it again, or drain a broker "
            "before you remove it",
        )
        for away in info.away_brokers
        if cluster in (None, away.cluster)
    }


def _not_registered(info: namesrv_pb2.GetClusterInfoResponse, broker_name: str) -> MqError:
    """Return the error for the name of a broker that has no master, or that is not registered."""
    names = sorted(each.broker_name for each in info.brokers)
    if broker_name in names:
        return _missing(broker_name, f"{broker_name} {_without_master([broker_name])}")
    if away := _away(info).get(broker_name):
        return away
    reason = f"no broker {broker_name!r} is registered: there are {', '.join(names) or 'none'}"
    return MqError(Code.BROKER_NOT_EXIST, reason)


def _missing(broker_name: str, reason: str) -> MqError:
    error = MqError(Code.BROKER_NOT_EXIST, reason, retryable=True)
    error.at_broker(broker_name)
    return error


def _without_master(names: Sequence[str]) -> str:
    """Return the end of an error text about brokers that have only slaves."""
    verb = "has" if len(names) == 1 else "have"
    return f"{verb} no master at the moment: see aerobee broker ha-status {names[0]}"


@checked_class
class BrokerAdmin(AsyncClient):
    """Base class of the parts of an admin client.

    `timeout` is the time limit of each call to a broker.
    """

    def __init__(
        self,
        namesrv: str | Sequence[str] | None = None,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
        transport: Transport | None = None,
    ) -> None:
        self._instance = ClientInstance(
            namesrv, tls=tls, credentials=credentials, transport=transport
        )
        self._brokers = Brokers(self._instance, timeout.total_seconds())

    async def close(self) -> None:
        await self._instance.close()


def missing_on_each(code: Code, name: str, silent: Sequence[MqError] | None) -> MqError:
    """Return the error for a topic or group that no broker has. `silent` may have it."""
    if not silent:
        return MqError(code, f"{name} does not exist: create it first")
    reasons = "; ".join(error.message for error in silent)
    return MqError(code, f"{name} does not exist on a broker that answers: {reasons}")


@contextmanager
def numbers_fit() -> Iterator[None]:
    """Convert errors of a block that sets protobuf fields to numbers out of range.

    Raises MqError with the code INVALID_PARAMETER.
    """
    try:
        yield
    except ValueError as error:
        raise invalid_parameter(f"give a smaller number: {error}") from None
