"""What brokers say about consumer groups, kept 20 s, and for longer while they do not answer.

A group that no broker knows yet is treated as a new one: brokers make it when it first consumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aerobee.broker.v1.admin_pb2 import GetGroupRequest, GetGroupResponse, GroupConfig

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.broker_calls import Brokers
from aerobee_proxy.cluster.route_cache import Topology
from aerobee_proxy.cluster.single_flight import AGAIN_MS, Questions
from aerobee_wire.rpcs import GET_GROUP
from aerobee_wire.status import Code, MqError

REFRESH_MS = 20_000
MAX_GROUPS = 20_000
SOON_S = 0.1  # for the first broker to answer before the others are asked too
# The delay levels: what a group without a policy of its own retries by.
DEFAULT_RETRY_DELAYS_MS = tuple(
    1_000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
)
assert len(DEFAULT_RETRY_DELAYS_MS) == 18
DEFAULT_RETRY_MAX_TIMES = 16


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """What a consumer group says about retries and order. The default is that of a new group."""

    fifo: bool = False
    retry_max_times: int = DEFAULT_RETRY_MAX_TIMES
    # Before the first retry, the second, …; beyond the last, the last again.
    retry_delays_ms: Sequence[int] = DEFAULT_RETRY_DELAYS_MS

    @property
    def max_attempts(self) -> int:
        return self.retry_max_times + 1

    def retry_delay_ms(self, delivery_attempt: int) -> int:
        """From a failure in this attempt, counted from 1, to the next."""
        delays = self.retry_delays_ms or DEFAULT_RETRY_DELAYS_MS
        return delays[min(max(delivery_attempt, 1), len(delays)) - 1]


@dataclass(slots=True)
class _Known:
    policy: GroupPolicy
    old_from_ms: int  # monotonic


class GroupPolicies:
    def __init__(self, brokers: Brokers, topology: Topology, clock: Clock) -> None:
        self._brokers = brokers
        self._topology = topology
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._asking: Questions[GroupPolicy] = Questions(clock)

    async def policy(self, consumer_group: str) -> GroupPolicy:
        """Of a stored group name. Raises MqError when no broker answers and nothing is known."""
        known = self._known.get(consumer_group)
        if known is not None and self._clock.monotonic_ms() < known.old_from_ms:
            return known.policy
        question = self._asking.ask(consumer_group, lambda: self._fetch(consumer_group))
        try:
            return await self._asking.answer(question, impatient=known is not None)
        except (MqError, TimeoutError) as error:
            if known is None:
                raise
            if isinstance(error, MqError):
                known.old_from_ms = self._clock.monotonic_ms() + AGAIN_MS
            return known.policy

    async def _fetch(self, consumer_group: str) -> GroupPolicy:
        policy = await self._ask(consumer_group)
        self._known.pop(consumer_group, None)
        if len(self._known) >= MAX_GROUPS:
            del self._known[next(iter(self._known))]
        self._known[consumer_group] = _Known(policy, self._clock.monotonic_ms() + REFRESH_MS)
        return policy

    async def _ask(self, consumer_group: str) -> GroupPolicy:
        """The first broker's, by name, if it knows the group and answers soon; else that of the
        first that does."""
        names = sorted(await self._topology.brokers())
        if not names:  # a name server that has just started: no reason to take a group for new
            raise MqError(Code.BROKER_UNREACHABLE, "the name servers know no broker yet: try again")
        request = GetGroupRequest(consumer_group=consumer_group)

        def ask(name: str) -> asyncio.Task[GetGroupResponse]:
            return asyncio.create_task(self._brokers.ask(name, GET_GROUP, request))

        asked = [ask(names[0])]
        try:
            await asyncio.wait(asked, timeout=SOON_S)
            if not asked[0].done() or asked[0].exception() is not None:
                asked += map(ask, names[1:])
            while True:
                waiting = []
                for one in asked:
                    if not one.done():
                        waiting.append(one)
                    elif one.exception() is None:
                        return _policy(one.result().group)
                if not waiting:
                    return _unknown(asked)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in asked:
                one.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


def _unknown(asked: Sequence[asyncio.Task[GetGroupResponse]]) -> GroupPolicy:
    """What it means that no broker gave the group. Raises why one did not answer."""
    for error in (one.exception() for one in asked):
        if not isinstance(error, MqError) or error.code is not Code.SUBSCRIPTION_GROUP_NOT_EXIST:
            assert error is not None
            raise error
    return GroupPolicy()


def _policy(group: GroupConfig) -> GroupPolicy:
    retry_max_times = max(0, group.retry_max_times)
    if group.retry_delays_ms:
        return GroupPolicy(
            group.consume_message_orderly, retry_max_times, tuple(group.retry_delays_ms)
        )
    return GroupPolicy(group.consume_message_orderly, retry_max_times)
