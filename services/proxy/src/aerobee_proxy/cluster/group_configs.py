"""Cache consumer group configurations from brokers.

A configuration is fetched again after 20 s. While no broker answers, the cached configuration stays
valid. A group that no broker knows has the default configuration, because brokers create the group
when it first consumes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aerobee.broker.v1.admin_pb2 import GetGroupRequest, GetGroupResponse, GroupConfig

from aerobee_chassis.clock import Clock
from aerobee_cluster.single_flight import RETRY_AFTER_MS, SingleFlight
from aerobee_proxy.cluster.broker_calls import BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.topic_route import message_type
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.queues.lite import LiteGroup
from aerobee_wire.queues.lite import group_of as lite_group_of
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from aerobee_wire.rpcs import GET_GROUP
from aerobee_wire.status import Code, MqError

REFRESH_MS = 20_000
MAX_GROUPS = 20_000
HEDGE_S = 0.1  # time for the first broker to answer before the others are asked too
# RocketMQ's delay levels: the retry delays of a group without its own.
DEFAULT_RETRY_DELAYS_MS = tuple(
    1_000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1_200, 1_800, 3_600, 7_200)
)
assert len(DEFAULT_RETRY_DELAYS_MS) == 18
DEFAULT_RETRY_MAX_TIMES = 16


@dataclass(frozen=True, slots=True)
class GroupPolicy:
    """The retry policy and the order of a consumer group. The defaults are those of a new group."""

    order: ConsumeOrder = ConsumeOrder.AUTO
    retry_max_times: int = DEFAULT_RETRY_MAX_TIMES
    # The delays before the first retry, the second, …; further retries use the last delay. Never
    # empty.
    retry_delays_ms: Sequence[int] = DEFAULT_RETRY_DELAYS_MS
    # None if the group has its own list of delays, or the default list.
    exponential_retry: ExponentialRetryPolicy | None = None
    lite: LiteGroup | None = None  # None if the group does not consume lite topics

    @property
    def max_attempts(self) -> int:
        return self.retry_max_times + 1

    def retry_delay_ms(self, delivery_attempt: int) -> int:
        """Return the delay between a failed delivery attempt and the next one.

        Attempts are numbered from 1.
        """
        delays = self.retry_delays_ms
        return delays[min(max(delivery_attempt, 1), len(delays)) - 1]


@dataclass(slots=True)
class _CachedPolicy:
    policy: GroupPolicy
    stale_from_ms: int  # monotonic


class GroupConfigCache:
    def __init__(self, calls: BrokerCalls, route_cache: RouteCache, clock: Clock) -> None:
        self._calls = calls
        self._route_cache = route_cache
        self._clock = clock
        self._policies: dict[str, _CachedPolicy] = {}
        self._flights: SingleFlight[GroupPolicy] = SingleFlight(clock)

    async def policy(self, consumer_group: str) -> GroupPolicy:
        """Return the policy of a group, by its stored name, from the cache or a broker.

        Raises MqError if no broker answers and no policy is cached.
        """
        known = self._policies.get(consumer_group)
        if known is not None and self._clock.monotonic_ms() < known.stale_from_ms:
            return known.policy
        try:
            return await self._flights.do(
                consumer_group, lambda: self._fetch(consumer_group), has_stale=known is not None
            )
        except (MqError, TimeoutError) as error:
            if known is None:
                raise
            if isinstance(error, MqError):
                known.stale_from_ms = self._clock.monotonic_ms() + RETRY_AFTER_MS
            return known.policy

    async def is_ordered(self, policy: GroupPolicy, topic: str) -> bool:
        """Return whether a group with this policy consumes a topic in order.

        `topic` is the stored name of the topic. Raises MqError if no name server answers and no
        route is cached.
        """
        if policy.order is not ConsumeOrder.AUTO:
            return policy.order is ConsumeOrder.ON
        try:
            route = await self._route_cache.route(topic)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
            return False
        return policy.order.holds_in(message_type(route))

    async def _fetch(self, consumer_group: str) -> GroupPolicy:
        policy = await self._ask(consumer_group)
        self._policies.pop(consumer_group, None)
        if len(self._policies) >= MAX_GROUPS:
            del self._policies[next(iter(self._policies))]
        self._policies[consumer_group] = _CachedPolicy(
            policy, self._clock.monotonic_ms() + REFRESH_MS
        )
        return policy

    async def _ask(self, consumer_group: str) -> GroupPolicy:
        """Ask brokers for the policy of a group.

        The alphabetically first broker is asked first. If it fails, does not know the group, or
        does not answer within HEDGE_S, all brokers are asked. The first answer of a broker that
        knows the group is returned.
        """
        names = sorted(await self._route_cache.brokers())
        if not names:  # a name server has just started: the group may exist
            raise MqError(Code.BROKER_UNREACHABLE, "the name servers know no broker yet: retry")
        request = GetGroupRequest(consumer_group=consumer_group)

        def ask(name: str) -> asyncio.Task[GetGroupResponse]:
            return asyncio.create_task(self._calls.call(name, GET_GROUP, request))

        calls = [ask(names[0])]
        try:
            await asyncio.wait(calls, timeout=HEDGE_S)
            if not calls[0].done() or calls[0].exception() is not None:
                calls += map(ask, names[1:])
            while True:
                waiting = []
                for call in calls:
                    if not call.done():
                        waiting.append(call)
                    elif call.exception() is None:
                        return _policy(call.result().group)
                if not waiting:
                    return _policy_of_unknown_group(calls)
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)


def _policy_of_unknown_group(calls: Sequence[asyncio.Task[GetGroupResponse]]) -> GroupPolicy:
    """Return the default policy if every broker reports that the group does not exist.

    Otherwise raise the error of a broker that failed for another reason.
    """
    for error in (call.exception() for call in calls):
        if not isinstance(error, MqError) or error.code is not Code.SUBSCRIPTION_GROUP_NOT_EXIST:
            assert error is not None
            raise error
    return GroupPolicy()


def _policy(group: GroupConfig) -> GroupPolicy:
    order = ConsumeOrder.of(group.order, orderly=group.consume_message_orderly)
    retry_max_times = max(0, group.retry_max_times)
    lite = lite_group_of(group.attributes)
    if group.HasField("exponential_retry"):
        retry = group.exponential_retry
        exponential = ExponentialRetryPolicy(retry.initial_ms, retry.max_ms, retry.multiplier)
        return GroupPolicy(order, retry_max_times, exponential.delays_ms(), exponential, lite)
    delays_ms = tuple(group.retry_delays_ms) or DEFAULT_RETRY_DELAYS_MS
    return GroupPolicy(order, retry_max_times, delays_ms, lite=lite)
