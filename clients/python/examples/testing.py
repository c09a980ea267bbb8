"""A test of a program's own: a message that always fails dies after 16 retries, with its reason.

`pytest testing.py` runs it against a broker of its own; so does this file as a program.
"""

from __future__ import annotations

import sys

import pytest

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage
from aerobee_client.testing import RocketMq


def book(message: ReceivedMessage) -> None:
    """The code that is tested."""
    int(message.body)


def test_an_order_that_is_no_number_is_dead_lettered(rocketmq: RocketMq) -> None:
    topic, group = rocketmq.topic("orders"), rocketmq.group("billing")
    consumer = PushConsumer(group, book)
    consumer.subscribe(topic)
    with consumer, Producer() as producer:
        producer.send_batch([Message(topic, b"7"), Message(topic, b"seven")])
        rocketmq.advance(hours=5)
        (letter,) = rocketmq.dead_letters(group)
    assert (letter.body, letter.failure_reason) == (b"seven", "ValueError")


if __name__ == "__main__":
    plugin = ["-p", "aerobee_client.testing.plugin"]
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *plugin, __file__]))
