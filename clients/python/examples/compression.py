"""Compress bodies: whoever consumes them does not notice."""

from __future__ import annotations

import threading

from aerobee_client import ConsumeFromWhere, Message, Producer, PushConsumer, ReceivedMessage

BODY = b'{"carrier": "UA", "delay_minutes": 42}\n' * 1_000
consumed = threading.Event()


def show(message: ReceivedMessage) -> None:
    print(f"{len(message.body)} bytes, {len(message.stored_body)} of them stored")
    consumed.set()


# "lz4" and "zstd" need the extra: pip install 'aerobee-client[compression]'.
with Producer(compression="zlib") as producer:
    producer.send(Message("compressed-flights", BODY))

with PushConsumer(
    "compression-example", show, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
) as consumer:
    consumer.subscribe("compressed-flights")
    assert consumed.wait(timeout=60)
