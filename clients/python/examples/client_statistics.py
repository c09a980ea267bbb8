"""Print the statistics of clients: messages, failures, rates, times and lag.

The numbers also travel with the heartbeats: `aerobee group members stock` shows them.
"""

import os
import time

from aerobee_client import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")


def count(message: ReceivedMessage) -> None:
    if message.body == b"13" and not message.reconsume_times:
        raise ValueError("unlucky")


with (
    Producer(namesrv=NAMESRV) as producer,
    PushConsumer("stock", count, namesrv=NAMESRV) as consumer,
):
    consumer.subscribe("deliveries")
    producer.send_batch([Message("deliveries", b"%d" % n) for n in range(100)])
    while consumer.statistics().consumed < 99:
        time.sleep(0.05)
    sent, consumed = producer.statistics(), consumer.statistics()
    print(f"sent {sent.sent}, failed {sent.failed}, {sent.average_ms:.1f} ms each request")
    print(f"consumed {consumed.consumed}, failed {consumed.failed}, behind by {consumed.lag}")

with PullConsumer("stock-report", namesrv=NAMESRV) as reader:
    reader.subscribe("deliveries")
    for _ in reader.read_to_end():
        pass
    read = reader.statistics()
    print(f"read {read.consumed} of {read.queues} queues, behind by {read.lag}")
