"""The table of permissions, its page, and who may call."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from aerobee.broker.v1 import admin_pb2, client_pb2, config_pb2, message_pb2, pop_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from google.protobuf import message_factory
from google.protobuf.descriptor import ServiceDescriptor

from aerobee_wire.access.caller import Caller as CallOf
from aerobee_wire.access.policies import ACTIONS, ALL_ACTIONS, GROUP, TOPIC, Need, policy
from aerobee_wire.access.policies import CLUSTER as POLICY_CLUSTER
from aerobee_wire.access.signature import Signed
from aerobee_wire.access.users import User
from aerobee_wire.identity import ROLES, Identity, identity_of
from aerobee_wire.permissions import (
    EACH,
    TABLE,
    NotPermitted,
    Permissions,
    Row,
    needs_of,
    resources_of,
)
from aerobee_wire.rpcs import (
    DELETE_TOPIC,
    FOLLOW,
    GET_MESSAGE,
    GET_TOPIC,
    HEARTBEAT,
    LIST_CLIENTS,
    POP,
    PULL,
    QUERY_MESSAGES,
    REGISTER_BROKER,
    SEARCH_MESSAGES,
    SEND,
    Rpc,
)
from aerobee_wire.status import Code
from aerobee_wire.topics import dead_letter_topic, retry_topic
from support.codes import raises_code
from support.permissions.page import (
    BROKER,
    CALLERS,
    CLUSTER,
    SYSTEM_TOPICS,
    Caller,
    Expected,
    Grant,
    may_call,
    method_of,
    read,
    request_for,
    user_may,
)
from support.repository.tree import GENERATED, docs_script


def services() -> Iterator[ServiceDescriptor]:
    """Each service of our contracts."""
    for path in sorted((GENERATED / "aerobee").rglob("*_pb2.py")):
        name = ".".join(path.relative_to(GENERATED).with_suffix("").parts)
        yield from importlib.import_module(name).DESCRIPTOR.services_by_name.values()


def is_ours(path: str) -> bool:
    return path.startswith("/aerobee.")


def allows(permissions: Permissions, path: str, caller: Caller) -> bool:
    """Whether the caller may call, for broker-a where the request names one."""
    try:
        who = CallOf(caller.identity)
        permissions.admit(who, path)
        permissions.authorize(who, path, SimpleNamespace(broker_name=BROKER))
    except NotPermitted:
        return False
    return True


def permissions(table: Mapping[str, Row] = TABLE) -> Permissions:
    return Permissions(CLUSTER, BROKER, table)


# ---- the table ----


def test_each_rpc_of_each_contract_has_a_row() -> None:
    rpcs = {
        f"/{service.full_name}/{method}"
        for service in services()
        for method in service.methods_by_name
    }
    assert rpcs == {path for path in TABLE if is_ours(path)}


def test_the_page_shows_the_table() -> None:
    script = docs_script("permissions")
    text = script.PAGE.read_text(encoding="utf-8")
    assert script.page(text) == text, "run docs/permissions.py"


def test_each_field_of_a_row_is_in_the_request() -> None:
    for path, row in TABLE.items():
        fields = [right.field for right in row.rights or () if right.field not in ("", EACH)]
        fields += [row.own] if row.own else []
        if fields:
            method = method_of(path)
            assert not method.client_streaming, f"{path}: the requests of a stream are not checked"
            request = message_factory.GetMessageClass(method.input_type)()
            assert all(read_field(request, field) for field in fields), path


def read_field(message: object, path: str) -> bool:
    """Whether a path such as "leases[].topic" ends at a string of the message."""
    descriptor = message.DESCRIPTOR  # type: ignore[attr-defined]
    *parents, last = path.split(".")
    for parent in parents:
        field = descriptor.fields_by_name[parent.removesuffix("[]")]
        assert field.is_repeated == parent.endswith("[]")
        descriptor = field.message_type
    field = descriptor.fields_by_name[last.removesuffix("[]")]
    assert field.is_repeated == last.endswith("[]")
    return bool(field.type == field.TYPE_STRING)


@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_the_page_says_who_may_call(caller: Caller) -> None:
    expected = read()
    allowed = {path for path in TABLE if allows(permissions(), path, caller)}
    assert allowed == {path for path in expected if may_call(expected[path], caller)}


def mutants(row: Row) -> Iterator[Row]:
    """The row with one thing changed: one role more or less, or without a condition."""
    if row.is_open:
        yield Row(frozenset(ROLES))
        return
    yield replace(row, is_open=True)
    for role in ROLES:
        yield replace(row, roles=row.roles ^ {role})
    if row.own:
        yield replace(row, own="")
    if row.same_name:
        yield replace(row, same_name=False)


def test_each_change_of_a_row_is_noticed() -> None:
    """A mutation of the table that the comparison with the page would miss."""
    expected = read()
    missed = []
    for path, row in TABLE.items():
        for mutant in mutants(row):
            changed = permissions({**TABLE, path: mutant})
            if all(
                allows(changed, path, caller) == may_call(expected[path], caller)
                for caller in CALLERS
            ):
                missed.append((path, mutant))
    assert not missed


# ---- rights of users ----

EACH_ACTION = sorted(ACTIONS - ALL_ACTIONS)
OWN, FOREIGN = "team-a-orders", "orders"

# The rights of a user: none, each action alone on each kind, and some that belong together.
GRANTS: Mapping[str, tuple[Grant, ...]] = {
    "no policy": (),
    **{
        f"{action} on each {kind}": (Grant(kind, (action,)),)
        for kind in (TOPIC, GROUP, POLICY_CLUSTER)
        for action in EACH_ACTION
    },
    "publisher": (Grant(TOPIC, ("Pub",), OWN),),
    "consumer": (Grant(TOPIC, ("Sub",), OWN), Grant(GROUP, ("Sub",), OWN)),
    "everything on topics": (Grant(TOPIC, tuple(EACH_ACTION)),),
    "everything on groups": (Grant(GROUP, tuple(EACH_ACTION)),),
    "changes on a prefix": tuple(
        Grant(kind, ("Create", "Update", "Delete"), "team-a-") for kind in (TOPIC, GROUP)
    ),
    "reader": tuple(Grant(kind, ("Get", "List")) for kind in (TOPIC, GROUP, POLICY_CLUSTER)),
    "administrator of the cluster": (Grant(POLICY_CLUSTER, tuple(EACH_ACTION)),),
}


def signed_by(user: User) -> CallOf:
    return CallOf(None, Signed(user, b"s3cret", ""))


def user_with(grants: tuple[Grant, ...]) -> User:
    policies = (policy(f"{each.kind}:{each.prefix}*", each.actions) for each in grants)
    return User("app", (b"s3cret",), policies=tuple(policies))


USERS = {name: signed_by(user_with(grants)) for name, grants in GRANTS.items()}
SUPER = signed_by(User("root", (b"s3cret",), super=True))


def fields_of(expected: Expected) -> list[str]:
    return [right.field for right in expected.rights or () if right.field]


def may_user(permissions: Permissions, path: str, caller: CallOf, request: Any) -> bool:
    try:
        permissions.admit(caller, path)
        permissions.authorize(caller, path, request)
    except NotPermitted:
        return False
    return True


@pytest.mark.parametrize("name", [OWN, FOREIGN, *SYSTEM_TOPICS])
def test_the_page_says_what_users_may(name: str) -> None:
    """Each RPC is called by each user with an own, a foreign or a system resource."""
    checks = permissions()
    for path, expected in read().items():
        names = dict.fromkeys(fields_of(expected), name)
        request = request_for(path, names)
        for kind, caller in USERS.items():
            may = user_may(expected, GRANTS[kind], names)
            assert may_user(checks, path, caller, request) is may, (path, kind)
        everything = expected.open or expected.rights is not None
        assert may_user(checks, path, SUPER, request) is everything, path


def user_mutants(row: Row) -> Iterator[Row]:
    """The row with one right changed: dropped, or with one action more or less."""
    if row.is_open:
        return
    yield replace(row, rights=() if row.rights is None else None)
    for index, right in enumerate(row.rights or ()):
        if right.field == EACH:
            continue
        before, after = row.rights[:index], row.rights[index + 1 :]  # type: ignore[index]
        yield replace(row, rights=before + after)
        changed = [replace(right, or_cluster=False), replace(right, free="")]
        for action in EACH_ACTION:
            actions = set(right.actions) ^ {action}
            changed.append(replace(right, actions=tuple(actions)))
        for each in changed:
            if each != right:
                yield replace(row, rights=(*before, each, *after))


def test_each_change_of_a_right_is_noticed() -> None:
    """A mutation of the table that the comparison with the page would miss."""
    missed = []
    for path, expected in read().items():
        # Requests that name one resource each, and one that names none.
        fields = fields_of(expected)
        named = [{field: name} for field in fields for name in (OWN, "TBW102")] + [{}]
        calls = [
            (request_for(path, names), caller, user_may(expected, GRANTS[kind], names))
            for names in named
            for kind, caller in USERS.items()
        ]
        for mutant in user_mutants(TABLE[path]):
            changed = permissions({path: mutant})
            if all(
                may_user(changed, path, caller, request) is may for request, caller, may in calls
            ):
                missed.append((path, mutant.rights))
    assert not missed


def test_a_user_may_not_do_what_its_role_may() -> None:
    """The role of a certificate does not count for a signed call."""
    admin = Identity(CLUSTER, "admin", "admin")
    caller = CallOf(admin, Signed(user_with(()), b"s3cret", ""))
    request = admin_pb2.DeleteTopicRequest(topic=OWN)
    permissions().authorize(CallOf(admin), DELETE_TOPIC.path, request)
    with pytest.raises(NotPermitted, match="'app' lacks Delete on Topic:team-a-orders"):
        permissions().authorize(caller, DELETE_TOPIC.path, request)


def test_a_missing_and_a_forbidden_topic_are_answered_alike() -> None:
    """The right is checked before a handler can look for the topic."""
    texts = set()
    for name in (FOREIGN, "missing"):
        with pytest.raises(NotPermitted) as caught:
            permissions().authorize(
                USERS["publisher"], GET_TOPIC.path, admin_pb2.GetTopicRequest(topic=name)
            )
        texts.add(caught.value.message.replace(name, "NAME"))
    assert len(texts) == 1


def test_a_list_contains_what_the_user_may_see() -> None:
    caller = signed_by(
        user_with((Grant(TOPIC, ("List",), "team-a-"), Grant(GROUP, ("List",), "team-a-")))
    )
    names = (OWN, FOREIGN, "TBW102", retry_topic("team-a-billing"), retry_topic("other"))
    assert [name for name in names if caller.sees(TOPIC, name)] == [OWN, names[3]]
    assert caller.sees(GROUP, "team-a-billing") and not caller.sees(GROUP, "other")
    assert all(SUPER.sees(TOPIC, name) for name in names)
    assert all(CallOf().sees(TOPIC, name) for name in names)


def test_a_row_that_is_missing_is_noticed() -> None:
    for path in TABLE:
        without = {key: row for key, row in TABLE.items() if key != path}
        assert permissions(without).missing(TABLE) == [path]
    assert permissions().missing(TABLE) == []


# ---- errors ----


def test_the_error_names_role_rpc_and_remedy() -> None:
    client = Identity(CLUSTER, "client", "billing")
    with raises_code(Code.NO_PERMISSION, DELETE_TOPIC.path) as caught:
        permissions().admit(CallOf(client), DELETE_TOPIC.path)
    for part in ("'client'", "AdminService/DeleteTopic", "admin"):
        assert part in caught.value.message


def test_a_broker_registers_itself_only() -> None:
    broker = CallOf(Identity(CLUSTER, "broker", BROKER))
    request = namesrv_pb2.RegisterBrokerRequest(cluster="any", broker_name=BROKER)
    permissions().authorize(broker, REGISTER_BROKER.path, request)
    request.broker_name = "broker-b"
    with pytest.raises(NotPermitted, match="broker-b"):
        permissions().authorize(broker, REGISTER_BROKER.path, request)


def test_a_broker_of_another_name_follows_no_master() -> None:
    permissions().admit(CallOf(Identity(CLUSTER, "broker", BROKER)), FOLLOW.path)
    with pytest.raises(NotPermitted, match="broker-b"):
        permissions().admit(CallOf(Identity(CLUSTER, "broker", "broker-b")), FOLLOW.path)


@pytest.mark.parametrize("rpc", [PULL, GET_MESSAGE, QUERY_MESSAGES, SEARCH_MESSAGES])
def test_the_console_may_read_messages(rpc: Rpc[Any, Any]) -> None:
    permissions().admit(CallOf(Identity(CLUSTER, "console", "console")), rpc.path)


# ---- identities ----


@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("https://example.org/broker/a",),
        ("aerobee://prod/broker",),
        ("aerobee://prod/broker/a/b",),
        ("aerobee://prod/broker/",),
        ("aerobee://prod/Broker/a",),
        ("aerobee://prod/broker/a\n",),
        ("aerobee://prod/broker/a%2Fb",),
        ("aerobee:prod/broker/a",),
        ("aerobee://prod/broker/a", "aerobee://prod/admin/a"),
    ],
    ids=str,
)
def test_other_uris_identify_nobody(uris: tuple[str, ...]) -> None:
    assert identity_of(uris) is None


def test_a_uri_of_the_scheme_identifies_its_holder() -> None:
    uris = ("https://example.org", "aerobee://prod.eu/broker/broker_a.example")
    assert identity_of(uris) == Identity("prod.eu", "broker", "broker_a.example")
    assert str(identity_of(uris)) == uris[1]


# ---- rights of users ----


def needs(path: str, request: object) -> set[str]:
    return {str(need) for need in needs_of(TABLE[path], request, CLUSTER)}


def test_each_topic_of_a_send_needs_a_right() -> None:
    request = message_pb2.SendRequest(
        messages=[message_pb2.Message(topic=topic) for topic in ("a", "b", "a")],
        batch=message_pb2.MessageBatch(topic="c"),
    )
    assert needs(SEND.path, request) == {"Pub on Topic:a", "Pub on Topic:b", "Pub on Topic:c"}


def test_a_retry_topic_belongs_to_its_group() -> None:
    request = message_pb2.PullRequest(consumer_group="g", topic=retry_topic("other"))
    assert needs(PULL.path, request) == {"Sub on Group:g", "Sub on Group:other"}
    sent = message_pb2.SendRequest(messages=[message_pb2.Message(topic=retry_topic("g"))])
    assert needs(SEND.path, sent) == {"Sub on Group:g"}
    deleted = admin_pb2.DeleteTopicRequest(topic=dead_letter_topic("g"))
    assert needs(DELETE_TOPIC.path, deleted) == {"Delete on Group:g"}


def test_a_list_without_a_group_needs_the_cluster() -> None:
    assert needs(LIST_CLIENTS.path, client_pb2.ListClientsRequest()) == {"Get on Cluster:prod"}
    of_group = client_pb2.ListClientsRequest(group="g")
    assert needs(LIST_CLIENTS.path, of_group) == {"Get on Group:g"}


def test_nested_fields_are_found() -> None:
    request = client_pb2.HeartbeatRequest(
        consumers=[
            client_pb2.ConsumerData(
                consumer_group="g", subscriptions=[message_pb2.Subscription(topic="t")]
            )
        ],
        published_topics=["p"],
    )
    assert needs(HEARTBEAT.path, request) == {"Sub on Group:g", "Sub on Topic:t"}
    popped = pop_pb2.PopRequest(consumer_group="g", topic="t")
    assert needs_of(TABLE[POP.path], popped, CLUSTER) == [
        *(Need("Group", "g", ("Sub",)), Need("Topic", "t", ("Sub",)))
    ]


def test_a_change_of_options_is_about_the_keys_of_its_map() -> None:
    path = "/aerobee.broker.v1.ConfigService/UpdateConfig"
    request = config_pb2.UpdateConfigRequest(entries={"brokerRole": "secret"}, unset=["zone"])
    assert resources_of(path, request, "blue") == ["Option:brokerRole", "Option:zone"]
