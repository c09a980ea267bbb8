"""Decide who may call which RPC: one row for each RPC, and no default.

A row names the roles whose certificates may call the RPC, and the rights that a user needs. Both
are checked in two steps, so that a server does not read the request of a caller without the role:
`admit` before the request is read, and `authorize` with the request. If a user has signed the call,
the user's policies decide, and the role of the certificate does not count. This module does no I/O,
and does not know the generated code: it reads fields of requests by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any

from aerobee_wire.access.caller import Caller
from aerobee_wire.access.policies import (
    CLUSTER,
    CREATE,
    DELETE,
    GET,
    GROUP,
    LIST,
    PUB,
    SUB,
    TOPIC,
    UPDATE,
    Need,
    topic_need,
)
from aerobee_wire.identity import ADMIN, BROKER, CLIENT, CONSOLE, PROXY, Identity
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import AUTO_CREATE_TOPIC

# In place of a field: the right is needed for each resource that the answer contains.
EACH = "*"


@dataclass(frozen=True, slots=True)
class Right:
    """At least one of `actions` on each resource that `field` of the request names.

    `field` is a path such as "topic" or "leases[].topic", where [] is each element. It is empty for
    the cluster. If the field of a request is empty, no right is needed, or Get on the cluster if
    `or_cluster` is true: then the request is about all resources. `free` needs no right.
    """

    actions: tuple[str, ...]
    kind: str
    field: str = ""
    or_cluster: bool = False
    free: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """The permission for one RPC.

    - `roles` may call it with a certificate of the cluster.
    - `rights` are needed by a user, () for none. If it is None, no user may call.
    - `own` is a field of the request that must be the name in the caller's certificate.
    - `same_name`: the name in the caller's certificate must be the name of this broker.
    - `is_open`: each caller may call it, also without a role.
    - `always_rejects`: other callers are rejected even if calls are only observed, because the
      request or the answer has secrets.
    """

    roles: frozenset[str] = frozenset()
    rights: tuple[Right, ...] | None = None
    own: str = ""
    same_name: bool = False
    is_open: bool = False
    always_rejects: bool = False

    @property
    def is_change(self) -> bool:
        """Return whether the RPC changes a resource: its rights say so. A send changes none."""
        actions = {action for right in self.rights or () for action in right.actions}
        return not actions.isdisjoint((CREATE, UPDATE, DELETE))


class NotPermitted(MqError):
    """The caller may not make this call. The message names its role and the RPC."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(Code.NO_PERMISSION, message, about=path)


def _rpcs(service: str, rows: Mapping[str, Row]) -> dict[str, Row]:
    return {f"/{service}/{method}": row for method, row in rows.items()}


def _on(actions: str, kind: str, *fields: str, or_cluster: bool = False) -> tuple[Right, ...]:
    """Return one right for each field; `actions` is like "Pub|Sub"."""
    given = tuple(actions.split("|"))
    return tuple(Right(given, kind, field, or_cluster) for field in fields or ("",))


def _row(*roles: str, rights: tuple[Right, ...] = ()) -> Row:
    return Row(frozenset(roles), rights)


_MESSAGING = (CLIENT, PROXY, ADMIN)  # roles that send and receive
_READERS = (CLIENT, PROXY, CONSOLE, ADMIN)  # roles that read topics, groups and the cluster
_GET_CLUSTER = _on(GET, CLUSTER)
_UPDATE_CLUSTER = _on(UPDATE, CLUSTER)
_OPEN = Row(is_open=True)


def _of_brokers_only(*, own: str = "") -> Row:
    """Return the row of an RPC between brokers and name servers, or between replicas."""
    return Row(frozenset({BROKER}), own=own, same_name=not own)


def _consumes(group: str, *topic_fields: str) -> Row:
    return _row(
        *_MESSAGING,
        rights=_on(SUB, GROUP, group) + (_on(SUB, TOPIC, *topic_fields) if topic_fields else ()),
    )


# Users and policies. Only processes of the cluster get secrets.
_ACCESS_ROWS: Mapping[str, Row] = {
    **dict.fromkeys(
        ("PutUser", "DeleteUser", "PutAcl", "DeleteAcl", "PutQuota", "DeleteQuota"),
        _row(ADMIN, rights=_UPDATE_CLUSTER),
    ),
    **dict.fromkeys(
        ("GetUser", "ListUsers", "GetAcl", "ListAcls", "ListQuotas", "TestAccess", "ListTable"),
        _row(CONSOLE, ADMIN, rights=_GET_CLUSTER),
    ),
    "Watch": Row(frozenset({BROKER, PROXY})),
    "MergeTable": Row(frozenset({BROKER})),
}
_ACCESS = {method: replace(row, always_rejects=True) for method, row in _ACCESS_ROWS.items()}
_AUDIT = {"ListAuditLines": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER)}
_REFLECTION = {"ServerReflectionInfo": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER)}

_CONFIG: Mapping[str, Row] = {
    "GetConfig": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER),
    "UpdateConfig": _row(ADMIN, rights=_UPDATE_CLUSTER),
}

TABLE: Mapping[str, Row] = {
    **_rpcs(
        "aerobee.namesrv.v1.NamesrvService",
        {
            "RegisterBroker": _of_brokers_only(own="broker_name"),
            "UnregisterBroker": _of_brokers_only(own="broker_name"),
            "BrokerHeartbeat": _of_brokers_only(own="broker_name"),
            "QueryDataVersion": _of_brokers_only(own="broker_name"),
            "WatchRegistration": _of_brokers_only(own="broker_name"),
            "RecordLogs": _of_brokers_only(own="broker_name"),
            "RegisterProxy": Row(frozenset({PROXY})),
            "UnregisterProxy": Row(frozenset({PROXY})),
            # A producer reads which brokers create the topics that are missing.
            "GetTopicRoute": _row(
                *_READERS,
                BROKER,
                rights=(Right((PUB, SUB, GET), TOPIC, "topic", free=AUTO_CREATE_TOPIC),),
            ),
            "ListTopics": _row(*_READERS, rights=_on(LIST, TOPIC, EACH)),
            "GetClusterInfo": _row(*_READERS),
            "WatchBrokers": _row(*_READERS, BROKER),
            "GetBrokerMemberGroup": _row(*_READERS, BROKER),
            "WipeWritePermission": _row(ADMIN, rights=_UPDATE_CLUSTER),
            "AddWritePermission": _row(ADMIN, rights=_UPDATE_CLUSTER),
            "DeleteTopic": _row(ADMIN, rights=_on(DELETE, TOPIC, "topic")),
            "RegisterTopic": _row(ADMIN, rights=_on(CREATE, TOPIC, "topic")),
            "PutKvConfig": _row(ADMIN, rights=_UPDATE_CLUSTER),
            "GetKvConfig": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER),
            "DeleteKvConfig": _row(ADMIN, rights=_UPDATE_CLUSTER),
            "ListKvConfig": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER),
            "GetRuntimeConfig": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER),
            "UpdateRuntimeConfig": _row(ADMIN, rights=_UPDATE_CLUSTER),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.MessageService",
        {
            "Send": _row(*_MESSAGING, rights=_on(PUB, TOPIC, "messages[].topic", "batch.topic")),
            # The console browses queues. A pull changes nothing.
            "Pull": _row(
                *_MESSAGING,
                CONSOLE,
                rights=_on(SUB, GROUP, "consumer_group") + _on(SUB, TOPIC, "topic"),
            ),
            "SendBack": _consumes("consumer_group"),
            "GetMessage": _row(CLIENT, CONSOLE, ADMIN, rights=_GET_CLUSTER),
            "RecallMessage": _row(*_MESSAGING, rights=_on(PUB, TOPIC, "topic")),
            "SendReply": _row(*_MESSAGING),
            "QueryMessages": _row(CLIENT, CONSOLE, ADMIN, rights=_on("Sub|Get", TOPIC, "topic")),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.SearchService",
        {
            "SearchMessages": _row(*_READERS, rights=_on("Sub|Get", TOPIC, "topic")),
            "FindMessage": _row(CLIENT, CONSOLE, ADMIN, rights=_GET_CLUSTER),
            "TrackMessage": _row(CLIENT, CONSOLE, ADMIN, rights=_GET_CLUSTER),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.PopService",
        {
            "Pop": _consumes("consumer_group", "topic"),
            "Notification": _consumes("consumer_group", "topic"),
            "Ack": _row(
                *_MESSAGING,
                rights=_on(SUB, GROUP, "leases[].consumer_group", "lease_sets[].consumer_group"),
            ),
            "ChangeInvisibleDuration": _consumes("changes[].lease.consumer_group"),
            "DeadLetter": _consumes("entries[].lease.consumer_group"),
            "ListBlockedMessageGroups": _row(*_READERS, rights=_on(GET, GROUP, "consumer_group")),
            "SkipMessage": _row(ADMIN, rights=_on(UPDATE, GROUP, "consumer_group")),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.LiteService",
        {
            "SyncLiteTopics": _consumes("consumer_group", "parent"),
            "LitePop": _consumes("consumer_group", "parent"),
            "ListLiteTopics": _row(*_READERS, rights=_on(GET, TOPIC, "parent")),
            "ListLiteClients": _row(*_READERS, rights=_on(GET, TOPIC, "parent")),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.TransactionService",
        {"EndTransaction": _row(*_MESSAGING)},
    ),
    **_rpcs(
        "aerobee.broker.v1.ClientService",
        {
            "Heartbeat": _row(
                *_MESSAGING,
                rights=_on(SUB, GROUP, "consumers[].consumer_group")
                + _on(SUB, TOPIC, "consumers[].subscriptions[].topic"),
            ),
            "UnregisterClient": _consumes("consumer_group"),
            "WatchClient": _row(*_MESSAGING),
            "ListGroupMembers": _row(*_READERS, rights=_on("Sub|Get", GROUP, "consumer_group")),
            "LockQueues": _consumes("consumer_group", "queues[].topic"),
            "UnlockQueues": _consumes("consumer_group", "queues[].topic"),
            "ListClients": _row(*_READERS, rights=_on(GET, GROUP, "group", or_cluster=True)),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.OffsetService",
        {
            "QueryConsumerOffsets": _row(*_READERS, rights=_on("Sub|Get", GROUP, "consumer_group")),
            "UpdateConsumerOffsets": _consumes("consumer_group", "offsets[].topic"),
            "GetQueueOffsets": _row(*_READERS, rights=_on("Pub|Sub|Get", TOPIC, "topic")),
            "SearchOffset": _row(*_READERS, rights=_on("Sub|Get", TOPIC, "topic")),
            # A proxy resets and forgets offsets for the users of its administration port.
            "ResetConsumerOffsets": _row(PROXY, ADMIN, rights=_on(UPDATE, GROUP, "consumer_group")),
            "ForgetConsumerOffsets": _row(
                PROXY, ADMIN, rights=_on(UPDATE, GROUP, "consumer_group")
            ),
            "GetConsumeStats": _row(*_READERS, rights=_on(GET, GROUP, "consumer_group")),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.AdminService",
        {
            # A proxy creates topics for its clients, and a broker on the other brokers.
            "PutTopic": _row(PROXY, BROKER, ADMIN, rights=_on(CREATE, TOPIC, "topic.topic")),
            "SpecifyMessageType": _row(PROXY, ADMIN, rights=_on(UPDATE, TOPIC, "topic")),
            "UpdateTopic": _row(ADMIN, rights=_on(UPDATE, TOPIC, "topic.topic")),
            "DeleteTopic": _row(ADMIN, rights=_on(DELETE, TOPIC, "topic")),
            "GetTopic": _row(*_READERS, BROKER, rights=_on("Pub|Sub|Get", TOPIC, "topic")),
            "ListTopics": _row(*_READERS, rights=_on(LIST, TOPIC, EACH)),
            "DescribeTopic": _row(*_READERS, rights=_on(GET, TOPIC, "topic")),
            "PutGroup": _row(ADMIN, rights=_on(CREATE, GROUP, "group.consumer_group")),
            "UpdateGroup": _row(ADMIN, rights=_on(UPDATE, GROUP, "group.consumer_group")),
            "DeleteGroup": _row(ADMIN, rights=_on(DELETE, GROUP, "consumer_group")),
            "GetGroup": _row(*_READERS, rights=_on("Sub|Get", GROUP, "consumer_group")),
            "ListGroups": _row(*_READERS, rights=_on(LIST, GROUP, EACH)),
            "DescribeGroup": _row(*_READERS, rights=_on(GET, GROUP, "consumer_group")),
            "GetBrokerStatus": _row(*_READERS, BROKER, rights=_GET_CLUSTER),
            "GetStats": _row(*_READERS, rights=_GET_CLUSTER),
            "ListLeases": _row(PROXY, CONSOLE, ADMIN, rights=_on(GET, GROUP, "consumer_group")),
            "ReleaseLease": _row(ADMIN, rights=_on(UPDATE, GROUP, "consumer_group")),
            "ListTransactions": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER),
            "ListDelayed": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER),
            "WatchStats": _row(*_READERS, rights=_GET_CLUSTER),
            "SetDraining": _row(ADMIN, rights=_UPDATE_CLUSTER),
            "GetBacklog": _row(*_READERS, rights=_GET_CLUSTER),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.DeadLetterService",
        {
            "PreviewLetterJob": _row(ADMIN, rights=_on(GET, GROUP, "spec.consumer_group")),
            "StartLetterJob": _row(ADMIN, rights=_on(UPDATE, GROUP, "spec.consumer_group")),
            "CancelLetterJob": _row(ADMIN, rights=_UPDATE_CLUSTER),
            "ListLetterJobs": _row(
                CONSOLE, ADMIN, rights=_on(GET, GROUP, "consumer_group", or_cluster=True)
            ),
            "ListLetterFailures": _row(CONSOLE, ADMIN, rights=_GET_CLUSTER),
            "ListLetterStates": _row(*_READERS, rights=_on(GET, GROUP, "consumer_group")),
        },
    ),
    **_rpcs("aerobee.broker.v1.ConfigService", _CONFIG),
    **_rpcs("aerobee.broker.v1.ProxyConfigService", _CONFIG),
    **_rpcs(
        "aerobee.broker.v1.ReplicaService",
        {
            "GetReplicationStatus": _row(*_READERS, BROKER, rights=_GET_CLUSTER),
            "Promote": _row(ADMIN, rights=_UPDATE_CLUSTER),
            "HandOver": _of_brokers_only(),
            "NoteEpoch": _of_brokers_only(),
            "ListDiverged": _row(ADMIN, rights=_GET_CLUSTER),
            "ReadDiverged": _row(ADMIN, rights=_GET_CLUSTER),
            "ReadLog": _of_brokers_only(),
        },
    ),
    **_rpcs(
        "aerobee.broker.v1.ReplicationService",
        {"Follow": _of_brokers_only(), "GetSnapshot": _of_brokers_only()},
    ),
    # A login proves a user, so that no role suffices.
    **_rpcs(
        "aerobee.access.v1.NamesrvAccessService",
        {**_ACCESS, "LogIn": Row(rights=(), always_rejects=True)},
    ),
    **_rpcs("aerobee.access.v1.BrokerAccessService", _ACCESS),
    **_rpcs("aerobee.audit.v1.NamesrvAuditService", _AUDIT),
    **_rpcs("aerobee.audit.v1.BrokerAuditService", _AUDIT),
    # It moves the time of a suite and kills its broker, for tests.
    **_rpcs(
        "aerobee.suite.v1.SuiteService",
        dict.fromkeys(
            ("GetSuite", "Advance", "Settle", "KillBroker", "RestartBroker", "Refuse"),
            Row(frozenset({ADMIN})),
        ),
    ),
    # A load balancer and a health check have no role.
    **_rpcs("grpc.health.v1.Health", dict.fromkeys(("Check", "List", "Watch"), _OPEN)),
    **_rpcs("grpc.reflection.v1.ServerReflection", _REFLECTION),
    **_rpcs("grpc.reflection.v1alpha.ServerReflection", _REFLECTION),
}


def rpc_name(path: str) -> str:
    """Return the RPC at `path` without its package, for people: "AdminService/DeleteTopic"."""
    service, _, method = path[1:].rpartition("/")
    return f"{service.rpartition('.')[2]}/{method}"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Check the callers of one service.

    Args:
        cluster: The cluster that certificates of callers must name.
        name: The brokerName of this process, or "" for a name server.
        table: A row for each RPC of the service.
    """

    cluster: str
    name: str = ""
    table: Mapping[str, Row] = field(default_factory=lambda: TABLE, repr=False)

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return those paths of RPCs that have no row."""
        return sorted(set(paths) - self.table.keys())

    def always_rejects(self, path: str) -> bool:
        """Return whether other callers are rejected even if calls are only observed."""
        return self.table[path].always_rejects

    def admit(self, caller: Caller, path: str) -> None:
        """Check the role of a caller, or whether users may call, before the request is read.

        The role of a caller that signed as a user does not count.

        Args:
            caller: The caller.
            path: "/package.Service/Method".

        Raises:
            NotPermitted: No user may call; or the caller has no role, is of another cluster, or
                its role may not call.
        """
        row = self.table[path]
        if row.is_open:
            return
        if caller.user is None:
            self._admit_role(row, caller.identity, path)
        elif row.rights is None:
            raise NotPermitted(
                f"user {caller.user.name!r} may not call {rpc_name(path)}: it is for processes of "
                "the cluster only",
                path,
            )

    def _admit_role(self, row: Row, caller: Identity | None, path: str) -> None:
        if caller is None:
            raise NotPermitted(
                f"{rpc_name(path)} needs a signature or a role: sign the call as a user, if this "
                "service has authenticationEnabled=true; or present a certificate with a URI "
                "aerobee://CLUSTER/ROLE/NAME, such as one of 'aerobee certs issue'",
                path,
            )
        if caller.cluster != self.cluster:
            raise NotPermitted(
                f"{caller} may not call {rpc_name(path)} in cluster {self.cluster!r}: use a "
                "certificate of this cluster, or set the same tlsClusterName",
                path,
            )
        if caller.role not in row.roles:
            if not row.roles:
                raise NotPermitted(
                    f"{rpc_name(path)} needs a signature, because the certificate {caller} does "
                    "not suffice: give the client the access key and the secret key of a "
                    "user, and set authenticationEnabled=true at the server",
                    path,
                )
            allowed = ", ".join(sorted(row.roles))
            raise NotPermitted(
                f"role {caller.role!r} ({caller}) may not call {rpc_name(path)}: use a "
                f"certificate with one of these roles: {allowed}",
                path,
            )
        if row.same_name and caller.name != self.name:
            raise NotPermitted(
                f"{caller} may not call {rpc_name(path)} of broker {self.name!r}: only brokers of "
                f"that name may; use the certificate of 'aerobee certs issue --name {self.name}'",
                path,
            )

    def authorize(self, caller: Caller, path: str, request: Any) -> None:
        """Check what the caller asks for. `admit` has admitted the caller.

        Raises:
            NotPermitted: A user lacks a right, or a broker names another one than itself.
        """
        row = self.table[path]
        if caller.user is not None:
            for need in needs_of(row, request, self.cluster):
                if not caller.may(need):
                    raise NotPermitted(need.missing_for(caller.user.name), path)
            return
        own, holder = row.own, caller.identity
        if own and holder is not None and getattr(request, own) != holder.name:
            given = str(getattr(request, own))[:64]
            raise NotPermitted(
                f"{holder} may not call {rpc_name(path)} for broker {given!r}: use a certificate "
                f"with that name ('aerobee certs issue --role broker --name {given}')",
                path,
            )


def needs_of(row: Row, request: Any, cluster: str) -> list[Need]:
    """Return the rights that a user needs for a request, each once."""
    found: dict[Need, None] = {}
    for right in row.rights or ():
        if right.field == EACH:
            continue
        if right.kind == CLUSTER:
            found[Need(CLUSTER, cluster, right.actions)] = None
            continue
        names = _reader(right.field)(request)
        if len(names) > 1:  # a batch has a topic for each message, but few different ones
            names = dict.fromkeys(names)
        is_about_all = right.or_cluster
        for name in names:
            if not name:
                continue
            is_about_all = False
            if name == right.free:
                continue
            if right.kind == TOPIC:
                found[topic_need(name, *right.actions)] = None
            else:
                found[Need(right.kind, name, right.actions)] = None
        if is_about_all:
            found[Need(CLUSTER, cluster, (GET,))] = None
    return list(found)


# The RPCs whose answers have bodies of messages. Name servers have none.
READS = frozenset(
    f"/aerobee.broker.v1.{name}"
    for name in (
        "MessageService/Pull",
        "MessageService/GetMessage",
        "MessageService/QueryMessages",
        "SearchService/SearchMessages",
        "SearchService/FindMessage",
        "PopService/Pop",
        "LiteService/LitePop",
        "ReplicaService/ReadDiverged",
    )
) | {f"/apache.rocketmq.v2.MessagingService/{name}" for name in ("ReceiveMessage", "PullMessage")}

# The fields with the subject of a change that needs a right on the cluster, by RPC.
_SUBJECTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("PutUser", "DeleteUser", "PutAcl", "DeleteAcl"), ("User:username",)),
    "PutQuota": (":quota.subject",),
    "DeleteQuota": (":subject",),
    **dict.fromkeys(("WipeWritePermission", "AddWritePermission"), ("Broker:broker_name",)),
    **dict.fromkeys(("PutKvConfig", "DeleteKvConfig"), ("Key:key",)),
    **dict.fromkeys(
        ("UpdateConfig", "UpdateRuntimeConfig"), ("Option:entries[]", "Option:unset[]")
    ),
    "CancelLetterJob": ("Job:job_id",),
}


def resources_of(path: str, request: Any, cluster: str) -> list[str]:
    """Return the resources that a call is about, each once, such as "Topic:orders".

    These are names only, no values. For some RPCs, it is the cluster.

    Args:
        path: "/package.Service/Method" of a row.
        request: The request.
        cluster: The cluster of this process.
    """
    found: dict[str, None] = {}
    for subject in _SUBJECTS.get(path.rpartition("/")[2], ()):
        kind, _, name = subject.partition(":")
        for value in _reader(name)(request):
            found[f"{kind}:{value}" if kind else value] = None
    if not found:
        found = {
            f"{need.kind}:{need.name}": None for need in needs_of(TABLE[path], request, cluster)
        }
    return list(found)


@lru_cache(maxsize=256)  # the fields of all rows
def _reader(field: str) -> Callable[[Any], Collection[Any]]:
    """Return a function that returns the values of a field of a message."""
    outer, elements, inner = field.partition("[]")
    get = attrgetter(outer)
    if not elements:
        return lambda message: (get(message),)
    if not inner:
        return lambda message: _elements(get(message))
    read = _reader(inner[1:])
    return lambda message: [value for each in _elements(get(message)) for value in read(each)]


def _elements(field: Any) -> Collection[Any]:
    """Return the elements of a repeated field, or the keys of a map."""
    keys = getattr(field, "keys", None)  # a check of the type takes 1 µs
    # [:], because the end of an iteration over the field itself takes 4 µs.
    found: Collection[Any] = field[:] if keys is None else keys()
    return found
