"""Operators see with commands what waits in a broker, end it, and watch its rates."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import (
    AdminClient,
    Message,
    Producer,
    SimpleConsumer,
    TransactionProducer,
    TransactionResolution,
)
from support.processes.command import aerobee, aerobee_json
from support.processes.service import namesrv_and_broker


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with namesrv_and_broker(tmp_path) as (process, _):
        yield process.address


def test_a_lease_is_listed_and_released(namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        admin.create_topic("orders", queues=1)
    with (
        Producer(namesrv=namesrv) as producer,
        SimpleConsumer("billing", namesrv=namesrv) as consumer,
    ):
        consumer.subscribe("orders")
        sent = producer.send(Message("orders", b"body"))
        (held,) = consumer.receive(1, timedelta(hours=1))
        (lease,) = aerobee_json("lease", "list", "billing", namesrv=namesrv)
        assert lease["message_id"] == sent.message_id == held.message_id
        assert lease["attempt"] == 1
        assert lease["expires_timestamp_ms"] - lease["since_timestamp_ms"] == 3_600_000
        done = aerobee_json("lease", "release", "billing", sent.message_id, namesrv=namesrv)
        assert done == {"group": "billing", "released": [lease]}
        (again,) = consumer.receive(1, timedelta(seconds=30))
        assert again.message_id == sent.message_id
        consumer.ack(again)
        assert aerobee_json("lease", "list", "billing", namesrv=namesrv) == []
        gone = aerobee("lease", "release", "billing", sent.message_id, namesrv=namesrv)
        assert gone.returncode == 1


def test_a_transaction_is_listed_and_ended(namesrv: str) -> None:
    def undecided(message: object) -> TransactionResolution:
        return TransactionResolution.UNKNOWN

    with AdminClient(namesrv) as admin:
        admin.create_topic("orders", queues=1, message_type="TRANSACTION")
    with TransactionProducer("shop", undecided, namesrv=namesrv) as producer:
        for body in (b"kept", b"discarded"):
            producer.send_in_transaction(Message("orders", body), lambda _: undecided(None))
        first, second = aerobee_json("transaction", "list", "--topic", "orders", namesrv=namesrv)
        assert (first["topic"], first["producer_group"]) == ("orders", "shop")
        for verb, row in (("commit", first), ("rollback", second)):
            name = row["transaction_id"]
            unsure = aerobee("transaction", verb, name, namesrv=namesrv)
            assert unsure.returncode == 2
            done = aerobee("transaction", verb, name, "--yes", namesrv=namesrv)
            assert done.returncode == 0, done.stderr
        assert aerobee_json("transaction", "list", namesrv=namesrv) == []
        gone = aerobee("transaction", "commit", first["transaction_id"], "--yes", namesrv=namesrv)
        assert gone.returncode == 1
    with AdminClient(namesrv) as admin:
        assert sum(queue.max_offset for queue in admin.topic_status("orders")) == 1


def test_delayed_messages_are_listed(namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        admin.create_topic("orders", queues=1, message_type="DELAY")
    with Producer(namesrv=namesrv) as producer:
        for hours in (2, 1):
            message = Message("orders", b"body", delay=timedelta(hours=hours))
            producer.send(message)
    near, far = aerobee_json("delayed", "list", namesrv=namesrv)
    assert (near["topic"], near["delay"], near["body_size"]) == ("orders", "timers", 4)
    assert far["due_timestamp_ms"] - near["due_timestamp_ms"] > 3_590_000
    assert aerobee_json("delayed", "list", "--topic", "x", namesrv=namesrv) == []


def test_live_rates_are_shown_each_second(namesrv: str) -> None:
    with AdminClient(namesrv) as admin:
        admin.create_topic("orders", queues=1)
    stopped = threading.Event()

    def send() -> None:
        with Producer(namesrv=namesrv) as producer:
            while not stopped.wait(0.01):
                producer.send(Message("orders", b"body"))

    thread = threading.Thread(target=send)
    thread.start()
    try:
        # The first values are those of the second in which the load began.
        done = aerobee("top", "--count", "3", "--json", namesrv=namesrv)
        assert done.returncode == 0, done.stderr
        samples = [json.loads(line) for line in done.stdout.splitlines()]
        assert len(samples) == 3 and not samples[-1]["unanswered"]
        assert samples[-1]["topics"]["orders"]["cluster"]["messages_in"] > 0
        text = aerobee("top", "--count", "1", namesrv=namesrv)
        assert text.returncode == 0, text.stderr
        assert "orders" in text.stdout
    finally:
        stopped.set()
        thread.join()
