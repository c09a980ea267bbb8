"""Lite topics beside a broker group whose master is killed, by the Python client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import AdminClient, LeaseFailures, LiteSimpleConsumer, Message, Producer
from support.clock.polling import until_sync
from support.etcd.etcd_process import etcd_members
from support.processes.broker_group import BrokerGroup, broker_group

PARENT, GROUP = "sessions", "agents"
SESSIONS = [f"s-{number}" for number in range(6)]
SENDS, KILLED_AT = 90, 30


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    """Three members with etcd, in sync."""
    with (
        etcd_members(tmp_path) as [etcd],
        broker_group(tmp_path / "group", first=1) as group,
    ):
        members = group.add_all(
            3,
            *("brokerRole=SYNC_MASTER", "totalReplicas=3"),
            *(f"etcdEndpoints={etcd.endpoint}", "etcdLeaseTtl=2"),
        )
        master = group.until_led()
        group.until_in_sync(master, *(each for each in members if each is not master))
        yield group


def test_each_lite_topic_goes_on_in_order_when_the_master_is_killed(group: BrokerGroup) -> None:
    """The client is not restarted: the new master hears from it what it subscribes to. What was
    under way may come twice, and nothing ahead of its turn."""
    sent: dict[str, list[bytes]] = {name: [] for name in SESSIONS}
    got: dict[str, list[bytes]] = {name: [] for name in SESSIONS}
    with AdminClient(group.namesrv) as admin:
        admin.create_topic(PARENT, message_type="LITE")
        admin.create_group(GROUP, attributes={"lite.bind.topic": PARENT})
    with (
        Producer(namesrv=group.namesrv) as producer,
        LiteSimpleConsumer(
            GROUP, PARENT, namesrv=group.namesrv, request_timeout=timedelta(seconds=60)
        ) as consumer,
    ):
        consumer.subscribe_lite(*SESSIONS)

        def take() -> bool:
            messages = consumer.receive(4, timedelta(seconds=20), wait=timedelta(seconds=1))
            for message in messages:
                if message.body not in got[message.lite_topic]:
                    got[message.lite_topic].append(message.body)
            with suppress(LeaseFailures):  # the leases ended meanwhile: they come again
                consumer.ack(messages)
            return got == sent

        for number in range(SENDS):
            name = SESSIONS[number % len(SESSIONS)]
            sent[name].append(b"%d" % number)
            producer.send(Message(PARENT, sent[name][-1], lite_topic=name))
            if number % 4 == 3:
                take()
            if number == KILLED_AT:
                old = group.until_led()
                old.process.kill()
        until_sync(take, "all is consumed, in order", timeout_s=90)
        assert group.until_led(old) is not old
        assert consumer.lite_topics == set(SESSIONS)
