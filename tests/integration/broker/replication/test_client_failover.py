"""The Python client beside a broker group whose master is killed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from aerobee_client import ConsumeFromWhere, Message, Producer, PushConsumer, ReceivedMessage
from support.clock.polling import until_sync
from support.etcd.etcd_process import etcd_members
from support.processes.broker_group import broker_group

TOPIC = "orders"
SENDS, KILLED_AT = 60, 20


# A process that ended refuses connections. A frozen one accepts them and does not answer, as if its
# host had vanished, so a replica takes over only after the lease.
@pytest.mark.parametrize(("loss", "lease"), [(signal.SIGKILL, 2), (signal.SIGSTOP, 4)])
def test_no_send_fails_and_everything_is_consumed_when_the_master_is_lost(
    tmp_path: Path, loss: signal.Signals, lease: int
) -> None:
    """The client waits for a broker that is being elected, and hears of the new master.

    The producer has its default options, and 4 s is the default lease.
    """
    sent: list[bytes] = []
    got: set[bytes] = set()

    def take(message: ReceivedMessage) -> None:
        got.add(message.body)

    with (
        etcd_members(tmp_path) as [etcd],
        broker_group(tmp_path / "group", first=1) as group,
        Producer(namesrv=group.namesrv) as producer,
        PushConsumer(
            "readers", take, namesrv=group.namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        ) as consumer,
    ):
        members = group.add_all(
            3,
            *("brokerRole=SYNC_MASTER", "totalReplicas=3"),
            *(f"etcdEndpoints={etcd.endpoint}", f"etcdLeaseTtl={lease}"),
        )
        master = group.until_led()
        group.until_in_sync(master, *(member for member in members if member is not master))
        consumer.subscribe(TOPIC, "*")
        for number in range(SENDS):
            sent.append(b"%d" % number)
            producer.send(Message(TOPIC, sent[-1]))
            if number == KILLED_AT:
                master.process.send_signal(loss)
        until_sync(lambda: got >= set(sent), "everything is consumed", timeout_s=60)
        assert any(member.leads_now() for member in members if member is not master)
