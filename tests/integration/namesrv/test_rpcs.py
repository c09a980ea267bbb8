"""The name server in a process of its own, through its contract: what brokers and clients see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_wire.status import Code, MqError
from support.clock.polling import until_sync
from support.codes import raises_code
from support.namesrv.calls import CLUSTER, Caller, address_of, identity_of, mq_error
from support.processes.service import ServiceProcess, namesrv_process

Scope = pb.ListTopicsRequest.Scope


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[ServiceProcess]:
    with namesrv_process(tmp_path) as process:
        yield process


@pytest.fixture
def caller(namesrv: ServiceProcess) -> Iterator[Caller]:
    with Caller(namesrv.address) as caller:
        yield caller


def opened_watches(namesrv: ServiceProcess) -> int:
    return len(namesrv.events("watch_opened"))


# ---- brokers come and go ----


def test_client_finds_the_queues_of_a_registered_broker(caller: Caller) -> None:
    fifo = pb.TopicConfig(
        topic="fifo",
        read_queue_count=8,
        write_queue_count=2,
        permission=4,
        attributes={"message.type": "FIFO"},
    )
    version = pb.DataVersion(state_version=1, timestamp_ms=2, counter=3)
    caller.call(
        pb.RegisterBrokerRequest(
            **identity_of(),
            topics=[fifo, pb.TopicConfig(topic="x")],
            data_version=version,
            zone_name="east",
            enable_acting_master=True,
            ha_server_address="broker-a-0:10912",
            filter_servers=pb.FilterServers(addresses=["filter:1"]),
        )
    )
    assert caller.route("fifo") == pb.TopicRoute(
        queues=[
            pb.QueueData(
                broker_name="broker-a",
                read_queue_count=8,
                write_queue_count=2,
                permission=4,
                attributes={"message.type": "FIFO"},
            )
        ],
        brokers=[
            pb.BrokerData(
                cluster=CLUSTER,
                broker_name="broker-a",
                addresses={0: address_of()},
                zone_name="east",
                enable_acting_master=True,
                epoch=version.state_version,
            )
        ],
        filter_servers={address_of(): pb.FilterServers(addresses=["filter:1"])},
    )
    info = caller.call(pb.GetClusterInfoRequest())
    assert [broker.broker_name for broker in info.brokers] == ["broker-a"]
    assert {cluster: list(names.names) for cluster, names in info.clusters.items()} == {
        CLUSTER: ["broker-a"]
    }
    [live] = info.live_brokers
    assert (live.broker_address, live.data_version) == (address_of(), version)
    assert live.heartbeat_timeout_ms == 120_000
    assert live.ha_server_address == "broker-a-0:10912"
    assert live.last_update_timestamp_ms > 1_600_000_000_000


def test_unregistered_broker_leaves_the_route(caller: Caller) -> None:
    caller.register("broker-a")
    caller.register("broker-b")
    assert caller.brokers() == ["broker-a", "broker-b"]
    caller.unregister("broker-a")
    until_sync(lambda: caller.brokers() == ["broker-b"], "broker-a is gone")
    caller.unregister("broker-a")


def test_broker_is_removed_when_its_connection_ends(
    namesrv: ServiceProcess, caller: Caller
) -> None:
    """As after kill -9: without UnregisterBroker, and long before 120 s of silence."""
    with Caller(namesrv.address) as broker:
        broker.register()
        stream = broker.watch()  # a stream that nobody holds is cancelled
        until_sync(lambda: opened_watches(namesrv) == 1, "the watch is taken")
        assert caller.brokers() == ["broker-a"] and not stream.done()
    until_sync(lambda: caller.brokers() == [], "the broker is gone")
    (line,) = until_sync(lambda: namesrv.events("broker_unregistered"), "the log says so")
    assert line["reason"] == "disconnected"


def test_broker_is_removed_when_its_stream_ends(namesrv: ServiceProcess, caller: Caller) -> None:
    caller.register()
    stream = caller.watch()
    until_sync(lambda: opened_watches(namesrv) == 1, "the watch is taken")
    stream.cancel()
    until_sync(lambda: caller.brokers() == [], "the broker is gone")


def test_broker_that_restarted_survives_the_end_of_its_former_connection(
    namesrv: ServiceProcess, caller: Caller
) -> None:
    with Caller(namesrv.address) as former:
        former.register()
        stream = former.watch()
        until_sync(lambda: opened_watches(namesrv) == 1, "the watch is taken")
        caller.register(watch_follows=True)
        assert list(stream) == [], "the former watch is ended by the name server"
    until_sync(lambda: namesrv.events("watch_ended"), "the end is seen")
    assert caller.brokers() == ["broker-a"]
    stream = caller.watch()
    until_sync(lambda: opened_watches(namesrv) == 2, "the watch of the new process is taken")
    assert not stream.done()


def test_silent_broker_expires(tmp_path: Path) -> None:
    with (
        namesrv_process(tmp_path, "--set=scanNotActiveBrokerInterval=50") as namesrv,
        Caller(namesrv.address) as caller,
    ):
        caller.register("broker-a", heartbeat_timeout_ms=1)
        caller.register("broker-b")
        until_sync(lambda: caller.brokers() == ["broker-b"], "broker-a expired")
        logged = until_sync(lambda: namesrv.events("broker_unregistered"), "it is logged")
    assert [line["reason"] for line in logged] == ["expired"]


def test_data_version_shows_whether_to_register_again(caller: Caller) -> None:
    version = pb.DataVersion(state_version=1, timestamp_ms=2, counter=3)
    newer = pb.DataVersion(state_version=1, timestamp_ms=2, counter=4)
    identity = {key: value for key, value in identity_of().items() if key != "broker_id"}

    def ask(data_version: pb.DataVersion) -> Any:
        return caller.call(pb.QueryDataVersionRequest(**identity, data_version=data_version))

    unknown = ask(version)
    assert unknown.changed and not unknown.HasField("data_version")
    caller.register(data_version=version)
    assert ask(version) == pb.QueryDataVersionResponse(changed=False, data_version=version)
    assert ask(newer) == pb.QueryDataVersionResponse(changed=True, data_version=version)


def test_replica_learns_its_master(caller: Caller) -> None:
    caller.register(broker_id=0, ha_server_address="broker-a-0:10912")
    answer = caller.register(broker_id=1)
    assert (answer.master_address, answer.ha_server_address) == (address_of(), "broker-a-0:10912")
    group = caller.call(pb.GetBrokerMemberGroupRequest(cluster=CLUSTER, broker_name="broker-a"))
    assert dict(group.addresses) == {0: address_of(), 1: address_of(broker_id=1)}
    empty = caller.call(pb.GetBrokerMemberGroupRequest(cluster=CLUSTER, broker_name="broker-z"))
    assert not empty.addresses


def test_older_incarnation_is_rejected(caller: Caller) -> None:
    caller.register(data_version=pb.DataVersion(state_version=2))
    answer = caller.register(
        broker_address="elsewhere:1", data_version=pb.DataVersion(state_version=1)
    )
    assert answer == pb.RegisterBrokerResponse(rejected=True)


def test_members_are_notified_of_the_lowest_id(tmp_path: Path) -> None:
    with (
        namesrv_process(tmp_path, "--set=notifyMinBrokerIdChanged=true") as namesrv,
        Caller(namesrv.address) as caller,
    ):
        caller.register(broker_id=1, enable_acting_master=True)
        stream = caller.watch(broker_id=1)
        until_sync(lambda: opened_watches(namesrv) == 1, "the watch is taken")
        caller.register(broker_id=0, enable_acting_master=True)
        caller.unregister(broker_id=0)
        came, left = next(stream).min_broker_id_changed, next(stream).min_broker_id_changed
        stream.cancel()
    assert (came.min_broker_id, came.min_broker_address) == (0, address_of())
    assert (left.min_broker_id, left.offline_broker_address) == (1, address_of())


# ---- lists and edits ----


def test_topics_are_listed_by_scope(caller: Caller) -> None:
    flagged = [
        pb.TopicConfig(topic="plain"),
        pb.TopicConfig(topic="unit", topic_sys_flag=1),
        pb.TopicConfig(topic="both", topic_sys_flag=3),
        pb.TopicConfig(topic="sub", topic_sys_flag=2),
    ]
    caller.call(pb.RegisterBrokerRequest(**identity_of(), topics=flagged))

    def topics(scope: Any, cluster: str = "") -> list[str]:
        return list(caller.call(pb.ListTopicsRequest(scope=scope, cluster=cluster)).topics)

    assert topics(Scope.ALL) == ["both", "plain", "sub", "unit"]
    assert topics(Scope.CLUSTER, CLUSTER) == ["both", "plain", "sub", "unit"]
    assert topics(Scope.CLUSTER, "other") == []
    assert topics(Scope.UNIT) == ["both", "unit"]
    assert topics(Scope.HAS_UNIT_SUBSCRIPTION) == ["both", "sub"]
    assert topics(Scope.HAS_UNIT_SUBSCRIPTION_AND_NOT_UNIT) == ["sub"]
    of_broker = pb.ListTopicsRequest(scope=Scope.BROKER, broker_name="broker-a")
    assert list(caller.call(of_broker).topics) == topics(Scope.CLUSTER, CLUSTER)
    of_broker.broker_name = "unknown"
    assert list(caller.call(of_broker).topics) == []
    system = caller.call(pb.ListTopicsRequest(scope=Scope.SYSTEM))
    assert (list(system.topics), system.broker_address) == ([CLUSTER, "broker-a"], address_of())


def test_write_permission_is_taken_and_given_back(caller: Caller) -> None:
    caller.register()
    wiped = caller.call(pb.WipeWritePermissionRequest(broker_name="broker-a"))
    assert (wiped.topic_count, caller.route().queues[0].permission) == (2, 4)
    added = caller.call(pb.AddWritePermissionRequest(broker_name="broker-a"))
    assert (added.topic_count, caller.route().queues[0].permission) == (2, 6)


def test_topic_is_deleted_and_registered_by_hand(caller: Caller) -> None:
    caller.register()
    caller.call(pb.DeleteTopicRequest(topic="orders"))
    assert caller.brokers("orders") == []
    queue = pb.QueueData(broker_name="broker-a", read_queue_count=1, permission=6)
    unknown = pb.QueueData(broker_name="broker-z", read_queue_count=1, permission=6)
    done = caller.call(pb.RegisterTopicRequest(topic="orders", queues=[queue]))
    assert done.registered and caller.brokers("orders") == ["broker-a"]
    undone = caller.call(pb.RegisterTopicRequest(topic="more", queues=[queue, unknown]))
    assert not undone.registered and caller.brokers("more") == []


# ---- order configuration and switches ----


def test_order_configuration_reaches_brokers_and_clients(caller: Caller) -> None:
    caller.call(
        pb.PutKvConfigRequest(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4")
    )
    answer = caller.register()
    assert dict(answer.order_topic_config) == {"orders": "broker-a:4"}
    assert caller.route().order_topic_config == ""
    entries = {"orderMessageEnable": "true", "returnOrderTopicConfigToBroker": "false"}
    caller.call(pb.UpdateRuntimeConfigRequest(entries=entries))
    assert caller.route("orders").order_topic_config == "broker-a:4"
    assert caller.route("payments").order_topic_config == ""
    assert not caller.register().order_topic_config
    now = caller.call(pb.GetRuntimeConfigRequest()).entries
    assert {key: now[key] for key in entries} == entries


def test_lists_can_be_turned_off(caller: Caller) -> None:
    entries = {"enableAllTopicList": "false", "enableTopicList": "false"}
    caller.call(pb.UpdateRuntimeConfigRequest(entries=entries))
    for scope in (Scope.ALL, Scope.CLUSTER, Scope.UNIT):
        with raises_code(Code.NO_PERMISSION):
            caller.call(pb.ListTopicsRequest(scope=scope, cluster=CLUSTER))
    assert caller.call(pb.ListTopicsRequest(scope=Scope.SYSTEM)) is not None


def test_no_route_is_given_while_brokers_are_awaited(tmp_path: Path) -> None:
    with (
        namesrv_process(tmp_path, "--set=needWaitForService=true") as namesrv,
        Caller(namesrv.address) as caller,
    ):
        caller.register()
        with pytest.raises(MqError) as caught:
            caller.route()
    assert (caught.value.code, caught.value.retryable) == (Code.SYSTEM_ERROR, True)
    assert caught.value.retry_after_ms is not None
    assert 0 < caught.value.retry_after_ms <= 45_000


# ---- bad input ----


@pytest.mark.parametrize(
    ("request_", "code", "about"),
    [
        (pb.GetTopicRouteRequest(topic="nowhere"), Code.TOPIC_NOT_EXIST, "topic"),
        (pb.GetTopicRouteRequest(), Code.INVALID_PARAMETER, "topic"),
        (pb.RegisterBrokerRequest(), Code.INVALID_PARAMETER, "cluster"),
        (
            pb.RegisterBrokerRequest(**identity_of(), topics=[pb.TopicConfig(topic="t")]),
            Code.SYSTEM_ERROR,
            "",
        ),
        (
            pb.UnregisterBrokerRequest(cluster="c", broker_name="b", broker_address="b"),
            Code.INVALID_PARAMETER,
            "broker_address",
        ),
        (
            pb.BrokerHeartbeatRequest(cluster="c", broker_name="b", broker_address="b:1"),
            Code.BROKER_NOT_EXIST,
            "",
        ),
        (pb.ListTopicsRequest(scope=Scope.CLUSTER), Code.INVALID_PARAMETER, "cluster"),
        (pb.ListTopicsRequest(scope=Scope.BROKER), Code.INVALID_PARAMETER, "broker_name"),
        (pb.ListTopicsRequest(scope=77), Code.INVALID_PARAMETER, "scope"),  # type: ignore[arg-type]
        (pb.RegisterTopicRequest(topic="a b"), Code.INVALID_PARAMETER, "topic"),
        (pb.RegisterTopicRequest(topic="t"), Code.INVALID_PARAMETER, "queues"),
        (pb.PutKvConfigRequest(key="k"), Code.INVALID_PARAMETER, "namespace"),
        (pb.GetKvConfigRequest(namespace="n", key="k"), Code.QUERY_NOT_FOUND, "key"),
        (pb.ListKvConfigRequest(namespace="n"), Code.QUERY_NOT_FOUND, "namespace"),
        (
            pb.UpdateRuntimeConfigRequest(entries={"kvConfigPath": "/x"}),
            Code.NO_PERMISSION,
            "kvConfigPath",
        ),
        (
            pb.UpdateRuntimeConfigRequest(entries={"enableTopicLst": "true"}),
            Code.INVALID_PARAMETER,
            "enableTopicLst",
        ),
        (
            pb.UpdateRuntimeConfigRequest(entries={"ünable": "true"}),  # no ASCII: no trailer
            Code.INVALID_PARAMETER,
            "",
        ),
    ],
    ids=lambda value: type(value).__name__ if hasattr(value, "DESCRIPTOR") else None,
)
def test_bad_input_is_answered_with_a_code_and_what_to_change(
    caller: Caller, request_: Any, code: Code, about: str
) -> None:
    with raises_code(code, about) as caught:
        caller.call(request_)
    assert not caught.value.retryable


def test_error_can_be_read_by_any_language(caller: Caller) -> None:
    """namesrv.proto, head: the trailers and the gRPC status."""
    with pytest.raises(grpc.RpcError) as caught:
        caller.stub.GetTopicRoute(pb.GetTopicRouteRequest(topic="nowhere"), wait_for_ready=True)
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.NOT_FOUND
    trailers = {key: value for key, value in error.trailing_metadata() if "aerobee" in key}
    assert trailers == {
        "aerobee-code": "TOPIC_NOT_EXIST",
        "aerobee-code-number": "17",
        "aerobee-retryable": "false",
        "aerobee-about": "topic",
    }


def test_watch_of_an_unknown_broker_is_refused(caller: Caller) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        next(caller.watch())
    assert mq_error(caught.value).code is Code.BROKER_NOT_EXIST


# ---- clients that watch ----


def test_a_client_hears_where_brokers_are_and_of_each_change(
    namesrv: ServiceProcess, caller: Caller
) -> None:
    caller.register(data_version=pb.DataVersion(state_version=1))
    stream = caller.stub.WatchBrokers(pb.WatchBrokersRequest(), timeout=30)
    assert list(next(stream).brokers) == [
        pb.BrokerMembers(
            cluster=CLUSTER, broker_name="broker-a", addresses={0: address_of()}, epoch=1
        )
    ]

    caller.register(broker_id=1, data_version=pb.DataVersion(state_version=1))
    assert [dict(each.addresses) for each in next(stream).brokers] == [
        {0: address_of(), 1: address_of(broker_id=1)}
    ]
    caller.register(
        broker_address=address_of(broker_id=1), data_version=pb.DataVersion(state_version=2)
    )
    elected = next(stream).brokers[0]
    assert (dict(elected.addresses), elected.epoch) == ({0: address_of(broker_id=1)}, 2)
    caller.call(
        pb.UnregisterBrokerRequest(**{**identity_of(), "broker_address": address_of(broker_id=1)})
    )
    gone = next(stream).brokers[0]
    assert (gone.broker_name, dict(gone.addresses)) == ("broker-a", {})


def test_streams_of_clients_end_when_the_name_server_stops(
    namesrv: ServiceProcess, caller: Caller
) -> None:
    stream = caller.stub.WatchBrokers(pb.WatchBrokersRequest(), timeout=30)
    next(stream)
    assert namesrv.stop() == 0
    assert list(stream) == []


def test_records_of_logs_are_kept_for_the_group(caller: Caller) -> None:
    mine = pb.LogRecord(store_id="s1", generation=3, end_offset=100, epoch=1)
    group = {"cluster": CLUSTER, "broker_name": "broker-a"}
    assert list(caller.call(pb.RecordLogsRequest(**group, records=[mine])).records) == [mine]
    older = pb.LogRecord(store_id="s1", generation=2, end_offset=900, epoch=1)
    other = pb.LogRecord(store_id="s2", generation=1, end_offset=5, epoch=1)
    answer = caller.call(pb.RecordLogsRequest(**group, records=[older, other]))
    assert list(answer.records) == [mine, other]
    with raises_code(Code.INVALID_PARAMETER):
        caller.call(pb.RecordLogsRequest(**group, records=[other] * 65))
    with raises_code(Code.INVALID_PARAMETER):
        caller.call(pb.RecordLogsRequest(**group, records=[pb.LogRecord(store_id=" ")]))
