"""Slaves whose log begins later than that of their master, and what becomes of old files."""

from __future__ import annotations

from pathlib import Path

from aerobee.broker.v1 import message_pb2

from support.broker.calls import BrokerCaller
from support.clock.polling import until, until_sync
from support.processes.broker_group import LOG_FILE_BYTES, Member, broker_group

TOPIC = "orders"
COPIES = (
    "totalReplicas=3",
    "enableAutoInSyncReplicas=true",
    "cleanResourceInterval=200",
    "flushConsumerOffsetInterval=500",
)
MASTER, SLAVE = "brokerRole=SYNC_MASTER", "brokerRole=SLAVE"


def first_file(member: Member) -> int:
    return min(
        int(path.name) for path in (member.store / "commitlog").iterdir() if path.name.isdigit()
    )


async def test_a_slave_that_begins_at_the_last_file_only_reads_until_its_master_has_no_more(
    tmp_path: Path,
) -> None:
    with broker_group(tmp_path) as group:
        master, whole = group.add(MASTER, *COPIES), group.add(SLAVE, *COPIES)
        group.until_in_sync(master, whole)
        async with BrokerCaller(master.address) as caller:
            await caller.send("quiet", b"of the first file")
            for _ in range(4):
                await caller.send(TOPIC, b"x" * (LOG_FILE_BYTES * 2 // 3))
            part = group.add(SLAVE, *COPIES, "syncFromLastFile=true")

            async def follows() -> bool:
                status = (await group.statuses())[part.number]
                return status.role == "slave" and status.learner and not status.copying

            await until(follows, "the slave follows and only reads", timeout_s=60)
            assert 0 == first_file(master) == first_file(whole) < first_file(part)
            await caller.send(TOPIC, b"is acknowledged, and changes no set")
        group.until_in_sync(master, whole)

        retaining = ("retainBytes=1000", "slaveReadEnable=true")
        master = group.restart_as(master, 0, MASTER, *COPIES, *retaining)
        group.until_in_sync(master, whole, part)

        def firsts() -> set[int]:
            return {first_file(member) for member in (master, whole)}

        until_sync(
            lambda: len(found := firsts()) == 1 and min(found) > 0,
            "both have dropped old files",
            timeout_s=60,
        )
        async with BrokerCaller(master.address) as caller:
            [sent] = await caller.send("quiet", b"goes on where the queue was")
            assert sent.queue_offset == 1
        group.until_alike(master, whole)
        await group.until_confirmed(master, part)
        part.process.stop()
        again = group.restart_as(part, part.number, SLAVE, *COPIES, "slaveReadEnable=true")
        await group.until_confirmed(master, again)
        async with BrokerCaller(again.address) as caller:
            request = message_pb2.PullRequest(
                topic="quiet", queue_offset=sent.queue_offset, browse=True, plain=True
            )
            [read] = (await caller.call(caller.messages.Pull, request)).messages
            assert read.body == b"goes on where the queue was"
