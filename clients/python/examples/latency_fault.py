"""Avoid brokers that fail or are slow, until they answer again."""

from __future__ import annotations

from datetime import timedelta

from aerobee_client import Message, Producer

# (latency from which on, for how long the broker is avoided)
TABLE = [
    (timedelta(seconds=2), timedelta(seconds=30)),
    (timedelta(milliseconds=500), timedelta(seconds=5)),
]

with Producer(latency_fault=True, latency_table=TABLE, latency_detector=True) as producer:
    for number in range(8):
        sent = producer.send(Message("detours", b"flight %d" % number))
        print(f"flight {number} is on {sent.queue.broker_name}, queue {sent.queue.queue_id}")
