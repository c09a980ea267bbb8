"""Dead letters at real services: a group whose listener fails on every message."""

from __future__ import annotations

from datetime import timedelta

from aerobee_client import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    MqError,
    Producer,
    PushConsumer,
    ReceivedMessage,
)
from aerobee_wire import topics
from support.clock.polling import until_sync

TIMEOUT_S = 120.0


def dead_letter(namesrv: str, group: str, topic: str, count: int) -> None:
    """Sends `count` messages to a new topic and waits until each is a dead letter of a new group,
    with LookupError as the reason, after one retry."""

    def fail(message: ReceivedMessage) -> None:
        raise LookupError(f"{message.body!r} is nowhere")

    def are_dead() -> bool:
        found = admin.topic_status(topics.dead_letter_topic(group))
        return sum(queue.max_offset for queue in found) == count

    with AdminClient(namesrv) as admin, Producer("tests", namesrv=namesrv) as producer:
        admin.create_topic(topic, queues=4)
        admin.create_group(group, max_attempts=2, retry_delays=[timedelta(milliseconds=100)])
        producer.send_batch(
            [Message(topic, b"%d" % i, tag="UA", keys=f"k-{i}") for i in range(count)]
        )
        first = ConsumeFromWhere.FIRST_OFFSET
        with PushConsumer(group, fail, namesrv=namesrv, consume_from_where=first) as consumer:
            consumer.subscribe(topic)
            until_sync(are_dead, timeout_s=TIMEOUT_S, retry_on=(MqError,))
