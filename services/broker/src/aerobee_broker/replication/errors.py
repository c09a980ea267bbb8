"""Define the errors of promotions, and of a master that rejects requests.

A caller in another process receives the code, not the class.

    NotElectable       ILLEGAL_OPERATION      as master it might lack acknowledged messages
    LogDamaged         MESSAGE_CORRUPTED      no replica follows before the damaged log is repaired
    UnrelatedLogs      ILLEGAL_OPERATION      messages of a log of another origin would be hidden
    NotCaughtUp        FLUSH_SLAVE_TIMEOUT    no replica can take over without a loss yet
    NotPromoted        SERVICE_NOT_AVAILABLE  it is not master; the promotion may be retried
    ReplicaNotRemoved  SLAVE_NOT_AVAILABLE    an asynchronous master might lose what it accepts
    ChangeNotKnown     SLAVE_NOT_AVAILABLE    too few replicas know the master's new options
    NumberInUse        SERVICE_NOT_AVAILABLE  another replica follows with the same number
    OtherGroup         BROKER_NOT_EXIST       a replica of another group has the address
"""

from __future__ import annotations

from collections.abc import Sequence

from aerobee_wire.status import Code, MqError


class LogDamaged(MqError):
    """The log of `replica` is damaged at a physical offset."""

    def __init__(self, replica: str, physical_offset: int) -> None:
        super().__init__(
            Code.MESSAGE_CORRUPTED,
            f"the log of replica {replica} is damaged at physical offset {physical_offset}: it "
            "fetches that part from another replica, and replication continues after that; keep "
            "the disks of all replicas",
            retryable=True,
        )


class NotElectable(MqError):
    """The replica may not become master. `reason` also says which action helps."""

    def __init__(self, reason: str) -> None:
        super().__init__(Code.ILLEGAL_OPERATION, f"not made master: {reason}", about="brokerId")


class UnrelatedLogs(MqError):
    """Logs of the group have no epoch in common with the log of the replica that is promoted.

    `lost` says for each of these logs what a promotion hides. Their epochs and offsets cannot be
    compared with those of this replica.
    """

    def __init__(self, replica: str, reason: str, lost: Sequence[str]) -> None:
        super().__init__(
            Code.ILLEGAL_OPERATION,
            f"not made master: {reason}. No epoch is common to the log of replica {replica} and "
            f"{', '.join(lost)}: find out which log has the messages that matter, and promote its "
            "replica; --unclean makes this one master, and hides the messages of the other logs",
            about="storePathRootDir",
        )


class NotCaughtUp(MqError):
    def __init__(self, behind: int, timeout_ms: int) -> None:
        super().__init__(
            Code.FLUSH_SLAVE_TIMEOUT,
            f"the replicas in sync lack {behind} bytes of the master's log, after {timeout_ms} ms "
            "(slaveTimeout): it stays master; retry once they have caught up",
            retryable=True,
        )


class NotPromoted(MqError):
    def __init__(self, reason: str) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE, f"not made master: {reason}; retry", retryable=True
        )


class ReplicaNotRemoved(MqError):
    """An asynchronous group cannot remove late replicas; `late` are their ids.

    The late replicas stay in the in-sync set, and may be elected.
    """

    def __init__(self, late: Sequence[int]) -> None:
        names = ", ".join(map(str, late))
        super().__init__(
            Code.SLAVE_NOT_AVAILABLE,
            f"nothing was stored: replica {names} has been behind for longer than "
            "haMaxTimeSlaveNotCatchup, may be elected all the same, and the coordinator that is to "
            "rule that out does not answer; send to another broker, or bring the coordinator back",
            about="haMaxTimeSlaveNotCatchup",
        )


class ChangeNotKnown(MqError):
    """The options of the master were changed, and too few replicas know that.

    A promotion may still rely on `required` copies, as an earlier master did. `missing` names the
    other replicas for the operator.
    """

    def __init__(self, in_sync: int, required: int, missing: str) -> None:
        super().__init__(
            Code.SLAVE_NOT_AVAILABLE,
            f"nothing was stored: inSyncReplicas or totalReplicas was changed, and "
            f"{required} of the replicas of before must know that; {in_sync} are in sync, "
            f"without {missing}; bring that replica back, or, if it is gone for good, promote this "
            "master (aerobee broker promote --unclean): it has all that was acknowledged, so that "
            "loses nothing as long as no other replica is promoted that does not know the change",
            about="inSyncReplicas",
        )


class NumberInUse(MqError):
    """Two replicas have the same brokerId.

    `holder` and `replica` name each replica by its number and store id.
    """

    def __init__(self, holder: str, replica: str) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"replica {holder} follows this master with the number of replica {replica}: give one "
            "of them another brokerId, or stop it",
            retryable=True,
            about="brokerId",
        )


class OtherGroup(MqError):
    """A replica of another broker group answers at an address where one of this group was."""

    def __init__(self, address: str, cluster: str, broker_name: str) -> None:
        super().__init__(
            Code.BROKER_NOT_EXIST,
            f"a replica of {broker_name} in cluster {cluster} answers at {address}: it is not of "
            "this group, and is not asked; correct haMasterAddress and brokerIP1 of this group",
            about="haMasterAddress",
        )


class EpochNotNoted(MqError):
    def __init__(self, replica: str, epoch: int, error: OSError) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"replica {replica} cannot note epoch {epoch}: {error.strerror}; make room on its disk "
            "or repair it, and promote again",
        )
