"""Options of the broker: RocketMQ's keys, what is refused, what is only warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.config import DELAY_LEVELS, BrokerOptions, parse_delay_levels
from aerobee_broker.store.options import MAX_BODY
from aerobee_broker.wiring.store import store_options
from aerobee_chassis.addresses import advertised_host, ip_of
from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError
from support.codes import raises_about
from support.configuration import samples

BROKER_CONF = """\
# as in a RocketMQ cluster
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04;16
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
namesrvAddr = 10.0.0.1:9876;10.0.0.2:9876
sendMessageThreadPoolNums = 16
transferMsgByHeap = true
serverSelectorThreads = 3
"""


def test_a_broker_conf_of_rocketmq_is_read(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(BROKER_CONF)
    options = load(BrokerOptions, file=path)
    assert (options.broker_name, options.flush_disk_type) == ("broker-a", "ASYNC_FLUSH")
    assert options.namesrvs == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert (options.delete_when, options.file_reserved_time) == ("04;16", 48)
    ignored = ("sendMessageThreadPoolNums", "serverSelectorThreads", "transferMsgByHeap")
    assert options.ignored_keys == ignored


def test_flush_is_synchronous_and_queues_are_8_by_default() -> None:
    options = load(BrokerOptions)
    assert options.flush_disk_type == "SYNC_FLUSH"
    assert (options.listen_port, options.default_topic_queue_nums) == (10_911, 8)
    assert options.max_message_size == 4_194_304
    assert options.delay_levels_ms[0] == 1_000
    assert options.delay_levels_ms[-1] == 7_200_000
    assert len(options.delay_levels_ms) == 18


def test_every_key_is_known_in_one_way() -> None:
    assert samples.repeated(BrokerOptions) == []


@pytest.mark.parametrize("path", samples.taken("broker"), ids=lambda path: path.stem)
def test_broker_conf_of_a_public_cluster_is_taken(path: Path) -> None:
    options = load(BrokerOptions, file=path)
    assert options.to_json()["brokerClusterName"] in path.read_text()


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("dledger", "enableDLegerCommitLog"),
        ("controller", "enableControllerMode"),
        ("acl", "aclEnable"),
        ("tiered", "messageStorePlugIn"),
        ("path", "storePathCommitLog"),
    ],
)
def test_broker_conf_that_promises_more_is_refused_with_the_key(kind: str, key: str) -> None:
    with pytest.raises(ConfigError, match="remove the key") as caught:
        load(BrokerOptions, file=samples.refused("broker", kind))
    assert key in [problem.about for problem in caught.value.problems]


def test_access_control_needs_a_port_that_requires_certificates() -> None:
    with pytest.raises(ConfigError, match="tlsServerMode=enforcing") as caught:
        load(BrokerOptions, file=samples.refused("broker", "auth"))
    assert {problem.about for problem in caught.value.problems} == {
        "authenticationEnabled",
        "innerClientAuthenticationCredentials",
    }


def test_keys_of_tutorials_have_no_effect_but_one_warning() -> None:
    options = load(BrokerOptions, file=samples.FILES / "broker" / "tutorial-4-flush.conf")
    tutorial = {"storeCheckpoint", "abortFile", "checkTransactionMessageEnable"}
    assert tutorial <= set(options.ignored_keys)
    assert options.max_message_size == 65_536


def test_all_keys_of_tutorials_are_taken() -> None:
    options = load(BrokerOptions, file=samples.FILES / "broker" / "tutorial-keys.conf")
    assert options.disk_max_used_space_ratio == 88
    assert options.flush_disk_type == "ASYNC_FLUSH"
    assert set(options.ignored_keys) == {
        *("abortFile", "checkTransactionMessageEnable", "flushConsumeQueueLeastPages"),
        *("flushConsumeQueueThoroughInterval", "pullMessageThreadPoolNums"),
        *("redeleteHangedFileInterval", "sendMessageThreadPoolNums", "storeCheckpoint"),
    }
    assert options.mapped_file_size_consume_queue == 300_000, "RocketMQ 4's name of the key"


def test_all_problems_of_a_broker_conf_are_named_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "brokerRole=SYNC_MASTER\nlistenPrt=1\nflushDiskType=ASYNC_FLUSH\n"
        "enableDLegerCommitLog=true\ndiskSpaceWarningLevelRatio=50\nminInSyncReplicas=3\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(BrokerOptions, file=file)
    places = [str(problem).split(": ")[0] for problem in caught.value.problems]
    assert places == [f"{file}:{line}" for line in (2, 3, 4, 5, 6)]


def test_marks_that_descend_are_named_with_their_values() -> None:
    with pytest.raises(ConfigError) as caught:
        load(BrokerOptions, sets=["diskSpaceWarningLevelRatio=80"])
    text = str(caught.value)
    assert "diskSpaceCleanForciblyRatio = 85 (default)" in text
    assert "diskSpaceWarningLevelRatio = 80" in text


def test_refusal_of_asynchronous_replicas_names_both_ways_out() -> None:
    sample = ["brokerRole=SYNC_MASTER", "flushDiskType=ASYNC_FLUSH"]
    with pytest.raises(ConfigError) as caught:
        load(BrokerOptions, sets=sample)
    text = str(caught.value)
    assert "flushDiskType = SYNC_FLUSH" in text and "brokerRole = ASYNC_MASTER" in text
    load(BrokerOptions, sets=[sample[0], "flushDiskType=SYNC_FLUSH"])
    load(BrokerOptions, sets=["brokerRole=ASYNC_MASTER", sample[1]])


def test_key_in_another_case_has_its_effect() -> None:
    options = load(BrokerOptions, file=samples.FILES / "broker" / "lowercase.conf")
    assert options.namesrvs == ("127.0.0.1:9876",)
    assert options.broker_ip1 == "127.0.0.1"
    assert len(options.notes) == 3


def test_deletion_may_begin_above_the_forced_one() -> None:
    """RocketMQ compares each ratio alone; tutorials set 88, 95 and 98."""
    assert load(BrokerOptions, sets=["diskMaxUsedSpaceRatio=98"]).disk_max_used_space_ratio == 98


@pytest.mark.parametrize(
    "setting",
    [
        "enableDLegerCommitLog=true",
        "enableControllerMode=true",
        "controllerAddr=10.0.0.1:9878",
        "allAckInSyncStateSet=false",
        "inSyncReplicas=2",
        "aclEnable=true",
        "authenticationEnabled=TRUE",
        "useTLS=true",
        "messageStorePlugIn=org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredStoreFilePath=/mnt/cold",
        "tieredBackendServiceProvider=PosixFileSegment",
        "testControl=true",
        # where data lies
        "storePathCommitLog=/elsewhere",
        "storePathCommitLog=/tmp/a,/tmp/b",
        "storePathConsumeQueue=/elsewhere",
        "storePathIndex=/elsewhere",
        "readOnlyCommitLogStorePaths=/cold",
        "storeType=defaultRocksDB",
        "msgTraceTopicName=traces",
        # how long it is kept
        "enableCompaction=true",
        "commitLogRollingInterval=24",
        "replicasPerDiskPartition=2",
        "minLiteTTl=900000",
        "skipWhenCKRePutReachMaxTimes=true",
        # who may read it, and write
        "useStaticSubscription=true",
        "rejectPullConsumerEnable=true",
        "disableConsumeIfConsumerReadSlowly=true",
        "readUnCommitted=true",
        "startAcceptSendRequestTimeStamp=1700000000000",
        "timerWheelEnable=false",
        "timerStopDequeue=true",
        "fetchNamesrvAddrByAddressServer=true",
    ],
)
def test_a_key_whose_promise_is_not_kept_here_is_refused(setting: str) -> None:
    with raises_about(ConfigError, setting.partition("=")[0]):
        load(BrokerOptions, sets=[setting])


@pytest.mark.parametrize(
    "setting",
    [
        "brokerRole=ASYNC_MASTER",
        "aclEnable=false",
        "inSyncReplicas=1",
        "haMasterAddress=",
        "storePathCommitLog=~/aerobee/broker/store/commitlog",
        "storeType=default",
        "enableCompaction=false",
        "timerWheelEnable=true",
    ],
)
def test_a_key_that_asks_for_what_holds_here_is_taken(setting: str) -> None:
    assert load(BrokerOptions, sets=[setting]).ignored_keys == ()


@pytest.mark.parametrize(
    "setting",
    [
        "brokerNames=a",
        "flushDiskType=SOMETIMES",
        "messageDelayLevel=1s 5 10s",
        "messageDelayLevel=" + "1s " * 19,
        "deleteWhen=25",
        "namesrvAddr=10.0.0.1",
        "diskSpaceWarningLevelRatio=50",
        "mappedFileSizeConsumeQueue=6000001",
        f"maxMessageSize={MAX_BODY + 1}",
        "listenPort=70000",
        "brokerName=" + "ü" * 64,
        "brokerClusterName=a/b",
    ],
)
def test_a_bad_option_is_named(setting: str) -> None:
    with raises_about(ConfigError, setting.partition("=")[0]):
        load(BrokerOptions, sets=[setting])


@pytest.mark.parametrize(
    ("about", "settings"),
    [
        ("brokerId", ["brokerRole=SLAVE"]),
        ("brokerId", ["brokerRole=SYNC_MASTER", "brokerId=1"]),
        ("minInSyncReplicas", ["brokerRole=SYNC_MASTER", "minInSyncReplicas=3"]),
        ("flushDiskType", ["brokerRole=SYNC_MASTER", "flushDiskType=ASYNC_FLUSH"]),
        ("haMasterAddress", ["haMasterAddress=10.0.0.1"]),
        ("etcdEndpoints", ["etcdEndpoints=10.0.0.1"]),
        ("etcdKeyPrefix", ["etcdKeyPrefix=aerobee/"]),
        ("etcdKeyPath", ["etcdEndpoints=h:1", "brokerId=1", "etcdCaPath=a", "etcdCertPath=b"]),
        ("etcdCertPath", ["etcdEndpoints=h:1", "brokerId=1", "etcdCaPath=a", "etcdKeyPath=b"]),
        ("etcdCaPath", ["etcdEndpoints=h:1", "brokerId=1", "etcdCertPath=a", "etcdKeyPath=b"]),
        ("etcdEndpoints", ["etcdCaPath=a"]),
        ("enableElectUncleanMaster", ["enableElectUncleanMaster=true"]),
        ("inSyncReplicas", ["brokerRole=SYNC_MASTER", "totalReplicas=2", "inSyncReplicas=3"]),
        ("haHousekeepingInterval", ["brokerRole=SYNC_MASTER", "haHousekeepingInterval=500"]),
        ("haMaxTimeSlaveNotCatchup", ["brokerRole=SYNC_MASTER", "haMaxTimeSlaveNotCatchup=400"]),
        ("asyncLearner", ["brokerRole=SYNC_MASTER", "asyncLearner=true"]),
        ("brokerRole", ["etcdEndpoints=10.0.0.1:2379", "brokerRole=SLAVE", "brokerId=1"]),
        ("brokerId", ["etcdEndpoints=10.0.0.1:2379", "brokerRole=SYNC_MASTER"]),
    ],
)
def test_keys_of_replication_that_contradict_each_other_are_refused(
    about: str, settings: list[str]
) -> None:
    with raises_about(ConfigError, about):
        load(BrokerOptions, sets=[*settings])


def test_how_many_copies_a_master_asks_for_goes_by_its_role() -> None:
    def options(*sets: str) -> BrokerOptions:
        return load(BrokerOptions, sets=[*sets])

    alone, synchronous = options(), options("brokerRole=sync_master")
    asynchronous = options("brokerRole=ASYNC_MASTER", "totalReplicas=2")
    slave = options("brokerRole=SLAVE", "brokerId=1")
    reported = options("brokerRole=SYNC_MASTER", "inSyncReplicas=3")
    assert [each.required_replicas for each in (alone, synchronous, asynchronous)] == [1, 2, 1]
    assert reported.required_replicas == 3
    assert not alone.is_replicated
    assert synchronous.is_replicated and asynchronous.is_replicated and slave.is_replicated
    assert synchronous.is_synchronous and not asynchronous.is_synchronous
    elected = options("etcdEndpoints=10.0.0.1:2379; 10.0.0.2:2379", "brokerId=1")
    assert elected.is_replicated and elected.is_elected
    assert elected.etcd_addresses == ("10.0.0.1:2379", "10.0.0.2:2379")
    assert store_options(slave).replicated and not store_options(alone).replicated


def test_the_largest_body_that_can_be_read_may_be_sent() -> None:
    assert load(BrokerOptions, sets=[f"maxMessageSize={MAX_BODY}"]).max_message_size == MAX_BODY


def test_delay_levels_are_rocketmqs_18() -> None:
    minutes = [60_000 * minute for minute in (*range(1, 11), 20, 30, 60, 120)]
    assert list(parse_delay_levels(DELAY_LEVELS)) == [1_000, 5_000, 10_000, 30_000, *minutes]


@pytest.mark.parametrize(
    ("chosen", "bound", "host"),
    [
        ("broker.example", "0.0.0.0", "broker.example"),
        ("", "127.0.0.1", "127.0.0.1"),
        ("", "10.0.0.5", "10.0.0.5"),
    ],
)
def test_clients_get_what_the_operator_chose_or_what_is_bound(
    chosen: str, bound: str, host: str
) -> None:
    assert advertised_host(chosen, bound, []) == host


def test_a_broker_on_all_addresses_advertises_the_one_towards_its_name_server() -> None:
    assert advertised_host("", "0.0.0.0", ["127.0.0.1:9876"]) == "127.0.0.1"


def test_message_ids_hold_an_ip_address() -> None:
    assert ip_of("10.0.0.5") == "10.0.0.5"
    assert ip_of("[::1]") == "::1"
    assert ip_of("localhost") == "127.0.0.1"


def test_the_crc_over_the_whole_record_is_on_and_can_be_left_out() -> None:
    assert store_options(load(BrokerOptions)).whole_crc
    off = load(BrokerOptions, sets=["enabledAppendPropCRC=false"])
    assert not store_options(off).whole_crc and off.ignored_keys == ()


def test_what_the_image_sets_for_the_proxy_is_no_misspelling() -> None:
    assert not load(
        BrokerOptions, environ={"AEROBEE_AUTO_CREATE_TOPICS": "false"}
    ).misspelt_variables
    misspelt = load(BrokerOptions, environ={"AEROBEE_AUTO_CREATE_TOPIC_ENABEL": "false"})
    assert len(misspelt.misspelt_variables) == 1


def test_a_key_of_rocketmq_4_sets_the_option_that_has_another_name_now() -> None:
    """Both names are one option, which is set once."""
    assert load(BrokerOptions, sets=["haSlaveFallbehindMax=7"]).ha_max_gap_not_in_sync == 7
    with raises_about(ConfigError, "haMaxGapNotInSync"):
        load(BrokerOptions, sets=["haSlaveFallbehindMax=7", "haMaxGapNotInSync=8"])
