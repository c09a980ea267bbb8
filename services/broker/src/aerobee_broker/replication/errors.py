"""Define the errors of promotions, and of a master that rejects requests.

A caller in another process receives the code, not the class.

    NotElectable       ILLEGAL_OPERATION      as master it might lack acknowledged messages
    LogDamaged         MESSAGE_CORRUPTED      no replica follows before the damaged log is repaired
    NotCaughtUp        FLUSH_SLAVE_TIMEOUT    no replica can take over without a loss yet
    NotPromoted        SERVICE_NOT_AVAILABLE  it is not master; the promotion may be retried
    ReplicaNotRemoved  SLAVE_NOT_AVAILABLE    an asynchronous master might lose what it accepts
    NumberInUse        SERVICE_NOT_AVAILABLE  another replica follows with the same number
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


class EpochNotNoted(MqError):
    def __init__(self, replica: str, epoch: int, error: OSError) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"replica {replica} cannot note epoch {epoch}: {error.strerror}; make room on its disk "
            "or repair it, and promote again",
        )
