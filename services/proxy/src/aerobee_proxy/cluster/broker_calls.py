"""Call brokers by name, and wait for a broker that is unavailable.

An unavailable broker is usually restarting. A call that only this broker can answer is therefore
retried for up to 2 s, because SDKs wait 3 s for an answer. A long poll is retried until its own
deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

import structlog
from aerobee.broker.v1.admin_pb2 import GetGroupRequest
from aerobee.broker.v1.message_pb2 import PullRequest, PullResponse
from google.protobuf.message import Message

from aerobee_chassis.rpc.transport import CallFailed
from aerobee_cluster.transport import CODE_OF_STATUS, Transport
from aerobee_proxy.cluster.availability import BrokerAvailability, OnBack, ignore
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_wire.backoff import Backoff
from aerobee_wire.queues.replica_choice import ReplicaChoice
from aerobee_wire.route import MASTER_ID
from aerobee_wire.rpcs import GET_GROUP, PULL, Rpc
from aerobee_wire.status import Code, MqError, error_from

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

TIMEOUT_S = 5.0
FLUSH_TIMEOUT_S = 8.0  # longer than the 5 s after which a broker reports that it cannot flush
# The wait for an unavailable broker, counted from the first failed call of an outage. It is shorter
# than the 3 s after which SDKs give up a request. Later calls fail at once, so that requests of
# callers that gave up do not queue up.
PATIENCE_S = 2.0
RETRY_AFTER_S, MAX_RETRY_AFTER_S = 0.1, 0.5
MAX_CHOICES = 10_000  # maximum number of cached replica choices, one for each group and queue


class BrokerCalls:
    def __init__(
        self, transport: Transport, route_cache: RouteCache, on_back: OnBack = ignore
    ) -> None:
        self.availability = BrokerAvailability(on_back)
        self._transport = transport
        self._route_cache = route_cache
        self._choices: dict[tuple[str, str, int, str], ReplicaChoice] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}  # of brokers that are unavailable

    async def call(
        self, broker_name: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float = TIMEOUT_S
    ) -> R:
        """Call the master of a broker, once.

        Raises MqError, for example with the code BROKER_NOT_EXIST.
        """
        address = ""
        try:
            address = await self._route_cache.address_of(broker_name)
            answer = await self._transport.call(address, rpc, request, timeout_s=timeout_s)
        except MqError as error:
            if error.code is Code.BROKER_UNREACHABLE:
                self._route_cache.forget_address(broker_name, address)
            self.availability.failed(broker_name, error)
            raise
        self.availability.answered(broker_name)
        return answer

    async def stream(self, broker_name: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        """Yield the responses of a stream of the broker's master. Raises the errors of `call`."""
        address = await self._route_cache.address_of(broker_name)
        async with aclosing(self._transport.stream(address, rpc, request)) as responses:
            async for response in responses:
                yield response

    async def ask(self, broker_name: str, rpc: Rpc[Q, R], request: Q) -> R:
        """Call the master of a broker, or a slave while the master is being elected.

        The request must be one that slaves answer too. Raises the errors of `call`.
        """
        replicas = await self._route_cache.replicas_of(broker_name)
        if MASTER_ID in replicas:
            return await self.call(broker_name, rpc, request)
        address = replicas[min(replicas)]
        return await self._transport.call(address, rpc, request, timeout_s=TIMEOUT_S)

    async def pull(
        self, broker_name: str, request: PullRequest, *, timeout_s: float
    ) -> PullResponse:
        """Pull messages from the master, or from a slave that the master suggests.

        While the master is being elected, messages are pulled from any slave. Raises the errors of
        `call`.
        """
        replicas = await self._route_cache.replicas_of(broker_name)
        if replicas.keys() == {MASTER_ID}:
            return await self.call(broker_name, PULL, request, timeout_s=timeout_s)
        choice = self._choice(broker_name, request)
        now_s = asyncio.get_running_loop().time
        while chosen := choice.choose(replicas, int(now_s() * 1_000)):
            address = replicas[chosen]
            try:
                answer = await self._transport.call(address, PULL, request, timeout_s=timeout_s)
            except MqError:
                choice.failed(chosen, int(now_s() * 1_000))
                continue
            choice.answered(chosen, answer.suggested_broker_id, int(now_s() * 1_000))
            return answer
        answer = await self.call(broker_name, PULL, request, timeout_s=timeout_s)
        choice.answered(MASTER_ID, answer.suggested_broker_id, int(now_s() * 1_000))
        return answer

    def _choice(self, broker_name: str, request: PullRequest) -> ReplicaChoice:
        reader = broker_name, request.topic, request.queue_id, request.consumer_group
        choice = self._choices.pop(reader, None) or ReplicaChoice()
        self._choices[reader] = choice  # the first entry is the least recently used
        if len(self._choices) > MAX_CHOICES:
            del self._choices[next(iter(self._choices))]
        return choice

    async def try_call(
        self, broker_name: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float = TIMEOUT_S
    ) -> MqError | None:
        """Call a broker. Return the error of the call, or None on success."""
        try:
            await self.call(broker_name, rpc, request, timeout_s=timeout_s)
        except MqError as error:
            return error
        return None

    async def call_until(
        self,
        broker_name: str,
        rpc: Rpc[Q, R],
        attempt: Callable[[float], tuple[Q, float]],
        *,
        deadline_s: float,
    ) -> R:
        """Call a broker, and retry until a deadline while the broker is unavailable.

        Args:
            broker_name: The broker.
            rpc: The RPC.
            attempt: Makes the request of each attempt, and its timeout in seconds. The argument is
                the number of seconds left until the deadline.
            deadline_s: The deadline in the event loop's time.

        Raises:
            MqError: The error of the last attempt.
        """
        time, backoff = asyncio.get_running_loop().time, Backoff(RETRY_AFTER_S, MAX_RETRY_AFTER_S)
        while True:
            request, timeout_s = attempt(max(0.0, deadline_s - time()))
            try:
                return await self.call(broker_name, rpc, request, timeout_s=timeout_s)
            except MqError as error:
                pause_s = backoff.next_s()
                outage = self.availability.is_outage(broker_name, error)
                if time() + pause_s >= deadline_s or not outage:
                    raise
            await asyncio.sleep(pause_s)

    async def call_patiently(
        self, broker_name: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float = TIMEOUT_S
    ) -> R:
        """Call a broker, and retry until it has been unavailable for PATIENCE_S."""
        deadline_s = self.availability.away_since_s(broker_name) + PATIENCE_S
        return await self.call_until(
            broker_name, rpc, lambda _: (request, timeout_s), deadline_s=deadline_s
        )

    async def wait_until_back(self, broker_name: str) -> None:
        """Wait until an unavailable broker answers again, but for PATIENCE_S at most."""
        if not self.availability.is_away(broker_name):
            return
        probe = self._probes.get(broker_name)
        if probe is None:
            probe = self._probes[broker_name] = asyncio.create_task(self._probe(broker_name))
            probe.add_done_callback(lambda _: self._probes.pop(broker_name))
        await asyncio.wait([probe], timeout=PATIENCE_S)

    async def _probe(self, broker_name: str) -> None:
        """Probe a broker until it answers or PATIENCE_S has passed.

        The probe asks for a group without a name. An error of the broker also counts as an answer.
        """
        deadline_s = asyncio.get_running_loop().time() + PATIENCE_S
        try:
            await self.call_until(
                broker_name,
                GET_GROUP,
                lambda left_s: (GetGroupRequest(), left_s + 1),
                deadline_s=deadline_s,
            )
        except MqError as error:
            if self.availability.is_outage(broker_name, error):
                structlog.get_logger().warning(
                    "broker_away", broker=broker_name, reason=error.message
                )

    def close(self) -> None:
        for probe in list(self._probes.values()):
            probe.cancel()


_CODE_OF_STATUS = {**CODE_OF_STATUS, "DEADLINE_EXCEEDED": Code.REQUEST_TIMEOUT}


def error_of(address: str, failure: CallFailed) -> MqError:
    """Return the error that a server answered with, or else an error that names its address."""
    answered = error_from(failure.message, failure.trailers)
    if answered is not None:
        return answered
    code = _CODE_OF_STATUS.get(failure.status, Code.BROKER_UNREACHABLE)
    reason = failure.message or failure.status
    retry = "; retry" if code in (Code.BROKER_UNREACHABLE, Code.REQUEST_TIMEOUT) else ""
    return MqError(code, f"no answer from {address}: {reason}{retry}")
