"""Consuming in order: the steps of each order one after the other, those of different orders side
by side. A step that fails is tried in place, and the steps behind it wait.
"""

import os
import threading
from collections import defaultdict

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
STEPS = ["created", "paid", "shipped"]
done: defaultdict[str, list[str]] = defaultdict(list)
complete = threading.Event()


def take(message: ReceivedMessage) -> None:
    order, step = message.body.decode().split()
    if step == "paid" and not message.reconsume_times:
        raise TimeoutError("the bank does not answer")  # tried again after 1 s
    done[order].append(step)
    print(order, step)
    if list(done.values()) == [STEPS, STEPS]:
        complete.set()


by_order = PushConsumer("warehouse", take, namesrv=NAMESRV, orderly=True, order_by="message_group")
with Producer(namesrv=NAMESRV) as producer, by_order as consumer:
    consumer.subscribe("order-steps")
    for step in STEPS:
        for order in ("order-1", "order-2"):
            producer.send(Message("order-steps", f"{order} {step}".encode(), message_group=order))
    assert complete.wait(60)
