"""Keys of RocketMQ's broker.conf that a broker of ours knows and does not have.

A file of an existing cluster can be used as it is where that takes no promise back: a key that
would make it do so is refused, the others are named in one warning.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aerobee_chassis.config import Promise, keys_in

WITHOUT_EFFECT = keys_in(Path(__file__).with_name("rocketmq_keys.txt"))

_OTHER_REPLICATION = (
    "replicas are a master and its slaves (brokerRole, totalReplicas, inSyncReplicas), and etcd "
    "elects the master (etcdEndpoints): remove the key, and set these (docs/replication.md)"
)
_ALWAYS_ALL = (
    "a send is acknowledged when the whole in-sync set has it, or a replica without it might be "
    "elected: remove the key"
)
_NO_ACCESS_CONTROL = (
    "a broker does not ask who calls: remove the key, turn authenticationEnabled and "
    "authorizationEnabled on at the proxy, and let only proxies reach the broker"
)
_NO_TLS = (
    "a broker speaks plaintext: remove the key, have clients connect to the proxy in TLS, and keep "
    "the broker in a network of its own"
)
_NO_TIERED_STORE = (
    "there is no tiered storage, what retention deletes is gone: remove the key, and choose "
    "fileReservedTime and retainBytes for the disk that you have"
)
_NO_TEST_CONTROL = (
    "faults and virtual time are for tests: give --test-control to aerobee_suite on its command "
    "line, and never to what has messages that count"
)
_FALSE = frozenset({"", "false"})
_TRUE = frozenset({"", "true"})
_UNSET = frozenset({""})

PROMISES: Mapping[str, Promise] = {
    "enableDLegerCommitLog": Promise(_FALSE, _OTHER_REPLICATION),
    "enableControllerMode": Promise(_FALSE, _OTHER_REPLICATION),
    "controllerAddr": Promise(_UNSET, _OTHER_REPLICATION),
    "enableSlaveActingMaster": Promise(_FALSE, _OTHER_REPLICATION),
    "duplicationEnable": Promise(_FALSE, _OTHER_REPLICATION),
    "allAckInSyncStateSet": Promise(_TRUE, _ALWAYS_ALL),
    "aclEnable": Promise(_FALSE, _NO_ACCESS_CONTROL),
    "authenticationEnabled": Promise(_FALSE, _NO_ACCESS_CONTROL),
    "authorizationEnabled": Promise(_FALSE, _NO_ACCESS_CONTROL),
    "tlsEnable": Promise(_FALSE, _NO_TLS),
    "useTLS": Promise(_FALSE, _NO_TLS),
    "messageStorePlugIn": Promise(_UNSET, _NO_TIERED_STORE),
    "testControl": Promise(_FALSE, _NO_TEST_CONTROL),  # ours
    "tiered*": Promise(_UNSET, _NO_TIERED_STORE),
}
