"""Define the broker's errors. A caller in another process receives the code, not the class.

MqError (aerobee_wire.status)
├── StoreError
│   ├── MessageIllegal      MESSAGE_ILLEGAL        a message that no store accepts
│   ├── DiskFull            DISK_FULL              no space; names free bytes and watermark
│   ├── StoreReadOnly       SERVICE_NOT_AVAILABLE  after a failed write or flush, or closed
│   ├── NotMaster           SERVICE_NOT_AVAILABLE  this replica only follows
│   ├── StoreWriteError     SERVICE_NOT_AVAILABLE  the bytes did not reach the file
│   ├── StoreFlushError     SERVICE_NOT_AVAILABLE  the bytes may not be on the disk
│   ├── ChunkRefused        SYSTEM_ERROR           bytes of a master's log do not follow here
│   ├── CutRefused          SYSTEM_ERROR           the log cannot be cut there
│   ├── StoreReadError      SYSTEM_ERROR           a derived file cannot be read
│   │   └── TransientReadError  the log cannot be read for now; the caller retries
│   │       └── RepairPending   the record is damaged; another replica may have it
│   ├── MessageNotFound     QUERY_NOT_FOUND        there is no record at that physical offset
│   ├── MessageCorrupted    MESSAGE_CORRUPTED      there is one, and its check fails
│   └── StoreOpenError      SYSTEM_ERROR           the store cannot be opened
│       ├── StoreLocked         another broker holds the directory
│       ├── StoreTooNew         it needs a later version of Aerobee (store/format.py)
│       └── CommitLogBroken     a file is missing or has another size
├── ConfigFileDamaged   SYSTEM_ERROR            a file under config/ and its .bak are unreadable
├── InvalidParameter    INVALID_PARAMETER
├── NoPermission        NO_PERMISSION
├── TopicNotExist       TOPIC_NOT_EXIST
├── QueueNotExist       QUEUE_NOT_EXIST         the topic has fewer queues than the route says
├── GroupNotExist       SUBSCRIPTION_GROUP_NOT_EXIST
├── SubscriptionNotExist SUBSCRIPTION_NOT_EXIST
├── LetterJobNotExist   QUERY_NOT_FOUND         no job over dead letters has this id
├── LetterJobRefused    ILLEGAL_OPERATION       another job of the group runs, or has the id
├── TransactionNotOpen  INVALID_TRANSACTION_ID  never begun, ended, or given up
├── FlushTimeout        FLUSH_DISK_TIMEOUT      stored, and not known to be durable
│   └── FlushSlaveTimeout  FLUSH_SLAVE_TIMEOUT  stored, and not known to be on the replicas
├── TooFewReplicas      SLAVE_NOT_AVAILABLE     nothing was stored; another broker may accept it
├── TooMuchUnflushed    SYSTEM_BUSY             the disk does not keep up
├── TooManyTimers       FLOW_CONTROL            no more messages may wait for their own time
├── TooManyNames        FLOW_CONTROL            no more topics, groups or open transactions
├── TooManyCreations    FLOW_CONTROL            one caller creates too many topics and groups
├── NotRecalled         ILLEGAL_OPERATION       the message does not wait any more
├── RequesterAbsent     CONSUMER_NOT_ONLINE     no client waits here for the reply
├── TooManyReplies      FLOW_CONTROL            a requester does not read its replies
├── ReplicaRefused      ILLEGAL_OPERATION       a slave has another log, or other options
├── StreamBroken        SYSTEM_ERROR            invalid message of a replica: it starts again
├── MasterOutdated      SERVICE_NOT_AVAILABLE   there is a higher epoch than this master's
├── EpochNotBelieved    ILLEGAL_OPERATION       a replica is corrupt: its epoch is too high
└── MessagesUnreadable  ILLEGAL_OPERATION       queues with messages would lose their readers
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path

from aerobee_wire.status import Code, MqError

# The process or the system lacks a resource; the file is not damaged.
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
SHORTAGES = (*NO_DESCRIPTOR, errno.ENOMEM)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# The file system cannot read the file; EUCLEAN exists on Linux alone.
_UNREADABLE = (errno.EIO, errno.EBADMSG, getattr(errno, "EUCLEAN", errno.EIO))


def is_unreadable(error: Exception) -> bool:
    """Return whether the disk failed to read, and the process does not only lack a resource."""
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in _UNREADABLE


def place(path: Path) -> str:
    """Return the folder and name of a file of the store, without the path of the store.

    Clients read error messages, and must not learn the location of the store.
    """
    return f"{path.parent.name}/{path.name}"


def reason_of(error: OSError) -> str:
    """Return the reason that the operating system gives, with the `place` of the file."""
    if not isinstance(error.filename, str) or not error.strerror:
        return str(error)
    return f"{place(Path(error.filename))}: {error.strerror}"


class StoreError(MqError):
    """A failure between the store and its disk, or a message that the store cannot keep."""


class MessageIllegal(StoreError):
    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(Code.MESSAGE_ILLEGAL, message, about=about)


class DiskFull(StoreError):
    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(Code.DISK_FULL, message, retry_after_ms=1_000, about=about)


class StoreReadOnly(StoreError):
    def __init__(self, reason: str) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"the store is read-only: {reason}; send to another broker, and restart this one "
            "once its disk is well",
        )


class NotMaster(StoreError):
    """The broker is not master.

    `reason` says which role the broker has, and which broker is master if that is known.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"nothing was stored: {reason}; ask a name server for the route again",
        )


class NotServed(MqError):
    """The present role does not serve this call.

    `role` describes the role of this broker. `master_address` is the "host:port" of its master, or
    "" if unknown.
    """

    def __init__(self, role: str, master_address: str) -> None:
        known = f"the master is at {master_address}" if master_address else "no master is known"
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"this broker is {role}, {known}: ask a name server for the route again",
            master_address=master_address,
        )


class MembersNotKnown(MqError):
    """A new master does not yet know all members of a group.

    With an incomplete list, the listed members would also take the queues of the missing members.
    """

    def __init__(self, left_ms: int) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"this broker has just become master, and members of groups still register: "
            f"ask again in {left_ms} ms",
            retryable=True,
        )


class StoreWriteError(StoreError):
    def __init__(self, message: str) -> None:
        super().__init__(Code.SERVICE_NOT_AVAILABLE, message)


class StoreFlushError(StoreError):
    def __init__(self, message: str) -> None:
        super().__init__(Code.SERVICE_NOT_AVAILABLE, message)


class ChunkRefused(StoreError):
    """A replica cannot append these bytes of a master's log.

    The replica starts again with a handshake, and requests the log from its own end.
    """

    def __init__(self, physical_offset: int, reason: str) -> None:
        super().__init__(
            Code.SYSTEM_ERROR,
            f"this replica does not take the log at physical offset {physical_offset}: {reason}; "
            "restart its stream",
        )


class CutRefused(StoreError):
    def __init__(self, physical_offset: int, reason: str) -> None:
        super().__init__(
            Code.SYSTEM_ERROR,
            f"the log is not cut at physical offset {physical_offset}: {reason}",
        )


class StoreReadError(StoreError):
    def __init__(self, error: OSError) -> None:
        super().__init__(
            Code.SYSTEM_ERROR,
            f"a file of the store cannot be read: {reason_of(error)}; the next start of the broker "
            "rebuilds it from the commit log",
        )


class TransientReadError(StoreReadError):
    """The log cannot be read for now. Damage is not known, so a later read may succeed."""

    def __init__(self, error: OSError) -> None:
        advice = "check the disk: the read is retried, for a minute at least"
        if error.errno in SHORTAGES:
            advice = "raise the limit of open files, or make memory free"
        StoreError.__init__(
            self,
            Code.SYSTEM_ERROR,
            f"the commit log cannot be read for now: {reason_of(error)}; {advice}",
        )


class RepairPending(TransientReadError):
    """The record is damaged, and another replica may have it: a later read may succeed."""

    def __init__(self, physical_offset: int) -> None:
        StoreError.__init__(
            self,
            Code.SYSTEM_ERROR,
            f"the record at physical offset {physical_offset} is damaged, and is being repaired "
            "from another replica; retry",
        )


class MessageNotFound(StoreError):
    def __init__(self, message: str) -> None:
        super().__init__(Code.QUERY_NOT_FOUND, message)


class MessageCorrupted(StoreError):
    """A record fails its check. `file` and `physical_offset` locate the record."""

    def __init__(self, file: Path, physical_offset: int, reason: str) -> None:
        super().__init__(
            Code.MESSAGE_CORRUPTED,
            f"the record at physical offset {physical_offset} in {place(file)} is damaged "
            f"({reason}) and is not served; restore it from another copy",
            about=place(file),
        )
        self.file = file
        self.physical_offset = physical_offset


class StoreOpenError(StoreError):
    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(Code.SYSTEM_ERROR, message, about=about)


class StoreLocked(StoreOpenError):
    def __init__(self, path: Path) -> None:
        super().__init__(
            f"the data directory {path} is held by another broker: stop it, or give another one",
            str(path),
        )


class CommitLogBroken(StoreOpenError):
    """The files of the commit log do not fit together: one is missing, or has another size.

    `about` names the file, or the option `mappedFileSizeCommitLog`.
    """


class ConfigFileDamaged(MqError):
    def __init__(
        self,
        path: Path,
        problems: str,
        advice: str = "restore the file, or remove it and its .bak to start without",
    ) -> None:
        super().__init__(Code.SYSTEM_ERROR, f"cannot read {problems}; {advice}", about=str(path))


class InvalidParameter(MqError):
    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(Code.INVALID_PARAMETER, message, about=about)


class NoPermission(MqError):
    def __init__(self, message: str, about: str = "") -> None:
        super().__init__(Code.NO_PERMISSION, message, about=about)


class TopicNotExist(MqError):
    """The topic does not exist.

    `remedy` says how to solve that. The default is right for any topic.
    """

    def __init__(self, topic: str, remedy: str = "") -> None:
        remedy = remedy or (
            f"create it (aerobee topic create {topic}), or send to it where autoCreateTopicEnable "
            "is on"
        )
        super().__init__(
            Code.TOPIC_NOT_EXIST, f"this broker has no topic {topic!r}: {remedy}", about="topic"
        )


class QueueNotExist(MqError):
    def __init__(self, topic: str, queue_id: int, queue_count: int) -> None:
        super().__init__(
            Code.QUEUE_NOT_EXIST,
            f"queue {queue_id} of {topic} is out of range: it has queues 0 to {queue_count - 1} "
            "here; ask a name server for its route again",
            about="queue_id",
        )


class GroupNotExist(MqError):
    def __init__(self, consumer_group: str) -> None:
        super().__init__(
            Code.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"this broker has no consumer group {consumer_group!r}: check the name (aerobee group "
            f"list), create the group (aerobee group create {consumer_group}), or turn "
            "autoCreateSubscriptionGroup on",
            about="consumer_group",
        )


class LetterJobNotExist(MqError):
    def __init__(self, job_id: str) -> None:
        super().__init__(
            Code.QUERY_NOT_FOUND,
            f"this broker has no job {job_id[:80]!r} over dead letters: see aerobee dlq jobs list",
            about="job_id",
        )


class LetterJobRefused(MqError):
    def __init__(self, reason: str) -> None:
        super().__init__(Code.ILLEGAL_OPERATION, reason, about="job_id")


class QueueLockNotHeld(MqError):
    """The caller does not hold the lock of a queue.

    `holder` is the client id of the holder, or "" if the lock is free.
    """

    def __init__(self, consumer_group: str, topic: str, queue_id: int, holder: str) -> None:
        reason = (
            f"the client {holder} holds it: all members of a group that consumes in order lock "
            "the queues that they consume"
            if holder
            else "it is free: lock the queue again"
        )
        super().__init__(
            Code.QUEUE_LOCK_NOT_HELD,
            f"the caller does not hold the lock of queue {queue_id} of {topic} for group "
            f"{consumer_group}; {reason}",
        )


class NotAMember(MqError):
    def __init__(self, consumer_group: str, client_id: str) -> None:
        super().__init__(
            Code.CONSUMER_NOT_ONLINE,
            f"the client {client_id!r} is not a member of group {consumer_group!r} here: send a "
            "heartbeat first",
            retryable=True,
            about="client_id",
        )


class SubscriptionNotExist(MqError):
    def __init__(self, message: str) -> None:
        super().__init__(Code.SUBSCRIPTION_NOT_EXIST, message)


class TransactionNotOpen(MqError):
    def __init__(self, transaction_id: str) -> None:
        super().__init__(
            Code.INVALID_TRANSACTION_ID,
            f"no transaction {transaction_id[:64]!r} of this producer group is open: it has been "
            "ended, was given up after its checks, or never began; send the message again if it "
            "must be delivered",
        )


class FlushTimeout(MqError):
    def __init__(self, timeout_ms: int) -> None:
        super().__init__(
            Code.FLUSH_DISK_TIMEOUT,
            f"stored, but not on the disk within {timeout_ms} ms (syncFlushTimeout): "
            "sending again may make a duplicate",
        )


class FlushSlaveTimeout(FlushTimeout):
    """The append is durable here, but not on enough replicas in time."""

    def __init__(self, timeout_ms: int) -> None:
        MqError.__init__(
            self,
            Code.FLUSH_SLAVE_TIMEOUT,
            f"stored, but not on enough replicas within {timeout_ms} ms: sending again may make a "
            "duplicate",
        )


class Deposed(MqError):
    """Another replica became master while a call was running."""

    def __init__(self) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            "this broker is no longer master: what was sent may be stored or not; ask a name "
            "server for the route again",
        )


class TooFewReplicas(MqError):
    """Too few replicas are in sync. `missing` names the other replicas for the operator."""

    def __init__(self, in_sync: int, required: int, missing: str) -> None:
        super().__init__(
            Code.SLAVE_NOT_AVAILABLE,
            f"nothing was stored: {in_sync} of the {required} copies that inSyncReplicas asks for "
            f"are in sync, without {missing}; send to another broker, or bring that replica back",
            about="inSyncReplicas",
        )


class TooMuchUnflushed(MqError):
    def __init__(self, unflushed: int) -> None:
        super().__init__(
            Code.SYSTEM_BUSY,
            f"{unflushed} bytes wait for the disk: send again in a moment, or elsewhere",
            retry_after_ms=100,
        )


class TooManyTimers(MqError):
    def __init__(self, limit: int) -> None:
        super().__init__(
            Code.FLOW_CONTROL,
            f"{limit} messages wait for their time (timerMaxMessages): send again when some are "
            "delivered, or to another broker",
            retry_after_ms=1_000,
        )


class TooManyNames(MqError):
    """A limit of this broker is reached. `remedy` says how to get below it."""

    def __init__(self, kind: str, limit: int, option: str, remedy: str) -> None:
        super().__init__(
            Code.FLOW_CONTROL,
            f"this broker has {limit} {kind}, the most that {option} allows: {remedy}, or raise "
            f"{option}",
            retry_after_ms=1_000,
            about=option,
        )


class TooManyCreations(MqError):
    def __init__(self, creator: str, limit: int, wait_ms: int) -> None:
        super().__init__(
            Code.FLOW_CONTROL,
            f"{creator} created {limit} topics and groups in a minute by using them "
            "(maxAutoCreations): retry later, or create them with 'aerobee topic create' and "
            "'aerobee group create'",
            retry_after_ms=wait_ms,
            about="maxAutoCreations",
        )


class NotRecalled(MqError):
    def __init__(self, reason: str, about: str = "") -> None:
        message = f"the message was not recalled: {reason}"
        super().__init__(Code.ILLEGAL_OPERATION, message, about=about)


class RequesterAbsent(MqError):
    """The requester does not wait for replies at this broker.

    `may_return` is True if its stream broke just now, or if this broker has just started.
    """

    def __init__(self, client_id: str, *, may_return: bool) -> None:
        super().__init__(
            Code.CONSUMER_NOT_ONLINE,
            f"client {client_id} does not wait for replies at this broker"
            + (": its connection may be on its way back" if may_return else ": it has gone"),
            retryable=may_return,
            about="client_id",
        )


class TooManyReplies(MqError):
    def __init__(self, client_id: str, count: int) -> None:
        super().__init__(
            Code.FLOW_CONTROL,
            f"{count} replies wait until client {client_id} reads them: reply later",
        )


class ReplicaRefused(MqError):
    """A slave cannot follow this master until the operator changes the setting in `about`."""

    def __init__(self, message: str, about: str) -> None:
        super().__init__(Code.ILLEGAL_OPERATION, message, about=about)


class StreamBroken(MqError):
    def __init__(self, reason: str) -> None:
        super().__init__(
            Code.SYSTEM_ERROR,
            f"the replication stream is ended: {reason}; it begins again with a handshake",
            retryable=True,
        )


class MasterOutdated(MqError):
    """A replica knows an epoch, `highest`, that is higher than the epoch of this master."""

    def __init__(self, master: str, epoch: int, highest: int) -> None:
        super().__init__(
            Code.SERVICE_NOT_AVAILABLE,
            f"replica {master} serves as master in epoch {epoch}, and there is epoch {highest}: "
            "ask a name server for the master again",
        )
        self.highest = highest


class EpochNotBelieved(MqError):
    """A replica reports an epoch that its group cannot have reached."""

    def __init__(self, replica: str, epoch: int, known: int) -> None:
        super().__init__(
            Code.ILLEGAL_OPERATION,
            f"epoch {epoch} is not one of this group, where {replica} knows of epoch {known}: the "
            "replica that reports it is corrupt; start that one with an empty storePathRootDir",
        )


class MessagesUnreadable(MqError):
    def __init__(self, topic: str, messages: Mapping[int, int]) -> None:
        listed = ", ".join(f"{count} in queue {queue_id}" for queue_id, count in messages.items())
        super().__init__(
            Code.ILLEGAL_OPERATION,
            f"messages of {topic} would become unreadable ({listed}): take fewer queues to write "
            "first, and fewer to read when these are consumed; or say force",
            about="read_queue_count",
        )
