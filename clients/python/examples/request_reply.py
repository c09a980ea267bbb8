"""Ask over a topic, and wait for what a consumer replies."""

from __future__ import annotations

from datetime import timedelta

from aerobee_client import (
    ConsumeFromWhere,
    Message,
    MqError,
    Producer,
    PushConsumer,
    ReceivedMessage,
)


def convert(message: ReceivedMessage) -> None:
    euros = int(message.body) / 100
    try:
        consumer.reply(message, f"{euros:.2f} EUR".encode(), {"currency": "EUR"})
    except MqError as error:
        print(f"nobody waits for the reply any more: {error}")


consumer = PushConsumer("converters", convert, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
consumer.subscribe("conversions")
with consumer, Producer() as producer:
    for cents in (1250, 99):
        reply = producer.request(Message("conversions", b"%d" % cents), timedelta(seconds=30))
        print(f"{cents} cents are {reply.body.decode()} ({reply.properties['currency']})")
