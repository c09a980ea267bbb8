"""Registration: every name server knows the broker, learns of changes, and is found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.cluster.peers import Peers
from aerobee_broker.cluster.registration import Link, Registration, Timing
from aerobee_broker.cluster.twins import Twins
from aerobee_broker.config import BrokerOptions
from aerobee_broker.metadata.topics import TopicConfig, Topics
from aerobee_broker.wiring.name_server_registration import NameServerRegistration
from aerobee_chassis.config import load
from aerobee_chassis.rpc.caller import Caller, Rpc
from aerobee_cluster.name_servers import PERIOD_S, NameServers
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError
from support.clock.virtual_loop import LoopClock, run_ready_tasks
from support.namesrv.stand_in_dns import StandInDns

IDENTITY = Identity("c", "broker-a", 0, "10.0.0.1:10911", "10.0.0.1:10911", "0", 0)


class Namesrv(Caller):
    """What a name server would know. `up` and `slow` are for the test to set."""

    def __init__(self) -> None:
        self.up = True
        self.slow = False
        self.rejects = False
        self.requests: list[pb.RegisterBrokerRequest] = []
        self.topics: dict[str, pb.TopicConfig] = {}
        self.unregistered = 0
        self.brokers: list[pb.BrokerData] = []
        self.closed = False
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        self.up = False
        self.topics = {}
        self._stopped.set()

    def come_back(self) -> None:
        self.up = True
        self._stopped = asyncio.Event()

    async def call(self, address: str, rpc: Rpc[Any], request: Any, *, timeout_s: float) -> Any:
        if self.slow and rpc is rpcs.REGISTER_BROKER:
            await asyncio.sleep(timeout_s)
        if not self.up:
            raise MqError(Code.NAMESRV_UNREACHABLE, "no answer")
        if rpc is rpcs.REGISTER_BROKER:
            return self._register(request)
        if rpc is rpcs.GET_TOPIC_ROUTE:
            if request.topic not in self.topics:
                raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")
            return pb.GetTopicRouteResponse(route=pb.TopicRoute(brokers=self.brokers))
        assert rpc is rpcs.UNREGISTER_BROKER
        self.unregistered += 1
        return pb.UnregisterBrokerResponse()

    def _register(self, request: pb.RegisterBrokerRequest) -> pb.RegisterBrokerResponse:
        self.requests.append(request)
        if self.rejects:
            return pb.RegisterBrokerResponse(rejected=True)
        if not request.incremental:
            self.topics = {}
        self.topics.update({config.topic: config for config in request.topics})
        return pb.RegisterBrokerResponse()

    async def stream(self, address: str, rpc: Rpc[Any], request: Any) -> AsyncGenerator[Any, None]:
        yield pb.BrokerNotice(min_broker_id_changed=pb.MinBrokerIdChanged(min_broker_id=0))
        await self._stopped.wait()

    async def close(self) -> None:
        self.closed = True


class Cluster:
    """`addresses`: those of the registration; by default the name servers by name."""

    def __init__(self, *names: str, addresses: Sequence[str] | None = None) -> None:
        self.epoch = 0
        self.stops: list[MqError] = []
        self.topics = Topics(LoopClock())
        self.topics.put(TopicConfig("t", 4, 4, permission=7))
        self.namesrvs = {name: Namesrv() for name in names}
        self.registration = Registration(
            names if addresses is None else addresses,
            lambda name: Link(
                name,
                self.namesrvs[name],
                IDENTITY,
                self.topics,
                permission=lambda: 6,
                timing=Timing.of(period_ms=30_000, timeout_ms=24_000),
                twins=Twins(IDENTITY, LoopClock(), Namesrv(), self.stops.append),
                epoch=lambda: self.epoch,
            ),
        )


async def test_every_name_server_gets_all_topics_at_start() -> None:
    cluster = Cluster("a", "b")
    await cluster.registration.start()
    for namesrv in cluster.namesrvs.values():
        request = namesrv.requests[0]
        assert (request.broker_name, request.broker_address) == ("broker-a", "10.0.0.1:10911")
        assert not request.incremental and request.watch_follows
        assert namesrv.topics["t"].permission == 6, "cut down to what the broker permits"
    await cluster.registration.stop()


async def test_a_name_server_that_appears_in_dns_gets_all_topics() -> None:
    dns = StandInDns(namesrv=["10.0.0.8", "10.0.0.9"])
    addresses = NameServers(["namesrv:1"], dns.resolve, asyncio.get_running_loop().time)
    cluster = Cluster("10.0.0.7:1", "10.0.0.8:1", "10.0.0.9:1", addresses=addresses)
    gone, stays, comes = (cluster.namesrvs[f"10.0.0.{last}:1"] for last in (8, 9, 7))
    await cluster.registration.start()
    assert (len(gone.requests), len(stays.requests), comes.requests) == (1, 1, [])
    dns.records["namesrv"] = ["10.0.0.7", "10.0.0.9"]
    await asyncio.sleep(PERIOD_S + 1)
    assert comes.topics["t"].permission == 6
    assert (gone.closed, gone.unregistered) == (True, 0), "it may be the same name server"
    assert len(stays.requests) == 1
    cluster.topics.put(TopicConfig("new", 1, 1))
    assert await cluster.registration.announce() == []
    assert "new" in comes.topics and "new" not in gone.topics
    await cluster.registration.stop()
    assert (stays.unregistered, comes.unregistered) == (1, 1)


async def test_announce_returns_when_all_name_servers_have_the_change() -> None:
    cluster = Cluster("a", "b")
    await cluster.registration.start()
    cluster.topics.put(TopicConfig("new", 1, 1))
    assert await cluster.registration.announce() == []
    for namesrv in cluster.namesrvs.values():
        assert "new" in namesrv.topics
        assert [config.topic for config in namesrv.requests[-1].topics] == ["new"], (
            "only the change"
        )
        assert namesrv.requests[-1].incremental
        assert not namesrv.requests[-1].watch_follows, "the watch stands"
        assert namesrv.requests[-1].data_version.counter == 2
    await cluster.registration.stop()


async def test_name_servers_are_notified_of_the_epoch_of_the_log() -> None:
    cluster = Cluster("a")
    cluster.epoch = 7
    await cluster.registration.start()
    requests = cluster.namesrvs["a"].requests
    assert requests[0].data_version.state_version == 7

    cluster.epoch = 8
    cluster.registration.refresh()
    await run_ready_tasks()

    assert requests[-1].data_version.state_version == 8 and requests[-1].incremental
    await cluster.registration.stop()


async def test_a_broker_that_takes_another_role_stays_registered() -> None:
    cluster = Cluster("a")
    await cluster.registration.start()
    await cluster.registration.hand_over()
    namesrv = cluster.namesrvs["a"]
    assert (namesrv.unregistered, namesrv.closed) == (0, True)
    await cluster.registration.stop()
    assert namesrv.unregistered == 0


async def test_a_role_that_is_cancelled_while_it_registers_leaves_one_registration() -> None:
    before, after = Cluster("a"), Cluster("a")
    after.namesrvs["a"].slow = True
    options, clock = load(BrokerOptions), LoopClock()
    environment: Any = SimpleNamespace(options=options, namesrvs=(), clock=clock)
    name_servers = NameServerRegistration(environment, IDENTITY, before.stops.append)
    await name_servers.switch(before.registration)
    switching = asyncio.create_task(name_servers.switch(after.registration))
    await asyncio.sleep(1)
    switching.cancel()
    await asyncio.wait([switching])
    assert before.namesrvs["a"].closed and not before.namesrvs["a"].unregistered
    await name_servers.close()
    assert after.namesrvs["a"].closed


async def test_a_role_is_not_delayed_by_a_second_name_server_that_is_silent() -> None:
    cluster = Cluster("a", "b")
    cluster.namesrvs["b"].slow = True
    began = asyncio.get_running_loop().time()
    await cluster.registration.start_anywhere()
    assert asyncio.get_running_loop().time() == began
    assert "t" in cluster.namesrvs["a"].topics and not cluster.namesrvs["b"].topics
    await cluster.registration.stop()


async def test_a_role_waits_for_a_name_server_that_takes_it() -> None:
    cluster = Cluster("a", "b")
    cluster.namesrvs["a"].stop()
    await cluster.registration.start_anywhere()
    assert "t" in cluster.namesrvs["b"].topics
    await cluster.registration.stop()


async def test_a_removal_is_registered_by_name() -> None:
    cluster = Cluster("a")
    await cluster.registration.start()
    cluster.topics.put(TopicConfig("u", 1, 1))
    cluster.topics.remove("t")
    await cluster.registration.announce()
    request = cluster.namesrvs["a"].requests[-1]
    assert (request.incremental, [config.topic for config in request.topics]) == (True, ["u"])
    assert list(request.removed_topics) == ["t"]
    await cluster.registration.stop()


async def test_changes_of_one_moment_are_one_registration() -> None:
    cluster = Cluster("a")
    await cluster.registration.start()

    async def create(name: str) -> list[str]:
        cluster.topics.put(TopicConfig(name, 1, 1))
        return await cluster.registration.announce()

    assert await asyncio.gather(*(create(f"t{n}") for n in range(100))) == [[]] * 100
    assert len(cluster.namesrvs["a"].topics) == 101
    assert len(cluster.namesrvs["a"].requests) <= 3
    await cluster.registration.stop()


async def test_all_topics_are_registered_every_period() -> None:
    cluster = Cluster("a")
    await cluster.registration.start()
    await asyncio.sleep(95)
    requests = cluster.namesrvs["a"].requests
    assert len(requests) == 4 and not any(request.incremental for request in requests)
    await cluster.registration.stop()


@pytest.mark.parametrize(("asked", "period_s"), [(1, 10), (30_000, 30), (10**9, 60)])
async def test_the_period_stays_within_10_and_60_s(asked: int, period_s: int) -> None:
    assert Timing.of(period_ms=asked, timeout_ms=1).period_s == period_s


async def test_the_broker_starts_without_an_unreachable_name_server() -> None:
    cluster = Cluster("a", "b")
    cluster.namesrvs["b"].up = False
    await cluster.registration.start()
    cluster.topics.put(TopicConfig("new", 1, 1))
    assert await cluster.registration.announce() == ["b"]
    assert "new" in cluster.namesrvs["a"].topics
    cluster.namesrvs["b"].up = True
    await asyncio.sleep(10)
    assert cluster.namesrvs["b"].topics.keys() == {"t", "new"}
    await cluster.registration.stop()


async def test_a_restarted_name_server_gets_all_topics_within_seconds() -> None:
    cluster = Cluster("a")
    namesrv = cluster.namesrvs["a"]
    await cluster.registration.start()
    await asyncio.sleep(1)
    namesrv.stop()
    await asyncio.sleep(7)
    namesrv.come_back()
    await asyncio.sleep(5)
    assert namesrv.topics.keys() == {"t"}
    await cluster.registration.stop()


async def test_a_silent_name_server_delays_a_change_by_3_s_at_most() -> None:
    cluster = Cluster("a", "b")
    await cluster.registration.start()
    cluster.namesrvs["b"].slow = True
    cluster.topics.put(TopicConfig("new", 1, 1))
    assert await cluster.registration.announce() == ["b"]
    assert asyncio.get_running_loop().time() == 3
    await asyncio.sleep(30)
    assert "new" in cluster.namesrvs["b"].topics, "it gets the change once it answers"
    await cluster.registration.stop()


async def test_a_change_of_role_meanwhile_does_not_fail_an_announcement() -> None:
    """Whose links are the next role's then."""
    cluster = Cluster("a", "b")
    await cluster.registration.start()
    cluster.namesrvs["b"].slow = True
    cluster.topics.put(TopicConfig("new", 1, 1))
    announcing = asyncio.create_task(cluster.registration.announce())
    await asyncio.sleep(1)
    await cluster.registration.hand_over()
    assert await announcing == ["b"]


async def test_a_start_does_not_wait_for_a_silent_name_server() -> None:
    cluster = Cluster("a")
    cluster.namesrvs["a"].slow = True
    await cluster.registration.start()
    assert asyncio.get_running_loop().time() == 3
    await cluster.registration.stop()


async def test_a_stop_unregisters_from_each_name_server() -> None:
    cluster = Cluster("a", "b")
    cluster.namesrvs["b"].up = False
    await cluster.registration.start()
    await cluster.registration.stop()
    assert [namesrv.unregistered for namesrv in cluster.namesrvs.values()] == [1, 0]
    assert all(namesrv.closed for namesrv in cluster.namesrvs.values())


async def test_a_rejected_broker_is_not_registered() -> None:
    cluster = Cluster("a")
    cluster.namesrvs["a"].rejects = True
    await cluster.registration.start()
    assert await cluster.registration.announce() == ["a"]
    await cluster.registration.stop()
    assert cluster.namesrvs["a"].unregistered == 0


async def test_a_rejected_broker_tries_again_once_a_second_until_it_is_taken() -> None:
    """A name server keeps no stream of one that it does not know."""
    cluster = Cluster("a")
    namesrv = cluster.namesrvs["a"]
    namesrv.rejects = True
    namesrv.stop()
    namesrv.up = True
    with structlog.testing.capture_logs() as logs:
        await cluster.registration.start()
        await asyncio.sleep(60)
    assert 55 < len(namesrv.requests) < 65
    assert [each["event"] for each in logs] == ["registration_rejected", "namesrv_lost"]
    namesrv.rejects = False
    namesrv.come_back()
    await asyncio.sleep(1)
    assert cluster.registration._links["a"].registered
    await cluster.registration.stop()


async def test_the_broker_serves_without_name_servers() -> None:
    cluster = Cluster()
    await cluster.registration.start()
    assert await cluster.registration.announce() == []
    await cluster.registration.stop()


# ---- other brokers ----


class Others(Caller):
    """Brokers as `Peers` calls them: address → topics."""

    def __init__(self, brokers: dict[str, set[str]]) -> None:
        self._brokers = brokers
        self.expected: dict[str, str] = {}

    def expect(self, address: str, broker_name: str) -> None:
        self.expected[address] = broker_name

    async def call(self, address: str, rpc: Rpc[Any], request: Any, *, timeout_s: float) -> Any:
        if address not in self._brokers:
            raise MqError(Code.BROKER_UNREACHABLE, "no answer")
        if rpc is rpcs.GET_TOPIC:
            if request.topic not in self._brokers[address]:
                raise MqError(Code.TOPIC_NOT_EXIST, "no such topic")
            return admin_pb2.GetTopicResponse()
        assert rpc is rpcs.PUT_TOPIC and request.only_new
        self._brokers[address].add(request.topic.topic)
        return admin_pb2.PutTopicResponse(created=True)

    async def close(self) -> None:
        pass


def broker_data(name: str, addresses: dict[int, str], cluster: str = "c") -> pb.BrokerData:
    return pb.BrokerData(cluster=cluster, broker_name=name, addresses=addresses)


async def test_a_new_topic_is_created_on_the_other_masters() -> None:
    cluster = Cluster("a")
    cluster.topics.put(TopicConfig("TBW102", 8, 8, permission=7))
    cluster.namesrvs["a"].brokers = [
        broker_data("broker-a", {0: IDENTITY.address}),
        broker_data("broker-b", {0: "b:1", 1: "replica:1"}),
        broker_data("broker-c", {0: "down:1"}),
        broker_data("broker-d", {1: "replica:2"}),
        broker_data("broker-e", {0: "e:1"}, cluster="other"),
    ]
    brokers: dict[str, set[str]] = {"b:1": set(), "replica:1": set(), "e:1": set()}
    await cluster.registration.start()
    peers = Peers(cluster.registration, IDENTITY, lambda: Others(brokers))
    await peers.create(TopicConfig("new", 4, 4))
    assert brokers == {"b:1": {"new"}, "replica:1": set(), "e:1": set()}
    await cluster.registration.stop()


async def test_without_name_servers_a_new_topic_is_not_spread() -> None:
    for cluster in (Cluster(), Cluster("a")):
        await cluster.registration.start()
        if cluster.namesrvs:
            cluster.namesrvs["a"].up = False
        peers = Peers(cluster.registration, IDENTITY, lambda: Others({}))
        await peers.create(TopicConfig("new", 4, 4))
        await cluster.registration.stop()
