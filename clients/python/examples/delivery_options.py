"""Delays by the broker's clock, recall, priorities, and sends that do not wait for the disk."""

from __future__ import annotations

from datetime import timedelta

from aerobee_client import AdminClient, Message, Producer

with AdminClient() as admin:
    admin.create_topic("example-jobs", message_type="PRIORITY")

with Producer() as producer:
    # Delivered in two days by the broker's clock: that of this machine may be wrong.
    later = producer.send(Message("example-reminders", b"renew", delay=timedelta(days=2)))
    print("recalled", producer.recall("example-reminders", later.recall_handle))

    # In a topic of the type PRIORITY each queue stands for a priority; 0 is the lowest.
    for priority in (0, 3):
        job = producer.send(Message("example-jobs", b"job", priority=priority))
        print(f"priority {priority}: queue {job.queue.queue_id}")

    # Answered before it is on the disk: faster where the broker flushes synchronously, and lost
    # when the broker dies at once.
    producer.send(Message("example-pulses", b"still here", wait_store_ok=False))
