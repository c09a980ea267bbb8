"""The Python client beside a broker group whose master is killed."""

from __future__ import annotations

from pathlib import Path

from aerobee_client import ConsumeFromWhere, Message, Producer, PushConsumer, ReceivedMessage
from support.clock.polling import until_sync
from support.etcd.etcd_process import etcd_members
from support.processes.broker_group import Member, broker_group

TOPIC = "orders"
SENDS, KILLED_AT = 60, 20


def test_no_send_fails_and_everything_is_consumed_when_the_master_is_killed(
    tmp_path: Path,
) -> None:
    """The client waits for a broker that is being elected, and hears of the new master."""
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
            *(f"etcdEndpoints={etcd.endpoint}", "etcdLeaseTtl=2"),
        )

        def leading() -> Member | None:
            return next((member for member in members if member.leads_now()), None)

        master = until_sync(leading, "a member leads", timeout_s=60)
        assert master is not None
        group.until_in_sync(master, *(member for member in members if member is not master))
        consumer.subscribe(TOPIC, "*")
        for number in range(SENDS):
            sent.append(b"%d" % number)
            producer.send(Message(TOPIC, sent[-1]))
            if number == KILLED_AT:
                master.process.kill()
        until_sync(lambda: got >= set(sent), "everything is consumed", timeout_s=60)
        new = leading()
        assert new is not None and new is not master
