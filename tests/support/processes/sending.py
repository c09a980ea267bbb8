"""A producer that sends one message after the other, from a thread of its own."""

from __future__ import annotations

import threading
from datetime import timedelta

from aerobee_client import AdminClient, Message, Producer
from aerobee_wire.status import Code, MqError
from support.clock.polling import until_sync


class Sending:
    """Sends until the end of `with`. `sent`: the bodies that were acknowledged; `failed`: of sends
    that raised. It creates the topic, with `queues` on each master."""

    def __init__(self, namesrv: str, topic: str, *, queues: int = 1, timeout_s: float = 30) -> None:
        self.sent: list[bytes] = []
        self.failed: list[MqError] = []
        self._namesrv = namesrv
        self._topic = topic
        self._queues = queues
        self._timeout = timedelta(seconds=timeout_s)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Sending:
        with AdminClient(self._namesrv) as admin:
            admin.create_topic(self._topic, queues=self._queues)
        self._thread.start()
        self.until_more()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopped.set()
        self._thread.join()

    def until_more(self) -> None:
        """Until sends that begin now are acknowledged."""
        count = len(self.sent)
        until_sync(lambda: len(self.sent) > count + 20, "sends go on", timeout_s=60)

    def until_fails(self, code: Code | None = None) -> None:
        """Until a send that begins now has failed, and with this code where one is given."""
        count = len(self.failed)

        def failed() -> bool:
            later = self.failed[count + 1 :]
            return any(code in (None, error.code) for error in later)

        until_sync(failed, "sends fail", timeout_s=60)

    def _run(self) -> None:
        with Producer(
            "p",
            namesrv=self._namesrv,
            # One that is stored, and perhaps not replicated, is tried elsewhere too.
            retry_another_broker_when_not_store_ok=True,
        ) as producer:
            number = 0
            while not self._stopped.is_set():
                body = b"%d" % number
                try:
                    producer.send(Message(self._topic, body), timeout=self._timeout)
                except MqError as error:
                    self.failed.append(error)
                else:
                    self.sent.append(body)
                number += 1
