"""A process that has all: name server, broker, proxy, our client and the official Python SDK.

    python coexistence.py ours|theirs DATA PACKAGES

It imports all modules of ours first, or the SDK. It prints what each client received, and which
packages do not suit the SDK. The SDK is in PACKAGES, a folder that this interpreter searches last.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

TOPIC = "coexistence"
SENT = {"ours", "theirs"}
WAIT_S = 30
OURS = (
    *("aerobee", "aerobee_foreign", "aerobee_wire", "aerobee_cluster", "aerobee_client"),
    *("aerobee_chassis", "aerobee_namesrv", "aerobee_broker", "aerobee_proxy", "aerobee_suite"),
)


def import_ours() -> None:
    """Import modules that a program would import on demand, too."""
    for name in OURS:
        for place in importlib.import_module(name).__path__:
            for file in sorted(Path(place).rglob("*.py")):
                parts = file.relative_to(Path(place).parent).with_suffix("").parts
                if parts[-1] != "__main__":
                    importlib.import_module(".".join(parts).removesuffix(".__init__"))


def import_theirs() -> None:
    importlib.import_module("rocketmq")


@contextmanager
def cluster(data: Path) -> Iterator[Mapping[str, str]]:
    """Name server, broker and proxy in a thread of this process, by their addresses."""
    from aerobee_chassis.rpc.http2.loop import ServiceLoop
    from aerobee_suite.app import SuiteApp
    from aerobee_suite.options import Places, read

    sets = ("mappedFileSizeCommitLog=67108864", "proxy.tlsServerMode=disabled")
    places = Places(data=data, host="127.0.0.1", namesrv_port=0, broker_port=0, proxy_port=0)
    options = read(places, sets, {})
    loop = ServiceLoop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> SuiteApp:
        app = SuiteApp(options)
        await app.start()
        return app

    app = asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_S)
    yield app.addresses
    asyncio.run_coroutine_threadsafe(app.stop(), loop).result(WAIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextmanager
def our_clients(namesrv: str) -> Iterator[tuple[Any, Any]]:
    from aerobee_client import Message, Producer, SimpleConsumer

    def receive() -> list[str]:
        messages = consumer.receive(wait=timedelta(seconds=1))
        for message in messages:
            consumer.ack(message)
        return [message.body.decode() for message in messages]

    producer = Producer(namesrv=namesrv)
    consumer = SimpleConsumer("of-ours", namesrv=namesrv)
    consumer.subscribe(TOPIC)
    with producer, consumer:
        yield lambda: producer.send(Message(TOPIC, b"ours")), receive


@contextmanager
def their_clients(proxy: str) -> Iterator[tuple[Any, Any]]:
    import rocketmq

    def send() -> None:
        message = rocketmq.Message()
        message.topic, message.body = TOPIC, b"theirs"
        producer.send(message)

    def receive() -> list[str]:
        messages = consumer.receive(16, 30) or []
        for message in messages:
            consumer.ack(message)
        return [message.body.decode() for message in messages]

    configuration = rocketmq.ClientConfiguration(proxy, rocketmq.Credentials())
    producer = rocketmq.Producer(configuration, (TOPIC,))
    producer.startup()
    filters = {TOPIC: rocketmq.FilterExpression()}
    consumer = rocketmq.SimpleConsumer(configuration, "of-theirs", filters, 1)
    consumer.startup()
    yield send, receive
    consumer.shutdown()
    producer.shutdown()


def unmet() -> list[str]:
    """What the SDK requires and this process does not have: one environment cannot have both."""
    needs = [Requirement(text) for text in metadata.requires("rocketmq-python-client") or ()]
    return [str(need) for need in needs if metadata.version(need.name) not in need.specifier]


def clients_of(namesrv: str) -> list[Any]:
    """Whether each client uses the proxy, its topics and its groups, as brokers know them."""
    from aerobee_client import AdminClient

    found: list[Any] = []
    ends = time.monotonic() + WAIT_S
    with AdminClient(namesrv) as admin:
        while len([each for each in found if each[1]]) < 2 and time.monotonic() < ends:
            found = sorted(
                [bool(each.proxy), [*each.published_topics], [*each.consumer_groups]]
                for each in admin.client_page().rows
                if each.language == "python"
            )
    return found


def received_by(receive: Any) -> list[str]:
    found: list[str] = []
    ends = time.monotonic() + WAIT_S
    while set(found) != SENT and time.monotonic() < ends:
        found += receive()
    return sorted(found)


def main(first: str, data: str, packages: str) -> None:
    sys.path.append(packages)
    for import_them in (import_ours, import_theirs)[:: 1 if first == "ours" else -1]:
        import_them()
    with (
        cluster(Path(data)) as addresses,
        our_clients(addresses["namesrv"]) as (send, receive),
        their_clients(addresses["proxy"]) as (their_send, their_receive),
    ):
        send()
        their_send()
        received = {"ours": received_by(receive), "theirs": received_by(their_receive)}
        clients = clients_of(addresses["namesrv"])
    print(json.dumps({"received": received, "clients": clients, "unmet": unmet()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
