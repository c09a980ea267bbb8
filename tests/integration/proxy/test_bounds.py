"""What a proxy process holds for its clients: large sends at once, clients that do not read, and
clients that are gone.

AEROBEE_CHURN_CLIENTS=12000 makes the churn as large as that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from support.clock.polling import until_sync
from support.observing.scrape import scrape
from support.processes.service import METRICS, ServiceProcess, proxy_process
from support.proxy.client import Client
from support.stubs import Stub

MIB = 1024 * 1024
LIMIT = 32 * MIB
SENDS = 40
READERS = 12
BODY = bytes(4 * MIB - 1_000)
CHURN = int(os.environ.get("AEROBEE_CHURN_CLIENTS", "300"))
MANY = 10_000  # so many that the memory they took shows
AT_ONCE = 20
BOUNDS = (
    *METRICS,
    f"--set=maxInFlightBytes={LIMIT}",
    "--set=stalledClientTimeoutMillis=3000",
)
# A client that takes no more of a stream than 64 KiB ahead of its reads.
LAZY = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


@pytest.fixture(scope="module")
def proxy(namesrv: ServiceProcess) -> Iterator[ServiceProcess]:
    with proxy_process(namesrv.address, *BOUNDS) as proxy:
        yield proxy


def resident(pid: int) -> int:
    """Bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def send_large(proxy: ServiceProcess, topic: str, count: int) -> list[int]:
    """The code of each, all sent at once on a few connections."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(proxy.address)) for _ in range(8)]
        threads = stack.enter_context(ThreadPoolExecutor(count))
        answers = threads.map(lambda n: clients[n % 8].send(topic, BODY), range(count))
        return [answer.status.code for answer in answers]


def test_large_sends_at_once_stay_within_the_bound(proxy: ServiceProcess) -> None:
    with Client(proxy.address) as client:
        client.queue("large")
    codes = send_large(proxy, "large", SENDS)
    assert set(codes) <= {Code.OK, Code.TOO_MANY_REQUESTS}
    assert Code.OK in codes
    found = scrape(proxy)
    assert LIMIT / 2 < found["aerobee_proxy_in_flight_bytes_peak"] <= LIMIT
    assert found["aerobee_proxy_calls_refused_total"] == codes.count(Code.TOO_MANY_REQUESTS)


def test_clients_that_do_not_read_are_cut_off_and_their_messages_come_again(
    proxy: ServiceProcess,
) -> None:
    with Client(proxy.address) as client:
        queue = client.queue("unread")
        sent = sum(send_large(proxy, "unread", 1)[0] == Code.OK for _ in range(READERS))
        assert sent == READERS
        cut_before = scrape(proxy)["aerobee_proxy_calls_cut_total"]
        with ExitStack() as stack:
            streams = [unread(stack, proxy.address, queue, n) for n in range(READERS)]
            until_sync(lambda: scrape(proxy)["aerobee_proxy_calls_cut_total"] > cut_before, "a cut")
            until_sync(
                lambda: scrape(proxy)['aerobee_proxy_in_flight_bytes{kind="answers"}'] == 0,
                "no answer is held",
            )
            # Leases last for a minute: the messages were given back.
            bodies = 0

            def all_received() -> bool:
                nonlocal bodies
                for message in client.receive(queue):
                    bodies += 1
                    assert client.ack(message) == Code.OK
                return bodies == READERS

            until_sync(all_received, "every message", timeout_s=40)
            for stream in streams:
                stream.cancel()
    assert scrape(proxy)["aerobee_proxy_in_flight_bytes_peak"] <= LIMIT


def unread(stack: ExitStack, address: str, queue: d.MessageQueue, number: int) -> Any:
    """A receive on a connection of its own, of which nothing is read."""
    channel = stack.enter_context(grpc.insecure_channel(address, options=LAZY))
    request = s.ReceiveMessageRequest(
        group=d.Resource(name="g"), message_queue=queue, batch_size=32
    )
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = 5
    stub = Stub(s, channel)
    client_id = (("x-mq-client-id", f"unread@{number}"),)
    return stub.ReceiveMessage(request, metadata=client_id, timeout=120)


def come_and_go(address: str, number: int) -> None:
    """A consumer that says what it subscribes to, and is gone without a word."""
    metadata = (("x-mq-client-id", f"churn@{number}"),)
    group = d.Resource(name=f"churn{number % 5}")
    settings = d.Settings(
        client_type=d.ClientType.SIMPLE_CONSUMER,
        subscription=d.Subscription(
            group=group,
            subscriptions=[
                d.SubscriptionEntry(
                    topic=d.Resource(name="churn"),
                    expression=d.FilterExpression(type=d.FilterType.TAG, expression="*"),
                )
            ],
        ),
    )
    with grpc.insecure_channel(address, options=LAZY) as channel:
        stub = Stub(s, channel)
        stream = stub.Telemetry(
            iter([s.TelemetryCommand(settings=settings)]), metadata=metadata, timeout=60
        )
        assert next(stream).settings.HasField("subscription")
        heartbeat = s.HeartbeatRequest(group=group, client_type=d.ClientType.SIMPLE_CONSUMER)
        assert stub.Heartbeat(heartbeat, metadata=metadata, timeout=60).status.code == Code.OK
        stream.cancel()


@pytest.mark.slow
def test_nothing_is_kept_of_clients_that_are_gone(namesrv: ServiceProcess) -> None:
    with proxy_process(namesrv.address, *METRICS) as proxy:
        with Client(proxy.address) as client:
            client.queue("churn")
        before = resident(proxy.pid)
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(lambda n: come_and_go(proxy.address, n), range(CHURN)))
        most = resident(proxy.pid)
        assert scrape(proxy)["aerobee_proxy_clients"] > 0
        until_sync(lambda: scrape(proxy)["aerobee_proxy_clients"] == 0, "none", timeout_s=120)
        if CHURN >= MANY:
            until_sync(lambda: resident(proxy.pid) <= 1.3 * before, "memory is given back")
        figures = [before, most, resident(proxy.pid)]
        print(f"{CHURN} clients:", *(f"{size / MIB:.0f} MiB" for size in figures))
