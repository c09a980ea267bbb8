"""The commands of RocketMQ's mqadmin, and what answers for each of them here.

`aerobee updateTopic` names ours, and `docs/mqadmin.py` writes the table of docs/mqadmin.md. The
commands are those that mqadmin of RocketMQ 5 registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Counterpart(NamedTuple):
    """Our commands in place of one of mqadmin, without "aerobee"; or the reason for none."""

    commands: tuple[str, ...] = ()
    note: str = ""

    def answer(self, name: str) -> str:
        """Return one sentence for a user who called mqadmin's command `name`."""
        ours = " or ".join(f"`aerobee {command}`" for command in self.commands)
        if not ours:
            return f"mqadmin's {name} has no counterpart: {self.note}"
        return f"mqadmin's {name} is {ours}" + (f"; {self.note}" if self.note else "")


def _ours(*commands: str, note: str = "") -> Counterpart:
    return Counterpart(commands, note)


def _none(note: str) -> Counterpart:
    return Counterpart((), note)


_STATIC = _none("there are no static topics: `aerobee topic rebalance` adds queues on a new broker")
_CONTROLLER = _none("there is no controller: etcd elects masters (`aerobee broker ha-status`)")
_CONTAINER = _none("each broker is a process of its own: start it with `aerobee broker`")
_COLD = _none("reads of old messages are not throttled apart from others")
_ROCKSDB = _none("there is no RocksDB: tables are JSON files in the store's directory config")
_KV = _none("the key-value table is for ordered topics of RocketMQ 3: no command changes it")
_RETENTION = _none("each broker does it by itself, every cleanResourceInterval")
_WRITE = _ours("broker drain", note="it asks the broker itself, and --undo ends it")

COMMANDS: Mapping[str, Mapping[str, Counterpart]] = {
    "users": {
        "createUser": _ours("user create"),
        "updateUser": _ours("user update", "user rotate"),
        "deleteUser": _ours("user delete"),
        "getUser": _ours("user get"),
        "listUser": _ours("user list"),
        "copyUser": _ours("acl export", "acl import", note="between clusters"),
        "createAcl": _ours("acl create"),
        "updateAcl": _ours("acl update"),
        "deleteAcl": _ours("acl delete"),
        "getAcl": _ours("acl get"),
        "listAcl": _ours("acl list"),
        "copyAcl": _ours("acl export", "acl import", note="between clusters"),
    },
    "topics": {
        "updateTopic": _ours("topic create", "topic update"),
        "updateTopicList": _ours("apply", "topic update --from"),
        "updateTopicPerm": _ours("topic update", note="with --permission r, w or rw"),
        "deleteTopic": _ours("topic delete"),
        "topicList": _ours("topic list"),
        "topicRoute": _ours("topic route"),
        "topicStatus": _ours("topic status"),
        "topicClusterList": _ours("topic route", note="the column cluster"),
        "updateOrderConf": _none("use the type fifo: `aerobee topic create NAME --type fifo`"),
        "allocateMQ": _ours("group members", note="the queues of each member as they are"),
        "updateStaticTopic": _STATIC,
        "remappingStaticTopic": _STATIC,
    },
    "brokers": {
        "updateBrokerConfig": _ours("broker config set"),
        "getBrokerConfig": _ours("broker config get"),
        "brokerStatus": _ours("broker status"),
        "brokerConsumeStats": _ours("group progress", note="for one group"),
        "sendMsgStatus": _ours("bench", note="with --check: the times of each queue"),
        "cleanExpiredCQ": _RETENTION,
        "cleanUnusedTopic": _none(
            "the queues of a topic are deleted with it: `aerobee topic delete`"
        ),
        "deleteExpiredCommitLog": _RETENTION,
        "resetMasterFlushOffset": _none("a slave takes the end of the log from its master"),
        "getBrokerEpoch": _ours("broker ha-status", note="--wide shows epochs"),
        "updateColdDataFlowCtrGroupConfig": _COLD,
        "removeColdDataFlowCtrGroupConfig": _COLD,
        "getColdDataFlowCtrInfo": _COLD,
        "setCommitLogReadAheadMode": _none("the system's read-ahead applies"),
    },
    "cluster and clients": {
        "clusterList": _ours("cluster list"),
        "clusterRT": _ours("bench", note="with --check: the times of each queue of each broker"),
        "producerConnection": _ours("client list"),
        "consumerConnection": _ours("group members"),
        "producer": _ours("client list"),
        "statsAll": _none("metrics have the rates: metricsExporterType=PROM"),
    },
    "groups and offsets": {
        "consumerProgress": _ours("group progress"),
        "consumerStatus": _ours("group members", "group show"),
        "updateSubGroup": _ours("group create", "group update", "group pause", "group resume"),
        "updateSubGroupList": _ours("apply", "group update --from"),
        "deleteSubGroup": _ours("group delete"),
        "getConsumerConfig": _ours("group show"),
        "setConsumeMode": _none("a client chooses how it consumes, by its class"),
        "startMonitoring": _ours("doctor", note="alerts are rules over metrics"),
        "resetOffsetByTime": _ours("group reset-offset", note="--queue moves one queue"),
        "skipAccumulatedMessage": _ours("group reset-offset", note="with --to now"),
        "cloneGroupOffset": _ours("group clone-offsets"),
    },
    "messages": {
        "queryMsgById": _ours("message show", "message get"),
        "queryMsgByKey": _ours("message query"),
        "queryMsgByUniqueKey": _ours("message show", "message get"),
        "queryMsgByOffset": _ours("message browse"),
        "queryMsgTraceById": _ours("message track", note="without a trace topic"),
        "printMsg": _ours("message browse", "message search"),
        "printMsgByQueue": _ours("message browse"),
        "sendMessage": _ours("message send"),
        "consumeMessage": _ours("message consume"),
        "checkMsgSendRT": _ours("bench", note="on a topic of its own: p50, p99 and throughput"),
        "dumpCompactionLog": _none("there is no compaction"),
        "queryCq": _ours("store dump", note="of a stopped broker"),
        "checkRocksdbCqWriteProgress": _ROCKSDB,
    },
    "name servers": {
        "updateKvConfig": _KV,
        "deleteKvConfig": _KV,
        "updateNamesrvConfig": _ours("namesrv config set"),
        "getNamesrvConfig": _ours("namesrv config get"),
        "wipeWritePerm": _WRITE,
        "addWritePerm": _WRITE,
    },
    "replicas and containers": {
        "haStatus": _ours("broker ha-status"),
        "getSyncStateSet": _ours("broker ha-status"),
        "getControllerMetaData": _CONTROLLER,
        "getControllerConfig": _CONTROLLER,
        "updateControllerConfig": _CONTROLLER,
        "electMaster": _ours("broker promote"),
        "cleanBrokerMetadata": _CONTROLLER,
        "addBroker": _CONTAINER,
        "removeBroker": _ours("broker drain", note="then stop its process"),
    },
    "export": {
        "exportMetadata": _ours("export"),
        "exportConfigs": _ours("broker config get", note="with --json"),
        "exportMetrics": _none("metrics are exported by metricsExporterType=PROM"),
        "exportMetadataInRocksDB": _ROCKSDB,
        "rocksDBConfigToJson": _ROCKSDB,
        "exportPopRecord": _none("leases are in a journal of the broker, and need no migration"),
    },
}

BY_NAME: Mapping[str, Counterpart] = {
    name: counterpart for each in COMMANDS.values() for name, counterpart in each.items()
}


def answer(name: str) -> str | None:
    """Return what a user of mqadmin's command `name` calls here, or None for another name."""
    found = {each.casefold(): each for each in BY_NAME}.get(name.casefold())
    return None if found is None else BY_NAME[found].answer(found)
