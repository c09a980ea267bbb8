"""Slaves that are read: beside their master by slow readers, and by all while there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from aerobee.broker.v1 import message_pb2, offset_pb2

from aerobee_client import AdminClient, PullConsumer
from aerobee_wire.status import Code, MqError
from support.broker.calls import BrokerCaller
from support.clock.polling import until, until_sync
from support.codes import raises_code
from support.processes.broker_group import BrokerGroup, Member, broker_group

TOPIC, COUNT = "orders", 400
# Every reader that has not read everything counts as far behind.
READS = ("slaveReadEnable=true", "accessMessageInMemoryMaxRatio=0")
PATIENT = ("haMaxTimeSlaveNotCatchup=20000", "slaveTimeout=20000")
BODIES = [b"%d" % number for number in range(COUNT)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[BrokerGroup]:
    with broker_group(tmp_path) as group:
        yield group


def pair(group: BrokerGroup, *settings: str) -> tuple[Member, Member]:
    master = group.add("brokerRole=SYNC_MASTER", *PATIENT, *settings)
    slave = group.add("brokerRole=SLAVE", *PATIENT, *settings)
    group.until_in_sync(master, slave)
    return master, slave


async def filled(group: BrokerGroup, *settings: str) -> tuple[Member, Member, str]:
    """Master, slave, and the offset message id of the first message."""
    master, slave = pair(group, *settings)
    async with BrokerCaller(master.address) as caller:
        sent = await caller.send(TOPIC, *BODIES)
    await group.until_confirmed(master, slave)
    return master, slave, sent[0].offset_message_id


async def test_a_slave_is_suggested_to_a_slow_reader_and_serves_it(group: BrokerGroup) -> None:
    master, slave, _ = await filled(group, *READS)
    async with BrokerCaller(master.address) as at_master, BrokerCaller(slave.address) as at_slave:
        answer = await at_master.pull("readers", TOPIC, max_messages=10)
        assert answer.suggested_broker_id == slave.number

        async def pulled() -> message_pb2.PullResponse:
            return await at_slave.pull("readers", TOPIC, queue_offset=10, max_messages=10)

        # Of a group that its master has just created a slave does not know at once.
        answer = await until(pulled, "the slave knows the group", retry_on=(MqError,))
        assert [message.body for message in answer.messages] == BODIES[10:20]
        assert answer.suggested_broker_id == slave.number
        answer = await at_slave.pull("readers", TOPIC, queue_offset=10, max_messages=1_000)
        assert answer.messages[-1].body == BODIES[-1]

        for queue_offset in (COUNT, COUNT + 5):
            answer = await at_slave.pull("readers", TOPIC, queue_offset=queue_offset)
            assert answer.status == message_pb2.NO_NEW_MESSAGE
            assert (answer.next_begin_offset, answer.suggested_broker_id) == (queue_offset, 0)
        bounds = await at_slave.call(
            at_slave.offsets.GetQueueOffsets,
            offset_pb2.GetQueueOffsetsRequest(topic=TOPIC, queue_ids=[0]),
        )
        assert (bounds.queues[0].min_offset, bounds.queues[0].max_offset) == (0, COUNT)
        update = offset_pb2.UpdateConsumerOffsetsRequest(consumer_group="readers")
        for method, request in (
            (at_slave.offsets.UpdateConsumerOffsets, update),
            (at_slave.messages.Send, message_pb2.SendRequest()),
        ):
            with raises_code(Code.SERVICE_NOT_AVAILABLE) as refused:
                await at_slave.call(method, request)
            assert refused.value.master_address == master.address


async def test_while_there_is_no_master_consumers_read_the_slave(group: BrokerGroup) -> None:
    master, _, message_id = await filled(group, *READS)
    with AdminClient(group.namesrv) as admin:
        keyed = admin.get_message(message_id)
        assert keyed.body == BODIES[0]
        with PullConsumer(namesrv=group.namesrv) as reader:
            reader.assign(reader.fetch_message_queues(TOPIC))
            first = until_sync(reader.poll, "the master is read")
            master.process.kill()
            until_sync(
                lambda: 0 not in dict(admin.cluster().brokers[0].addresses), "the master is gone"
            )
            read = {message.body for message in [*first, *reader.read_to_end()]}
        assert read == set(BODIES)
        with PullConsumer(namesrv=group.namesrv) as reader:
            reader.assign(reader.fetch_message_queues(TOPIC))
            assert {message.body for message in reader.read_to_end()} == set(BODIES)
        assert admin.get_message(message_id).body == BODIES[0], "the slave has the same offset"
        assert admin.query_messages(TOPIC, unique_id=keyed.message_id)[0].body == BODIES[0]


async def test_by_its_place_in_the_log_a_message_is_found_on_a_slave_that_serves_no_other_reads(
    group: BrokerGroup,
) -> None:
    _, slave, message_id = await filled(group)
    async with BrokerCaller(slave.address) as caller:
        request = message_pb2.GetMessageRequest(offset_message_id=message_id)
        found = await caller.call(caller.messages.GetMessage, request)
        assert found.message.body == BODIES[0]
        with raises_code(Code.SERVICE_NOT_AVAILABLE):
            await caller.read(TOPIC)
