"""Order: messages of one group go to one queue, whoever sends them, and keep their order.

A selector chooses the queue by a rule of the program's own; here by the hash of the first key.
"""

from __future__ import annotations

from datetime import timedelta

from aerobee_client import Message, Producer, SelectByHash

STEPS = ("placed", "paid", "shipped")
SOON = timedelta(seconds=20)

with Producer() as producer:
    # Nobody waits here, and the steps of each order still arrive one after the other. When a send
    # fails, those of its group that were called behind it fail with it, unsent.
    futures = [
        producer.send_async(
            Message("example-steps", step.encode(), message_group=f"order {number}")
        )
        for step in STEPS
        for number in range(3)
    ]
    for future in futures:
        result = future.result(SOON.total_seconds())
        print(f"{result.queue} at {result.queue_offset}")

    # All of a batch, too.
    batch = [Message("example-steps", step.encode(), message_group="order 9") for step in STEPS]
    assert len({result.queue for result in producer.send_batch(batch)}) == 1

    by_customer = SelectByHash()
    producer.send(Message("example-steps", b"paid", keys="customer-7"), selector=by_customer)
