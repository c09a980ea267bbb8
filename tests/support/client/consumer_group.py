"""A consumer group "g" of the topic "flights", over a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aerobee_client.push_consumer import AsyncPushConsumer
from aerobee_wire import properties
from support.client.memory import MemoryBroker

TOPIC = "flights"
GROUP = "g"
RETRY = "%RETRY%g"
DEAD = "%DLQ%g"

# join(listener, expression="*", **settings) starts a member of the group.
Join = Callable[..., Any]


def fill(broker: MemoryBroker, count: int, *, topic: str = TOPIC, **names: str) -> None:
    """Appends messages "0", "1", … to the queues of `topic` in turn. `names`: properties."""
    queue_count = broker.topics[topic]
    for n in range(count):
        broker.append(topic, n % queue_count, b"%d" % n, properties.encode(names))


def committed(broker: MemoryBroker, topic: str = TOPIC) -> int:
    """The sum of the committed offsets of the group."""
    return sum(offset for (_, name, _), offset in broker.offsets.items() if name == topic)


def owned(consumer: AsyncPushConsumer) -> set[int]:
    """Ids of the queues of TOPIC that a member owns."""
    return {queue.queue_id for queue in consumer.queues if queue.topic == TOPIC}


def delete_topic(broker: MemoryBroker, topic: str = TOPIC) -> None:
    """With its messages and the offsets of all groups, as a broker does."""
    del broker.topics[topic]
    broker.queues = {key: kept for key, kept in broker.queues.items() if key[0] != topic}
    broker.offsets = {key: kept for key, kept in broker.offsets.items() if key[1] != topic}
