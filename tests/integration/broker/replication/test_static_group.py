"""A master and its slaves as processes, by the keys of broker.conf, without etcd."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerobee_wire.status import Code
from support.broker.calls import BrokerCaller
from support.clock.polling import until
from support.codes import raises_code
from support.processes.broker_group import BrokerGroup, broker_group, send_until_taken
from support.processes.service import run

MASTER, SLAVE = "brokerRole=SYNC_MASTER", "brokerRole=SLAVE"
TOPIC = "orders"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    with broker_group(tmp_path) as group:
        yield group


async def test_what_a_synchronous_master_acknowledges_is_in_the_log_of_each_slave(
    group: BrokerGroup,
) -> None:
    patient = "haMaxTimeSlaveNotCatchup=60000"  # a slave that leaves the set is not waited for
    master, one, two = group.add(MASTER, patient), group.add(SLAVE), group.add(SLAVE)
    group.until_in_sync(master, one, two)
    async with BrokerCaller(master.address) as caller:
        for number in range(20):
            await caller.send(TOPIC, b"%d" % number * 1_000)
            sent = b"%d" % number * 1_000
            assert sent in one.log() and sent in two.log()
        read = [message.body for message in await caller.read(TOPIC)]
    assert len(read) == 20
    group.until_alike(master, one, two)


async def test_with_a_strict_requirement_a_lost_slave_ends_sends_until_it_is_back(
    group: BrokerGroup,
) -> None:
    """A send under way is stored and not known to be replicated (12), later ones are not stored
    (11); what is stored is read once the slave has it."""
    # A master that has just started waits for its slaves for haMaxTimeSlaveNotCatchup: that is over
    # when the send under way ends.
    options = ("slaveTimeout=1500", "haMaxTimeSlaveNotCatchup=1200")
    master, slave = group.add(MASTER, *options), group.add(SLAVE)
    group.until_in_sync(master, slave)
    async with BrokerCaller(master.address) as caller:
        await caller.send(TOPIC, b"before")
        slave.process.send_signal(signal.SIGSTOP)
        with raises_code(Code.FLUSH_SLAVE_TIMEOUT):
            await caller.send(TOPIC, b"under way")
        slave.process.kill()
        group.until_in_sync(master)
        with raises_code(Code.SLAVE_NOT_AVAILABLE):
            await caller.send(TOPIC, b"refused")

        slave.start()
        await send_until_taken(caller, TOPIC, b"after")

        read = [message.body for message in await caller.read(TOPIC)]
    assert read == [b"before", b"under way", b"after"]
    group.until_alike(master, slave)


async def test_a_slave_names_its_master_for_what_it_does_not_serve(group: BrokerGroup) -> None:
    """It is healthy all the same: reads by slaves, and the next master, are served there."""
    master, slave = group.add(MASTER), group.add(SLAVE)
    group.until_in_sync(master, slave)
    async with BrokerCaller(slave.address) as caller:
        with raises_code(Code.SERVICE_NOT_AVAILABLE) as sending:
            await caller.send(TOPIC, b"a")
        with raises_code(Code.SERVICE_NOT_AVAILABLE) as reading:
            await caller.read(TOPIC)
        assert await caller.serves()
    for refused in (sending, reading):
        assert refused.value.master_address == master.address
        assert refused.value.retryable


async def test_members_are_registered_by_their_numbers_and_the_epoch(group: BrokerGroup) -> None:
    master, slave = group.add(MASTER), group.add(SLAVE)
    group.until_in_sync(master, slave)

    async def registered() -> bool:
        members = await group.registered()
        return dict(members.addresses) == {0: master.address, 1: slave.address} and (
            members.epoch == 1
        )

    await until(registered, "the name server has both")

    master.process.stop()
    master.start()
    group.until_in_sync(master, slave)

    async def registered_again() -> bool:
        members = await group.registered()
        return members.addresses[0] == master.address and members.epoch == 2

    await until(registered_again, "the name server has the new epoch")


async def test_a_master_stops_in_order_beside_its_slave(group: BrokerGroup) -> None:
    master, slave = group.add(MASTER), group.add(SLAVE)
    group.until_in_sync(master, slave)
    async with BrokerCaller(master.address) as caller:
        await caller.send(TOPIC, b"a")
    assert master.process.stop() == 0
    assert not [line for line in master.process.log if line["level"] == "error"]
    group.until_alike(master, slave)
    assert slave.process.stop() == 0
    assert not [line for line in slave.process.log if line["level"] == "error"]


async def test_a_replica_of_other_options_is_refused_by_name(group: BrokerGroup) -> None:
    master = group.add(MASTER)
    group.until_leads(master)
    slave = group.add(SLAVE, "messageDelayLevel=1s 2s")

    await until(
        lambda: any("messageDelayLevel" in line["reason"] for line in slave.refusals()),
        "the slave says what differs",
    )
    async with BrokerCaller(slave.address) as caller:
        with raises_code(Code.SERVICE_NOT_AVAILABLE):
            await caller.send(TOPIC, b"a")

        async def not_serving() -> bool:
            return not await caller.serves()

        await until(not_serving, "its health says so")


def test_a_store_of_a_replica_is_no_store_of_a_broker_alone(group: BrokerGroup) -> None:
    """Its next master would not know what was written there."""
    master = group.add("brokerRole=ASYNC_MASTER", "totalReplicas=2")
    group.until_leads(master)
    master.process.stop()
    done = run("aerobee_broker", "--port=0", "--data", str(master.data))
    assert done.returncode == 1 and "epochs.json" in done.stderr
