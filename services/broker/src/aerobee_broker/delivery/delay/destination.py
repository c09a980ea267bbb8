"""The destination of a message that waits in a system topic: its topic and queue.

Its properties REAL_TOPIC and REAL_QID name it, as in RocketMQ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props


def redirected(
    message: NewMessage, properties: dict[str, str], topic: str, queue_id: int
) -> NewMessage:
    """Return `message` for a system topic; `properties` are its decoded properties."""
    properties[props.REAL_TOPIC] = message.topic
    properties[props.REAL_QUEUE_ID] = str(message.queue_id)
    return replace(message, topic=topic, queue_id=queue_id, properties=props.encode(properties))


def destination_in(properties: Mapping[str, str]) -> tuple[str, int] | None:
    """Return (topic, queue id); None if the properties do not contain both."""
    topic = properties.get(props.REAL_TOPIC, "")
    queue_id = props.whole_number(properties.get(props.REAL_QUEUE_ID, ""))
    return (topic, queue_id) if topic and queue_id is not None and queue_id >= 0 else None
