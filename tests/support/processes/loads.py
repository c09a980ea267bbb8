"""Clients that send and receive all the time, each in a thread: the classic one, and an SDK's."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Self

from aerobee_client import Credentials, Message, MqError, Producer, SimpleConsumer, Tls
from aerobee_wire.status import Code
from support.clock.polling import until_sync
from support.proxy.official_sdk import OfficialSdk, Sdk, SdkError
from support.proxy.sdk_cluster import ALL, INVISIBLE_S

BETWEEN_SENDS_S = 0.05
SENDS_PER_RECEIVE = 10
DRAIN_S = 60.0  # until what was sent is received
# Codes of calls that were rejected: NO_PERMISSION, and UNAUTHORIZED and FORBIDDEN of the SDKs.
REJECTED = {Code.NO_PERMISSION, 40_100, 40_300}


class Load(ABC):
    """Sends to `topic`, and receives from it, until `finish` or the end of `with`.

    `failed` has the sends that raised, and `rejected` the calls of all kinds that were rejected.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sent: set[str] = set()
        self.received: set[str] = set()
        self.failed: list[str] = []
        self.rejected: list[str] = []
        self._ended_receive = 0.0  # when it began, monotonic
        self._stopping = threading.Event()
        self._stack = ExitStack()
        self._thread = threading.Thread(target=self._run, name=topic)

    @abstractmethod
    def _open(self, stack: ExitStack) -> None: ...

    @abstractmethod
    def _send(self, body: str) -> None: ...

    @abstractmethod
    def _take(self) -> None:
        """Receive messages, add their bodies to `received`, and acknowledge them."""

    def __enter__(self) -> Self:
        self._open(self._stack)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._stack.close()

    def until_more(self) -> None:
        """Wait until sends that begin now are stored."""
        count = len(self.sent)
        until_sync(lambda: len(self.sent) > count + 5, f"{self.topic} goes on", timeout_s=60)

    def until_receives_since(self, moment: float) -> None:
        """Wait until a receive has ended that began after a moment (monotonic)."""
        until_sync(lambda: self._ended_receive > moment, f"{self.topic} receives", timeout_s=60)

    def finish(self) -> None:
        """End it when each message was received. Raises AssertionError."""
        self.close()
        missing = self.sent - self.received
        assert not missing, f"{len(missing)} of {len(self.sent)} of {self.topic} were not received"

    def _run(self) -> None:
        number = 0
        while not self._stopping.is_set():
            number += 1
            body = f"{self.topic} {number}"
            try:
                self._send(body)
                self.sent.add(body)
            except (MqError, SdkError) as error:
                self.failed.append(f"{number}: {error!r}")
                self._note(error)
            if number % SENDS_PER_RECEIVE == 0:
                self._receive()
            time.sleep(BETWEEN_SENDS_S)
        deadline = time.monotonic() + DRAIN_S
        while not self.sent <= self.received and time.monotonic() < deadline:
            self._receive()

    def _receive(self) -> None:
        began = time.monotonic()
        try:
            self._take()
        except (MqError, SdkError) as error:
            self._note(error)
        self._ended_receive = began

    def _note(self, error: MqError | SdkError) -> None:
        if error.code in REJECTED:
            self.rejected.append(repr(error))


class ClassicLoad(Load):
    """The Python client of name servers and brokers."""

    def __init__(
        self,
        namesrv: str,
        topic: str,
        tls: Tls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        super().__init__(topic)
        self._producer = Producer(namesrv=namesrv, tls=tls, credentials=credentials)
        self._consumer = SimpleConsumer(topic, namesrv=namesrv, tls=tls, credentials=credentials)

    def _open(self, stack: ExitStack) -> None:
        stack.enter_context(self._producer)
        stack.enter_context(self._consumer)
        self._consumer.subscribe(self.topic)

    def _send(self, body: str) -> None:
        self._producer.send(Message(self.topic, body.encode()))

    def _take(self) -> None:
        messages = self._consumer.receive(
            invisible_duration=timedelta(seconds=INVISIBLE_S), wait=timedelta(seconds=1)
        )
        self.received.update(message.body.decode() for message in messages)
        for message in messages:
            self._consumer.ack(message)


class SdkLoad(Load):
    """An official SDK in a process of its own. The other arguments are those of `Sdk`."""

    def __init__(
        self,
        official: OfficialSdk,
        endpoints: str,
        topic: str,
        home: Path,
        *,
        credentials: tuple[str, str] = ("", ""),
        roots: Path | None = None,
    ) -> None:
        super().__init__(topic)
        self._sdk = Sdk(official, endpoints, home, credentials, roots)

    def _open(self, stack: ExitStack) -> None:
        sdk = stack.enter_context(self._sdk)
        sdk.do("producer", id="p", topics=[self.topic])
        subscriptions = {self.topic: ALL}
        sdk.do("simple", id="c", group=self.topic, subscriptions=subscriptions, await_s=1)

    def _send(self, body: str) -> None:
        self._sdk.do("send", id="p", topic=self.topic, body=body)

    def _take(self) -> None:
        messages = self._sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S)
        self.received.update(message["body"] for message in messages)
        for message in messages:
            self._sdk.do("ack", id="c", message_id=message["message_id"])
