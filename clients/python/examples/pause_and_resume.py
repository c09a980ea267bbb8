"""A consumer that is steered while it runs: paused, resumed, given more listeners."""

import os
import threading
import time

from aerobee_client import Message, MessageQueue, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
seen: list[bytes] = []
assigned = threading.Event()


def on_assigned(queues: frozenset[MessageQueue]) -> None:
    print("queues:", sorted(queue.queue_id for queue in queues))
    assigned.set()


def listen(message: ReceivedMessage) -> None:
    seen.append(message.body)


with (
    Producer(namesrv=NAMESRV) as producer,
    PushConsumer("printing", listen, namesrv=NAMESRV, on_assigned=on_assigned) as consumer,
):
    consumer.subscribe("labels")
    consumer.pause("labels")  # the printer is out of paper
    producer.send_batch([Message("labels", b"%d" % n) for n in range(10)])
    assert assigned.wait(60)
    time.sleep(1)
    print("while it is paused:", len(seen))
    consumer.set_concurrency(40)
    consumer.resume("labels")
    while len(seen) < 10:
        time.sleep(0.05)
    print("afterwards:", len(seen))
