"""Send messages and consume them in a group."""

from __future__ import annotations

import threading

from aerobee_client import ConsumeFromWhere, Message, Producer, PushConsumer, ReceivedMessage

COUNT = 10
consumed = threading.Semaphore(0)


def show(message: ReceivedMessage) -> None:
    print(message.tag, message.body.decode())
    consumed.release()  # an exception here would be the reason of a retry


with Producer() as producer:
    for number in range(COUNT):
        producer.send(Message("example-orders", b"order %d" % number, tag="paid", keys=str(number)))

with PushConsumer(
    "example-billing", show, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
) as consumer:
    consumer.subscribe("example-orders", "paid")
    for _ in range(COUNT):
        assert consumed.acquire(timeout=60)
