"""Delivery times made into delay levels, the delays that brokers offer. Pure.

A level is taken when it ends at the delivery time or less than a second after it: SDKs give whole
seconds, and some time is gone when the message is here. Never before it. For another time there is
no level, and the message is refused. The levels are RocketMQ's 18: brokers with a messageDelayLevel
of their own are not served.
"""

from __future__ import annotations

from aerobee.broker.v1.message_pb2 import Message
from apache.rocketmq.v2.definition_pb2 import Code

from aerobee_proxy.errors import Refused
from aerobee_proxy.settings import DEFAULT_RETRY_DELAYS_MS
from aerobee_proxy.translate import DELIVERY_TIME
from aerobee_wire import properties as names

PRECISION_MS = 1_000


def put_delay(message: Message, now_ms: int) -> None:
    """Replaces the delivery time of a message by a level; a time that is past by nothing.

    Raises Refused NOT_IMPLEMENTED.
    """
    deliver_ms = message.properties.get(names.TIMER_DELIVER_MS)
    if deliver_ms is None:
        return
    del message.properties[names.TIMER_DELIVER_MS]
    message.properties[DELIVERY_TIME] = deliver_ms
    level = level_for(int(deliver_ms) - now_ms)
    if level:
        message.properties[names.DELAY] = str(level)


def level_for(delay_ms: int) -> int:
    """0: deliver at once. Raises Refused NOT_IMPLEMENTED when no level is near enough."""
    if delay_ms <= 0:
        return 0
    for level, level_ms in enumerate(DEFAULT_RETRY_DELAYS_MS, start=1):
        if 0 <= level_ms - delay_ms < PRECISION_MS:
            return level
    raise Refused(
        Code.NOT_IMPLEMENTED,
        f"brokers of this version cannot deliver {delay_ms} ms ahead: use one of the delays 1, 5, "
        "10 or 30 s, 1 to 10, 20 or 30 min, 1 or 2 h",
    )
