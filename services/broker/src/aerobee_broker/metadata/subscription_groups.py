"""The configurations of the consumer groups, which are stored in `subscriptionGroup.json`.

Connected clients and consumer offsets are kept elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aerobee_broker.metadata.config_table import ConfigTable
from aerobee_broker.store.format import EXPONENTIAL_RETRY
from aerobee_chassis.clock import Clock
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.retry_policy import ExponentialRetryPolicy

DEFAULT_RETRY_MAX_TIMES = 16
# RocketMQ's customised policy uses entry n + 2 of its list for retry n, so that its default list,
# the 18 delay levels, starts at level 3.
_POLICY_SKIP = 2
_EXPONENTIAL = "EXPONENTIAL"
# A key of Aerobee, besides RocketMQ's consumeMessageOrderly (docs/adr/0012-order-by-default.md).
_CONSUME_ORDER = "consumeOrder"

TOOLS_GROUP = "TOOLS_CONSUMER"
PREDEFINED_GROUPS = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)


@dataclass(frozen=True, slots=True)
class SubscriptionGroup:
    consumer_group: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_order: ConsumeOrder = ConsumeOrder.AUTO
    retry_queue_count: int = 1
    # The number of delivery attempts is this number + 1.
    retry_max_times: int = DEFAULT_RETRY_MAX_TIMES
    # The delays before retry 1, 2, and so on. Later retries use the last delay. If it is empty, the
    # retries use the delay levels from level 3 on.
    retry_delays_ms: tuple[int, ...] = ()
    # Replaces `retry_delays_ms`, if it is given.
    exponential_retry: ExponentialRetryPolicy | None = None
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minutes: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.consumer_group

    @property
    def features(self) -> set[str]:
        """Return the format features (`store/format.py`) that this group uses."""
        return set() if self.exponential_retry is None else {EXPONENTIAL_RETRY}

    def to_json(self) -> dict[str, Any]:
        return {
            "groupName": self.consumer_group,
            "consumeEnable": self.consume_enable,
            "consumeFromMinEnable": self.consume_from_min_enable,
            "consumeBroadcastEnable": self.consume_broadcast_enable,
            "consumeMessageOrderly": self.consume_order is ConsumeOrder.ON,
            _CONSUME_ORDER: self.consume_order.name,
            "retryQueueNums": self.retry_queue_count,
            "retryMaxTimes": self.retry_max_times,
            "groupRetryPolicy": self._retry_policy(),
            "brokerId": self.broker_id,
            "whichBrokerWhenConsumeSlowly": self.which_broker_when_consume_slowly,
            "notifyConsumerIdsChangedEnable": self.notify_consumer_ids_changed_enable,
            "groupSysFlag": self.group_sys_flag,
            "consumeTimeoutMinute": self.consume_timeout_minutes,
            "subscriptionDataSet": None,
            "attributes": dict(self.attributes),
        }

    def _retry_policy(self) -> dict[str, Any]:
        retry = self.exponential_retry
        if retry is not None:
            values = {
                "initial": retry.initial_ms,
                "max": retry.max_ms,
                "multiplier": retry.multiplier,
            }
            return {"type": _EXPONENTIAL, "exponentialRetryPolicy": values}
        delays = self.retry_delays_ms
        listed = [*delays[:1] * _POLICY_SKIP, *delays]
        return {
            "type": "CUSTOMIZED",
            "customizedRetryPolicy": {"next": listed} if listed else None,
        }

    @classmethod
    def from_json(cls, group: str, content: Mapping[str, Any]) -> SubscriptionGroup:
        retry_policy = content.get("groupRetryPolicy") or {}
        exponential = _exponential(retry_policy)
        return cls(
            consumer_group=group,
            consume_enable=bool(content.get("consumeEnable", True)),
            consume_from_min_enable=bool(content.get("consumeFromMinEnable", True)),
            consume_broadcast_enable=bool(content.get("consumeBroadcastEnable", True)),
            consume_order=_order(content),
            retry_queue_count=int(content.get("retryQueueNums", 1)),
            retry_max_times=int(content.get("retryMaxTimes", DEFAULT_RETRY_MAX_TIMES)),
            retry_delays_ms=() if exponential else _delays(retry_policy),
            exponential_retry=exponential,
            broker_id=int(content.get("brokerId", 0)),
            which_broker_when_consume_slowly=int(content.get("whichBrokerWhenConsumeSlowly", 1)),
            notify_consumer_ids_changed_enable=bool(
                content.get("notifyConsumerIdsChangedEnable", True)
            ),
            group_sys_flag=int(content.get("groupSysFlag", 0)),
            consume_timeout_minutes=int(content.get("consumeTimeoutMinute", 15)),
            attributes=dict(content.get("attributes") or {}),
        )


def _order(content: Mapping[str, Any]) -> ConsumeOrder:
    """Return the consume order in the JSON of a group.

    RocketMQ and version 0.1 write only the key consumeMessageOrderly. Its value false was not
    chosen by a user, so it becomes AUTO. These versions drop the key `consumeOrder`.
    """
    if content.get("consumeMessageOrderly"):
        return ConsumeOrder.ON
    return ConsumeOrder[content.get(_CONSUME_ORDER, ConsumeOrder.AUTO.name)]


def _exponential(policy: Mapping[str, Any]) -> ExponentialRetryPolicy | None:
    """Parse an exponential retry policy. Return None for the customised policy."""
    if policy.get("type") != _EXPONENTIAL:
        return None
    values = policy.get("exponentialRetryPolicy") or {}
    default = ExponentialRetryPolicy()
    return ExponentialRetryPolicy(
        int(values.get("initial", default.initial_ms)),
        int(values.get("max", default.max_ms)),
        int(values.get("multiplier", default.multiplier)),
    )


def _delays(policy: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the retry delays (ms) of a customised retry policy."""
    listed = (policy.get("customizedRetryPolicy") or {}).get("next") or ()
    return tuple(map(int, listed[_POLICY_SKIP:] or listed[-1:]))


class SubscriptionGroups(ConfigTable[SubscriptionGroup]):
    ROWS = "subscriptionGroupTable"
    config_from_json = SubscriptionGroup.from_json

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._forbidden: dict[str, Any] = {}

    def head_to_json(self) -> dict[str, Any]:
        # This table of RocketMQ is kept, but has no effect in Aerobee.
        return {**super().head_to_json(), "forbiddenTable": self._forbidden}

    def load(self, content: dict[str, Any]) -> None:
        super().load(content)
        self._forbidden = dict(content.get("forbiddenTable") or {})
