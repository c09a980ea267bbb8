"""Run code of your own around each send and each call of a listener."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from aerobee_client import Failure, Interceptor, Message, Producer, PushConsumer, ReceivedMessage

consumed = threading.Event()


class Audit(Interceptor):
    def before_send(self, message: Message) -> Message:
        if b"password" in message.body:
            raise ValueError("no passwords in messages, please")
        return message.with_properties({"sent-by": "the booking service"})

    def after_consume(
        self, group: str, messages: Sequence[ReceivedMessage], failures: Sequence[Failure | None]
    ) -> None:
        print(messages[0].properties["sent-by"], "|", failures[0] or "consumed")
        consumed.set()


with Producer(interceptors=[Audit()]) as producer:
    producer.send(Message("audited", b"seat 17A"))
    try:
        producer.send(Message("audited", b"my password is 1234"))
    except ValueError as refusal:
        print("refused:", refusal)

with PushConsumer("audit", print, interceptors=[Audit()]) as consumer:
    consumer.subscribe("audited")
    assert consumed.wait(timeout=60)
