"""A subscription by SQL92: the broker delivers the messages whose properties meet a condition."""

import os
import queue

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage, Sql

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
large: queue.Queue[str] = queue.Queue()


def listen(message: ReceivedMessage) -> None:
    large.put(f"{message.body.decode()}: {message.properties['amount']}")


with (
    Producer(namesrv=NAMESRV) as producer,
    PushConsumer("large-payments", listen, namesrv=NAMESRV) as consumer,
):
    consumer.subscribe("payments", Sql("amount > 1000 AND region IN ('eu', 'us')"))
    for name, amount, region in (("a", 20, "eu"), ("b", 2000, "eu"), ("c", 3000, "asia")):
        properties = {"amount": str(amount), "region": region}
        producer.send(Message("payments", name.encode(), properties=properties))
    print(large.get(timeout=60))
    consumer.subscribe("payments", Sql("amount > 10"))  # changed while it runs
    producer.send(Message("payments", b"d", properties={"amount": "30", "region": "asia"}))
    print(large.get(timeout=60))
