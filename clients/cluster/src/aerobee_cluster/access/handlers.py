"""Handle the RPCs of the access table, on name server and broker alike.

Codes: those of the contract. Secrets are in requests of PutUser, in Watch and in MergeTable only;
no other response and no log line has them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Protocol

from aerobee.access.v1 import access_pb2 as pb
from google.protobuf.message import Message

from aerobee_cluster.access.store import AccessStore
from aerobee_wire.access.caller import Caller
from aerobee_wire.access.messages import (
    key_of,
    policy_of,
    quota_of,
    record_of,
    to_policy,
    to_quota,
    to_record,
    to_user_info,
    to_versions,
)
from aerobee_wire.access.policies import (
    ACTIONS,
    ALL_ACTIONS,
    ANY,
    Policy,
    address_of,
    deciding,
    parse_resource,
)
from aerobee_wire.access.quotas import parse_subject
from aerobee_wire.access.table import AccessTable, Record, UserPolicy
from aerobee_wire.access.users import MAX_SECRETS, User, check_name, check_secret
from aerobee_wire.status import Code, MqError, illegal_operation, invalid_parameter

PART = 200  # records of one message: reading one takes some 5 ms
MAX_POLICIES = 1_000  # of one PutAcl

# Arguments: the event, and its fields without secrets.
Log = Callable[..., None]


class Call(Protocol):
    """The RPC in progress, as the chassis passes it."""

    @property
    def peer(self) -> str: ...

    @property
    def caller(self) -> Caller: ...

    async def write(self, message: Message | bytes) -> None: ...


class AccessHandlers:
    """Serve the access table of this process.

    Args:
        store: The table.
        private: Whether the port requires certificates of its callers. If not, only callers on
            this machine are served.
        log: Logs each change.
    """

    def __init__(self, store: AccessStore, *, private: bool, log: Log) -> None:
        self._store = store
        self._private = private
        self._log = log

    # ---- users ----

    async def put_user(self, request: pb.PutUserRequest, call: Call) -> pb.ChangeResponse:
        self._check_caller(call)
        check_name(request.username)
        if request.HasField("secret"):
            check_secret(request.secret.encode())
        elif request.keep_former_secret:
            raise invalid_parameter(
                "keep_former_secret needs a new secret", about="keep_former_secret"
            )

        def make(table: AccessTable, now_ms: int, node: str) -> list[Record]:
            user = table.user(request.username)
            _check_expected(request.expect, user is not None, f"user {request.username!r}")
            return table.changes([_changed(user, request)], now_ms=now_ms, node=node)

        records = await self._store.change(make)
        self._log("user_changed", user=request.username, peer=call.peer)
        return pb.ChangeResponse(written=to_versions(records))

    async def get_user(self, request: pb.GetUserRequest, call: Call) -> pb.GetUserResponse:
        self._check_caller(call)
        return pb.GetUserResponse(user=to_user_info(self._user(request.username)))

    async def list_users(self, request: pb.ListUsersRequest, call: Call) -> pb.ListUsersResponse:
        self._check_caller(call)
        return pb.ListUsersResponse(users=map(to_user_info, self._store.table.users()))

    async def delete_user(self, request: pb.DeleteUserRequest, call: Call) -> pb.ChangeResponse:
        self._check_caller(call)
        name = request.username

        def make(table: AccessTable, now_ms: int, node: str) -> list[Record]:
            user = table.user(name)
            if user is None:
                raise MqError(
                    Code.QUERY_NOT_FOUND,
                    f"there is no user {name[:64]!r} to delete: list users with `aerobee user "
                    "list`",
                    about="username",
                )
            rights = [UserPolicy(name, policy) for policy in user.policies]
            return table.changes(delete=[user, *rights], now_ms=now_ms, node=node)

        records = await self._store.change(make)
        self._log("user_deleted", user=name, peer=call.peer)
        return pb.ChangeResponse(written=to_versions(records))

    # ---- policies ----

    async def put_acl(self, request: pb.PutAclRequest, call: Call) -> pb.ChangeResponse:
        self._check_caller(call)
        check_name(request.username)
        if not 0 < len(request.policies) <= MAX_POLICIES:
            problem = f"{len(request.policies)} policies: give 1 to {MAX_POLICIES}"
            raise invalid_parameter(problem, about="policies")
        put = [UserPolicy(request.username, _checked(each)) for each in request.policies]

        def make(table: AccessTable, now_ms: int, node: str) -> list[Record]:
            for each in put:
                record = table.get(each.key)
                exists = record is not None and not record.deleted
                _check_expected(
                    request.expect, exists, f"a policy like this one, {each.policy}, of that user"
                )
            return table.changes(put, now_ms=now_ms, node=node)

        records = await self._store.change(make)
        policies = [str(each.policy) for each in put]
        self._log("acl_changed", user=request.username, policies=policies, peer=call.peer)
        return pb.ChangeResponse(written=to_versions(records))

    async def get_acl(self, request: pb.GetAclRequest, call: Call) -> pb.GetAclResponse:
        self._check_caller(call)
        found = self._store.table.policies(request.username)
        if not found:
            raise MqError(
                Code.QUERY_NOT_FOUND,
                f"user {request.username[:64]!r} has no policy: add one with `aerobee acl create`",
                about="username",
            )
        return pb.GetAclResponse(policies=map(to_policy, _ranked(found)))

    async def list_acls(self, request: pb.ListAclsRequest, call: Call) -> pb.ListAclsResponse:
        self._check_caller(call)
        table = self._store.table
        return pb.ListAclsResponse(
            acls=[
                pb.ListAclsResponse.Acl(username=name, policies=map(to_policy, _ranked(found)))
                for name in table.subjects()
                if (found := table.policies(name))
            ]
        )

    async def delete_acl(self, request: pb.DeleteAclRequest, call: Call) -> pb.ChangeResponse:
        self._check_caller(call)
        name = request.username

        def make(table: AccessTable, now_ms: int, node: str) -> list[Record]:
            found = [
                UserPolicy(name, policy)
                for policy in table.policies(name)
                if request.resource in ("", policy.resource)
                and (not request.HasField("is_default") or request.is_default != policy.custom)
            ]
            if not found:
                raise _nothing_to_delete(table, request)
            return table.changes(delete=found, now_ms=now_ms, node=node)

        records = await self._store.change(make)
        self._log("acl_deleted", user=name, resource=request.resource, peer=call.peer)
        return pb.ChangeResponse(written=to_versions(records))

    async def test_access(self, request: pb.TestAccessRequest, call: Call) -> pb.TestAccessResponse:
        self._check_caller(call)
        user = self._user(request.username)
        if request.action not in ACTIONS - ALL_ACTIONS:
            known = ", ".join(sorted(ACTIONS - ALL_ACTIONS))
            problem = f"invalid action {request.action[:64]!r}: {known} are known"
            raise invalid_parameter(problem, about="action")
        kind, name = parse_resource(request.resource)
        if ANY in (kind, name[-1:]):
            problem = f"{request.resource[:64]!r} is a pattern: name one resource"
            raise invalid_parameter(problem, about="resource")
        if request.source_ip and address_of(request.source_ip) is None:
            problem = f"invalid address {request.source_ip[:64]!r}: give an IPv4 or IPv6 address"
            raise invalid_parameter(problem, about="source_ip")
        response = pb.TestAccessResponse(enabled=user.enabled, super=user.super)
        if not user.enabled or user.super:
            response.allowed = user.enabled
            return response
        found = deciding(user.policies, kind, name, request.action, request.source_ip)
        if found is not None:
            response.allowed = found.allow
            response.deciding.CopyFrom(to_policy(found))
        return response

    # ---- quotas ----

    async def put_quota(self, request: pb.PutQuotaRequest, call: Call) -> pb.ChangeResponse:
        self._check_caller(call)
        quota = quota_of(request.quota)

        def make(table: AccessTable, now_ms: int, node: str) -> list[Record]:
            return table.changes([quota], now_ms=now_ms, node=node)

        records = await self._store.change(make)
        self._log("quota_changed", subject=quota.subject, peer=call.peer, **asdict(quota.rates))
        return pb.ChangeResponse(written=to_versions(records))

    async def list_quotas(self, request: pb.ListQuotasRequest, call: Call) -> pb.ListQuotasResponse:
        self._check_caller(call)
        return pb.ListQuotasResponse(quotas=map(to_quota, self._store.table.quotas()))

    async def delete_quota(self, request: pb.DeleteQuotaRequest, call: Call) -> pb.ChangeResponse:
        self._check_caller(call)
        subject = parse_subject(request.subject)

        def make(table: AccessTable, now_ms: int, node: str) -> list[Record]:
            found = [each for each in table.quotas() if (each.kind, each.name) == subject]
            if not found:
                raise MqError(
                    Code.QUERY_NOT_FOUND,
                    f"{request.subject} has no quota: see 'aerobee quota list'",
                    about="subject",
                )
            return table.changes(delete=found, now_ms=now_ms, node=node)

        records = await self._store.change(make)
        self._log("quota_deleted", subject=request.subject, peer=call.peer)
        return pb.ChangeResponse(written=to_versions(records))

    # ---- the table as a whole ----

    async def list_table(self, request: pb.ListTableRequest, call: Call) -> pb.ListTableResponse:
        self._check_caller(call)
        table = self._store.table
        if not request.keys:
            return pb.ListTableResponse(records=to_versions(table.records()))
        asked = (table.get(key_of(key)) for key in request.keys)
        found = [record for record in asked if record is not None]
        return pb.ListTableResponse(records=to_versions(found))

    async def watch(self, request: pb.WatchRequest, call: Call) -> None:
        self._check_caller(call)
        exchanged = self._store.exchanged
        end = pb.TablePart(
            complete=True, is_stale=self._store.is_stale, is_exchanged=exchanged.is_set()
        )
        with self._store.watch() as changes:
            for part in parts_of(self._store.table.records()):
                await call.write(pb.TablePart(records=map(to_record, part)))
            await call.write(end)
            async for changed in changes:
                is_exchanged = exchanged.is_set()  # all records before it are in the parts
                for part in parts_of(changed):
                    await call.write(pb.TablePart(records=map(to_record, part)))
                if is_exchanged and not end.is_exchanged:
                    end.is_exchanged = True
                    await call.write(pb.TablePart(is_exchanged=True))

    async def merge_table(self, request: pb.MergeTableRequest, call: Call) -> pb.ChangeResponse:
        self._check_caller(call)
        records = [record_of(each) for each in request.records]
        taken = await self._store.merge(records, complete=request.complete)
        if request.is_last:
            await self._store.note_exchange()
        return pb.ChangeResponse(written=to_versions(taken))

    # ---- logins ----

    async def log_in(self, request: pb.LogInRequest, call: Call) -> pb.LogInResponse:
        user = call.caller.user
        return pb.LogInResponse(username="" if user is None else user.name)

    # ---- checks ----

    def _check_caller(self, call: Call) -> None:
        """Refuse a caller that proves nothing: tables and requests contain secrets."""
        if not self._private and not _is_local(call.peer):
            raise MqError(
                Code.NO_PERMISSION,
                "users and policies are served to other machines only if this port requires "
                "certificates: set tlsServerMode=enforcing (see docs/security.md), or call from "
                "this machine",
            )

    def _user(self, name: str) -> User:
        user = self._store.table.user(name)
        if user is None:
            raise _no_user(name)
        return user


def _is_local(peer: str) -> bool:
    host = peer.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return peer == "unix"
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _changed(user: User | None, request: pb.PutUserRequest) -> User:
    """Return the user after the change.

    The newest secret changes nothing, so that a client may repeat a change. The former one becomes
    the newest again. Raises MqError if a new user has no secret, or for a third secret.
    """
    if user is None:
        if not request.HasField("secret"):
            raise _no_user(request.username)
        user = User(request.username, ())
    secrets = user.secrets
    if request.HasField("secret"):
        new = request.secret.encode()
        former = tuple(each for each in secrets if each != new)
        if not request.keep_former_secret and secrets[:1] != (new,):
            former = ()
        if len(former) == MAX_SECRETS:
            raise illegal_operation(
                f"user {request.username!r} has {MAX_SECRETS} secret keys already: finish that "
                f"rotation with `aerobee user rotate {request.username} --finish`",
                about="secret",
            )
        secrets = (new, *former)
    if request.drop_former_secret:
        secrets = secrets[:1]
    return replace(
        user,
        secrets=secrets,
        enabled=request.enabled if request.HasField("enabled") else user.enabled,
        super=request.super if request.HasField("super") else user.super,
    )


def _checked(message: pb.Policy) -> Policy:
    try:
        return policy_of(message)
    except MqError as error:
        problem = f"invalid policy {error.message}"
        raise invalid_parameter(problem, about=error.about.lstrip(".")) from None


def _ranked(policies: Iterable[Policy]) -> list[Policy]:
    """Return policies in the order in which they decide."""
    return sorted(policies, key=lambda policy: policy.rank, reverse=True)


def _check_expected(expect: pb.Expect, exists: bool, what: str) -> None:
    if expect == pb.EXPECT_ABSENT and exists:
        raise illegal_operation(f"{what} exists already: update it", about="expect")
    if expect == pb.EXPECT_PRESENT and not exists:
        raise illegal_operation(f"{what} does not exist: create it", about="expect")


def parts_of(records: Sequence[Record]) -> Iterable[Sequence[Record]]:
    """Return the records in parts of at most PART, one for each message."""
    return (records[at : at + PART] for at in range(0, len(records), PART))


def _no_user(name: str) -> MqError:
    return MqError(
        Code.QUERY_NOT_FOUND,
        f"there is no user {name[:64]!r}: create it with `aerobee user create`",
        about="username",
    )


def _nothing_to_delete(table: AccessTable, request: pb.DeleteAclRequest) -> MqError:
    name = request.username[:64]
    if not table.policies(request.username):
        return MqError(
            Code.QUERY_NOT_FOUND, f"user {name!r} has no policy to delete", about="username"
        )
    kind = ("CUSTOM", "DEFAULT")[request.is_default] if request.HasField("is_default") else ""
    of = f" of type {kind}" * bool(kind) + f" for {request.resource}" * bool(request.resource)
    return MqError(
        Code.QUERY_NOT_FOUND,
        f"user {name!r} has no policy{of} to delete: list policies with `aerobee acl list`",
        about="resource" if request.resource else "is_default",
    )
