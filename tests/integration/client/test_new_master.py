"""A new master under an old broker name: the Python client and a proxy, with real processes.

The replica is a broker of its own, which a test registers by hand: what is looked at here is where
calls go, not what the replica has.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from aerobee.broker.v1 import offset_pb2
from aerobee.namesrv.v1 import namesrv_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d

from aerobee_client import Message, Producer
from support.broker.calls import BrokerCaller
from support.clock.polling import until_sync
from support.namesrv.calls import CLUSTER, Caller
from support.processes.service import (
    ServiceProcess,
    broker_process,
    namesrv_process,
    proxy_process,
)
from support.proxy.client import Client

TOPIC = "orders"
# Longer than any of the waits of client and proxy: who hears of the new master needs a part of it.
PATIENT_S = 60
PATIENT = timedelta(seconds=PATIENT_S)


@dataclass
class Group:
    namesrv: ServiceProcess
    master: ServiceProcess
    replica: ServiceProcess
    caller: Caller

    def register_replica(self, broker_id: int, epoch: int) -> None:
        topics = [
            pb.TopicConfig(topic=name, read_queue_count=4, write_queue_count=4, permission=6)
            for name in (TOPIC, "TBW102")
        ]
        self.caller.call(
            pb.RegisterBrokerRequest(
                cluster=CLUSTER,
                broker_name="broker-a",
                broker_id=broker_id,
                broker_address=self.replica.address,
                topics=topics,
                data_version=pb.DataVersion(state_version=epoch),
                enable_acting_master=False,
            )
        )

    def lose_the_master(self) -> None:
        """Only the replica is registered when it returns."""
        self.register_replica(1, 0)
        self.master.kill()
        until_sync(lambda: self.addresses() == {1: self.replica.address})

    def addresses(self) -> dict[int, str]:
        request = pb.GetBrokerMemberGroupRequest(cluster=CLUSTER, broker_name="broker-a")
        return dict(self.caller.call(request).addresses)

    def stored(self) -> int:
        """Messages of the topic at the replica."""

        async def count() -> int:
            request = offset_pb2.GetQueueOffsetsRequest(topic=TOPIC)
            async with BrokerCaller(self.replica.address) as broker:
                answer = await broker.call(broker.offsets.GetQueueOffsets, request)
                return sum(each.max_offset for each in answer.queues)

        return asyncio.run(count())


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    with ExitStack() as stack:
        namesrv = stack.enter_context(namesrv_process(tmp_path / "n"))
        master = stack.enter_context(broker_process(tmp_path / "m", namesrv=namesrv.address))
        replica = stack.enter_context(broker_process(tmp_path / "r"))
        caller = stack.enter_context(Caller(namesrv.address))
        yield Group(namesrv, master, replica, caller)


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def send(group: Group, request: pytest.FixtureRequest) -> Iterator[Callable[[], None]]:
    """Sends one message, by the way that the test names."""
    if request.param == "client":
        with Producer("p", namesrv=group.namesrv.address, send_timeout=PATIENT) as producer:
            yield lambda: _check(producer.send(Message(TOPIC, b"m")) is not None)
        return
    with (
        proxy_process(group.namesrv.address, "--set=autoCreateTopics=true") as proxy,
        Client(proxy.address) as client,
    ):
        yield lambda: _check(client.send(TOPIC, b"m").status.code == d.Code.OK)


both_ways = pytest.mark.parametrize("send", ["client", "proxy"], indirect=True)


def _check(sent: bool) -> None:
    assert sent


@both_ways
def test_calls_move_from_a_master_that_hangs_to_the_new_one(
    group: Group, send: Callable[[], None], background: ThreadPoolExecutor
) -> None:
    send()
    group.master.send_signal(signal.SIGSTOP)
    under_way: Future[None] = background.submit(send)
    group.register_replica(0, 1)
    until_sync(lambda: _succeeds(send), timeout_s=PATIENT_S)
    until_sync(under_way.done, timeout_s=PATIENT_S)
    assert group.stored() >= 1
    group.master.send_signal(signal.SIGCONT)


@both_ways
def test_sends_wait_while_a_master_is_being_elected(
    group: Group, send: Callable[[], None], background: ThreadPoolExecutor
) -> None:
    send()
    group.lose_the_master()
    waiting: Future[None] = background.submit(send)
    group.register_replica(0, 1)
    until_sync(waiting.done, timeout_s=PATIENT_S)
    until_sync(lambda: _succeeds(send), timeout_s=PATIENT_S)
    assert group.stored() >= 1


def test_a_deposed_master_that_comes_back_gets_no_calls(group: Group) -> None:
    with Producer("p", namesrv=group.namesrv.address, send_timeout=PATIENT) as producer:
        producer.send(Message(TOPIC, b"m"))
        group.lose_the_master()
        group.register_replica(0, 1)
        group.master.start()
        until_sync(lambda: group.master.events("registration_rejected"))
        assert group.addresses() == {0: group.replica.address}
        for _ in range(8):
            producer.send(Message(TOPIC, b"m"))
    assert group.stored() == 8


def _succeeds(send: Callable[[], None]) -> bool:
    send()
    return True
