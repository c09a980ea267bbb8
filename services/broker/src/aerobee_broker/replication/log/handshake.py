"""Find where the logs of a slave and its master diverge, and decide what the slave does.

The functions are pure: they map the descriptions of both logs to an agreement. Both sides compute
the same agreement. The master needs it to send the checksum of the bytes before the agreed point;
the slave acts on it.

    slave's log                                    the slave
    ends at the agreed point                       follows from there
    continues after the agreed point               keeps that tail in a file, cuts it off, follows
    is empty                                       copies the master's log from its lowest offset
    has an epoch in common, but the point is       keeps what lies after the point, is wiped,
      below either log's lowest offset               and copies
    has bytes, and no epoch in common              is refused: it may hold the only copy of them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from aerobee_broker.errors import EpochNotBelieved, MasterOutdated, ReplicaRefused
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import EpochHistory
from aerobee_broker.store.format import (
    EXPONENTIAL_RETRY,
    FEATURES,
    LITE_TOPICS,
    NOT_REPLICATED,
    REPLICATED_LOG,
    SHRUNK_TOPICS,
    Build,
    newest,
)
from aerobee_wire.epochs import can_reach

PROTOCOL_VERSION = 1
# The build that is assumed for a peer that names no features. Brokers that are too old to name
# their features know these.
BEFORE_FEATURES = Build(
    "",
    {
        feature: FEATURES[feature]
        for feature in (REPLICATED_LOG, LITE_TOPICS, EXPONENTIAL_RETRY, SHRUNK_TOPICS)
    },
)
CHECKED_BYTES = 64 * 1024  # bytes before the agreed point whose CRC-32 must be equal on both sides


class Action(Enum):
    """The action of a slave before it follows.

    All actions except FOLLOW begin with the master's snapshot.
    """

    FOLLOW = "follow"
    CUT = "cut"
    COPY = "copy"
    WIPE = "wipe"


@dataclass(frozen=True, slots=True)
class LogDescription:
    """The description of its log that one side sends to the other.

    - `epoch`: for a master, the epoch in which it serves; for a slave, the highest epoch that it
      knows.
    - `lowest`: the physical offset of the first byte of the log.
    - `end`: the physical offset after the last byte of the log.
    - `confirmed`: the physical offset below which everything is confirmed, as far as this side
      knows.
    - `settings`: options that affect the log and its derived data, by RocketMQ's key.
    - `from_last_file`: True if a slave with an empty log wants only the master's last file.
    - `build`: the version of Aerobee on this side, with its features.
    - `required`: the features that the store of this side has used.
    """

    cluster: str
    broker_name: str
    replica: Replica
    history: EpochHistory
    epoch: int
    lowest: int
    end: int
    confirmed: int
    file_size: int
    settings: Mapping[str, str] = field(default_factory=dict)
    from_last_file: bool = False
    protocol_version: int = PROTOCOL_VERSION
    build: Build = BEFORE_FEATURES
    required: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return self.lowest == self.end

    @property
    def group(self) -> tuple[str, str]:
        """Return the names of the cluster and of the broker group."""
        return self.cluster, self.broker_name


@dataclass(frozen=True, slots=True)
class Agreement:
    """The point where two logs diverge, and the action of the slave.

    - `begin`: the physical offset of the first byte that the master sends.
    - `agreed`: the physical offset below which both logs are equal. Later bytes of the slave's log
      differ from the master's. The slave keeps these bytes in a file before it cuts them off.
    """

    action: Action
    begin: int
    agreed: int

    @property
    def starts_anew(self) -> bool:
        """Return whether the slave's log is empty and begins at `begin`."""
        return self.action in (Action.COPY, Action.WIPE)


def agree(slave: LogDescription, master: LogDescription) -> Agreement:
    """Return the agreement of a slave with its master.

    Raises ReplicaRefused if the slave cannot follow, and MasterOutdated if the slave knows a higher
    epoch. Raises EpochNotBelieved if the group cannot have reached that epoch.
    """
    check_group(slave, master)
    if not can_reach(slave.epoch, master.epoch):
        raise EpochNotBelieved(str(master.replica), slave.epoch, master.epoch)
    if slave.epoch > master.epoch:
        raise MasterOutdated(str(master.replica), master.epoch, slave.epoch)
    _check_features(slave, master)
    if slave.is_empty:
        begin = _copied_from(slave, master)
        return Agreement(Action.COPY, begin, agreed=slave.end)
    agreed = alike_below(slave, master)
    if agreed is None:
        raise ReplicaRefused(
            f"the log of replica {slave.replica} and that of the master, {master.replica}, have no "
            "epoch in common: it was written under another master, and is not touched; if none of "
            "its messages is missed, start it with an empty storePathRootDir",
            about="storePathRootDir",
        )
    if agreed < master.lowest or agreed < slave.lowest:
        begin = _copied_from(slave, master)
        return Agreement(Action.WIPE, begin, agreed=max(agreed, slave.lowest))
    action = Action.FOLLOW if agreed == slave.end else Action.CUT
    return Agreement(action, agreed, agreed)


def alike_below(one: LogDescription, other: LogDescription) -> int | None:
    """Return the physical offset below which two logs are equal according to their epochs.

    Return None if the logs have no epoch in common.
    """
    common = one.history.newest_common(other.history)
    if common is None:
        return None
    return min(
        one.history.end_of(common.epoch, one.end), other.history.end_of(common.epoch, other.end)
    )


def check_group(one: LogDescription, other: LogDescription) -> None:
    """Check that both logs are of one group and have the same settings. Raises ReplicaRefused."""
    _check_identity(one, other)
    _check_settings(one, other)


def checked_range(slave: LogDescription, master: LogDescription, agreed: int) -> tuple[int, int]:
    """Return the range of bytes, as two physical offsets, whose checksum both sides compare.

    The range is empty if the logs have no bytes in common.
    """
    start = max(agreed - CHECKED_BYTES, slave.lowest, master.lowest)
    return min(start, agreed), agreed


def _copied_from(slave: LogDescription, master: LogDescription) -> int:
    if not slave.from_last_file:
        return master.lowest
    return max(master.lowest, master.end - master.end % master.file_size)


def _check_identity(slave: LogDescription, master: LogDescription) -> None:
    if slave.protocol_version != master.protocol_version:
        raise ReplicaRefused(
            f"replica {slave.replica} speaks version {slave.protocol_version} of the replication "
            f"protocol, the master {master.protocol_version}: run one version of Aerobee on both",
            about="protocol_version",
        )
    for option, of_slave, of_master in (
        ("brokerClusterName", slave.cluster, master.cluster),
        ("brokerName", slave.broker_name, master.broker_name),
    ):
        if of_slave != of_master:
            raise ReplicaRefused(_differs(slave, option, of_slave, of_master), about=option)
    if slave.replica.replica_id == master.replica.replica_id:
        raise ReplicaRefused(
            f"the master has the number {slave.replica.replica_id} too: give each replica of "
            f"{master.broker_name} another brokerId",
            about="brokerId",
        )
    if slave.replica.store_id == master.replica.store_id:
        raise ReplicaRefused(
            f"replica {slave.replica} has the store of the master: the directory was copied; start "
            "it with an empty storePathRootDir",
            about="storePathRootDir",
        )


def _check_settings(slave: LogDescription, master: LogDescription) -> None:
    of_slave = {**slave.settings, "mappedFileSizeCommitLog": str(slave.file_size)}
    of_master = {**master.settings, "mappedFileSizeCommitLog": str(master.file_size)}
    for option in sorted(of_slave.keys() | of_master.keys()):
        if of_slave.get(option) != of_master.get(option):
            text = _differs(
                slave, option, of_slave.get(option, "unset"), of_master.get(option, "unset")
            )
            raise ReplicaRefused(text, about=option)


def _check_features(slave: LogDescription, master: LogDescription) -> None:
    """Check that the slave knows every feature that its master may write.

    A slave that does not know a feature would derive wrong data from its records. Raises
    ReplicaRefused.
    """
    known = master.build.features
    missing = sorted(known.keys() - slave.build.features.keys() - NOT_REPLICATED)
    if not missing:
        return
    uses = "uses" if master.required.intersection(missing) else "may use"
    raise ReplicaRefused(
        f"replica {slave.replica} runs {slave.build}, which does not know {', '.join(missing)}, "
        f"and the master {uses} it: run Aerobee {newest(known[name] for name in missing)} or later "
        "on this replica",
        about="features",
    )


def _differs(slave: LogDescription, option: str, of_slave: str, of_master: str) -> str:
    return (
        f"replica {slave.replica} has {option} = {of_slave}, the master {of_master}: set it alike "
        "on all replicas, and restart them"
    )
