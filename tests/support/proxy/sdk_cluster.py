"""A name server, brokers and proxies for the official SDKs, and the steps that their tests share:
create topics and groups, send, receive, read dead letters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1.namesrv_pb2 import TopicConfig

from aerobee_client import AdminClient
from support.clock.polling import until_sync
from support.processes.service import ServiceProcess, broker_process, namesrv_process, proxy_process
from support.proxy.official_sdk import Sdk, SdkError
from support.stubs import Stub

ALL = ("TAG", "*")
INVISIBLE_S = 10  # the shortest that a receive may ask for
RETRY_DELAY_S = 1.0
SOON_S = 60.0

NUMBERS = itertools.count()


@dataclass(frozen=True)
class Cluster:
    namesrv: ServiceProcess
    brokers: list[ServiceProcess]
    proxies: list[ServiceProcess]
    home: Path

    @property
    def broker(self) -> ServiceProcess:
        """The only one, or the first."""
        return self.brokers[0]

    @property
    def proxy(self) -> ServiceProcess:
        """The only one, or the first."""
        return self.proxies[0]

    def topic(
        self,
        message_type: str = "NORMAL",
        queues: int = 4,
        brokers: int | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> str:
        """A new topic, with that many queues on every broker, or on the first ones only."""
        name = f"{message_type}_{next(NUMBERS)}"
        config = TopicConfig(
            topic=name,
            read_queue_count=queues,
            write_queue_count=queues,
            permission=6,
            attributes={"message.type": message_type, **(attributes or {})},
        )
        for stub in itertools.islice(self._admins(), brokers):
            stub.PutTopic(admin_pb2.PutTopicRequest(topic=config), timeout=20)
        return name

    def group(self, **fields: Any) -> str:
        """A new consumer group; by default with three deliveries, a second apart."""
        name = f"group_{next(NUMBERS)}"
        defaults: dict[str, Any] = {
            "consume_enable": True,
            "consume_from_min_enable": True,
            "retry_queue_count": 1,
            "retry_max_times": 2,
            "retry_delays_ms": [int(RETRY_DELAY_S * 1_000)],
        }
        config = admin_pb2.GroupConfig(consumer_group=name, **{**defaults, **fields})
        for stub in self._admins():
            stub.PutGroup(admin_pb2.PutGroupRequest(group=config), timeout=20)
        return name

    def takers(self, topic: str) -> set[str]:
        """The names of the brokers on which messages of the topic were stored."""
        with AdminClient(self.namesrv.address) as admin:
            return {queue.broker_name for queue in admin.topic_status(topic) if queue.max_offset}

    def _admins(self) -> Iterator[Stub]:
        for broker in self.brokers:
            with grpc.insecure_channel(broker.address) as channel:
                yield Stub(admin_pb2, channel)


def sdk_broker(data: Path, name: str, namesrv: str, *options: str) -> ServiceProcess:
    """A broker whose topics that come about by themselves take every message type."""
    mixed = "--set=enableMixedMessageType=true"
    named = f"--set=brokerName={name}"
    return broker_process(data / name, mixed, named, *options, namesrv=namesrv)


@contextmanager
def sdk_cluster(data: Path, *proxy_options: str, brokers: int = 1) -> Iterator[Cluster]:
    """A running cluster with as many proxies as brokers. Asserts on leaving that no process logged
    a defect."""
    with ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(data))
        running = [
            stack.enter_context(sdk_broker(data, name, namesrv.address))
            for name in ("broker-a", "broker-b")[:brokers]
        ]
        proxies = [
            stack.enter_context(proxy_process(namesrv.address, *proxy_options)) for _ in running
        ]
        yield Cluster(namesrv, running, proxies, data)
        for process in (*proxies, *running):
            for defect in ("rpc_failed", "handler_failed", "background_work_failed"):
                assert not process.events(defect)


class Clients:
    """The clients of one test within an SDK's process that several tests share."""

    def __init__(self, sdk: Sdk) -> None:
        self._sdk = sdk
        self._prefix = f"{next(NUMBERS)}:"

    def do(self, command: str, **arguments: Any) -> Any:
        """Runs a command of the agent; returns its answer. Raises SdkError."""
        own = {
            name: self._prefix + value if name in ("id", "transaction") else value
            for name, value in arguments.items()
        }
        return self._sdk.do(command, **own)

    def events(self, kind: str, client: str) -> list[dict[str, Any]]:
        return self._sdk.events(kind, self._prefix + client)


class Commands(Protocol):
    """An SDK, or the part of it that one test uses."""

    def do(self, command: str, **arguments: Any) -> Any: ...

    def events(self, kind: str, client: str) -> list[dict[str, Any]]: ...


def simple(
    sdk: Commands, group: str, topic: str, expression: tuple[str, str] = ALL, await_s: int = 5
) -> None:
    """A consumer "c" that waits up to `await_s` for messages; Go's half as long again."""
    sdk.do("simple", id="c", group=group, subscriptions={topic: expression}, await_s=await_s)


def receive(sdk: Commands, count: int, *, ack: bool = True, most: int = 16) -> list[Any]:
    """`count` messages, in the order in which they came."""
    found: list[Any] = []

    def enough() -> bool:
        for message in sdk.do("receive", id="c", most=most, invisible_s=INVISIBLE_S):
            found.append(message)
            if ack:
                sdk.do("ack", id="c", message_id=message["message_id"])
        return len(found) >= count

    until_sync(enough, f"{count} messages", timeout_s=SOON_S)
    return found


def letters(cluster: Cluster, sdk: Commands, group: str) -> list[Any]:
    """What the first receive from the dead-letter topic brings, which the first dead letter
    creates."""
    topic, reader = f"%DLQ%{group}", cluster.group()

    def started() -> bool:
        simple(sdk, reader, topic)
        return True

    until_sync(started, "the topic", timeout_s=SOON_S, retry_on=(SdkError,))
    found: list[Any] = until_sync(
        lambda: sdk.do("receive", id="c", most=16, invisible_s=INVISIBLE_S),
        "a dead letter",
        timeout_s=SOON_S,
        retry_on=(SdkError,),
    )
    return found


def dead_letters(cluster: Cluster, sdk: Commands, group: str) -> list[str]:
    """The bodies of `letters`."""
    return bodies_of(letters(cluster, sdk, group))


def reasons(cluster: Cluster, group: str) -> list[tuple[str, str]]:
    """Reason and description of each dead letter of a group, of every broker."""
    with AdminClient(cluster.namesrv.address) as admin:
        return [
            (message.failure_reason, message.failure_description)
            for queue in admin.topic_status(f"%DLQ%{group}")
            for message in admin.browse(
                queue.topic, queue.broker_name, queue.queue_id, queue.min_offset
            ).messages()
        ]


def send(sdk: Commands, topic: str, count: int, **fields: Any) -> list[str]:
    """The bodies of messages sent by a new producer "p"."""
    sdk.do("producer", id="p", topics=[topic])
    bodies = [f"{topic} {number}" for number in range(count)]
    for body in bodies:
        sdk.do("send", id="p", topic=topic, body=body, **fields)
    return bodies


def bodies_of(messages: list[Any]) -> list[str]:
    return [message["body"] for message in messages]


def delivered(sdk: Commands, client: str, count: int) -> list[Any]:
    """The messages that the listener of a push consumer got, once there are `count`."""
    until_sync(
        lambda: len(sdk.events("delivered", client)) >= count,
        f"{count} deliveries",
        timeout_s=SOON_S,
    )
    return sdk.events("delivered", client)
