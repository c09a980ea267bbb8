"""ReconsumeLater: a listener says when it wants a message again, and whether it was an attempt.

Here a service is away: that is not the message's fault, so the refusal brings the message no nearer
to the dead-letter topic.
"""

import os
import threading
from datetime import timedelta

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage, ReconsumeLater

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
answers = iter(["away", "away", "here"])
booked = threading.Event()


def book(message: ReceivedMessage) -> None:
    service = next(answers)
    print(f"{message.body.decode()}: the service is {service}, {message.reconsume_times} failures")
    if service == "away":
        raise ReconsumeLater("the service is away", delay=timedelta(seconds=1), counted=False)
    booked.set()


with (
    Producer(namesrv=NAMESRV) as producer,
    PushConsumer("booking", book, namesrv=NAMESRV) as consumer,
):
    consumer.subscribe("bookings")
    producer.send(Message("bookings", b"seat 12A"))
    assert booked.wait(60)
