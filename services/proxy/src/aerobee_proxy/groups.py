"""What brokers say about consumer groups, kept 20 s.

A group that no broker knows yet is treated as a new one: brokers make it when it first consumes.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee.broker.v1.admin_pb2 import GetGroupRequest, GroupConfig

from aerobee_chassis.clock import Clock
from aerobee_proxy.brokers import Brokers
from aerobee_proxy.rpcs import GET_GROUP
from aerobee_proxy.settings import GroupPolicy
from aerobee_proxy.topology import Topology
from aerobee_wire.status import Code, MqError

REFRESH_MS = 20_000
MAX_GROUPS = 20_000


@dataclass(frozen=True, slots=True)
class _Known:
    policy: GroupPolicy
    at_ms: int  # monotonic


class GroupPolicies:
    def __init__(self, brokers: Brokers, topology: Topology, clock: Clock) -> None:
        self._brokers = brokers
        self._topology = topology
        self._clock = clock
        self._known: dict[str, _Known] = {}

    async def policy(self, consumer_group: str) -> GroupPolicy:
        """Of a stored group name. Raises MqError when no broker answers and nothing is known."""
        known = self._known.get(consumer_group)
        now_ms = self._clock.monotonic_ms()
        if known and now_ms - known.at_ms < REFRESH_MS:
            return known.policy
        try:
            policy = await self._ask(consumer_group)
        except MqError:
            if known is None:
                raise
            return known.policy
        self._known.pop(consumer_group, None)
        if len(self._known) >= MAX_GROUPS:
            del self._known[next(iter(self._known))]
        self._known[consumer_group] = _Known(policy, now_ms)
        return policy

    async def _ask(self, consumer_group: str) -> GroupPolicy:
        """The first broker's that knows the group."""
        failure: MqError | None = None
        request = GetGroupRequest(consumer_group=consumer_group)
        for name in sorted(await self._topology.brokers()):
            try:
                return _policy((await self._brokers.ask(name, GET_GROUP, request)).group)
            except MqError as error:
                if error.code is not Code.SUBSCRIPTION_GROUP_NOT_EXIST:
                    failure = error
        if failure is not None:
            raise failure
        return GroupPolicy()


def _policy(group: GroupConfig) -> GroupPolicy:
    retry_max_times = max(0, group.retry_max_times)
    if group.retry_delays_ms:
        return GroupPolicy(
            group.consume_message_orderly, retry_max_times, tuple(group.retry_delays_ms)
        )
    return GroupPolicy(group.consume_message_orderly, retry_max_times)
