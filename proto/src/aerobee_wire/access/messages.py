"""Convert users, policies and records between the access table and messages of its contract."""

from __future__ import annotations

from collections.abc import Iterable

from aerobee.access.v1 import access_pb2 as pb

from aerobee_wire.access.policies import Policy, policy
from aerobee_wire.access.table import Key, Record, UserPolicy, Version
from aerobee_wire.access.users import User, check_name, check_secret


def to_policy(found: Policy) -> pb.Policy:
    return pb.Policy(
        resource=found.resource,
        actions=sorted(found.actions),
        source_ips=[str(network) for network in found.sources],
        deny=not found.allow,
        is_default=not found.custom,
    )


def policy_of(message: pb.Policy) -> Policy:
    """Return the policy in a message.

    Raises MqError with the code INVALID_PARAMETER. Its text continues the words "a policy ".
    """
    return policy(
        message.resource,
        message.actions,
        decision="DENY" if message.deny else "ALLOW",
        type_="DEFAULT" if message.is_default else "CUSTOM",
        source_ips=message.source_ips,
    )


def to_user_info(user: User) -> pb.UserInfo:
    return pb.UserInfo(
        username=user.name, enabled=user.enabled, super=user.super, secrets=len(user.secrets)
    )


def to_record(record: Record) -> pb.TableRecord:
    """Return the message of a record. It contains the secrets of a user."""
    item = record.item
    message = pb.TableRecord(
        version=pb.Version(time_ms=record.version.time_ms, node=record.version.node),
        deleted=record.deleted,
        username=record.username,
    )
    if isinstance(item, User):
        message.user.enabled, message.user.super = item.enabled, item.super
        message.user.secrets.extend(secret.decode() for secret in item.secrets)
    else:
        message.policy.CopyFrom(to_policy(item.policy))
    return message


def record_of(message: pb.TableRecord) -> Record:
    """Return the record in a message. Raises MqError with the code INVALID_PARAMETER."""
    check_name(message.username)
    version = Version(message.version.time_ms, message.version.node)
    item: User | UserPolicy
    if message.WhichOneof("content") == "policy":
        item = UserPolicy(message.username, policy_of(message.policy))
    else:
        secrets = tuple(secret.encode() for secret in message.user.secrets)
        for secret in secrets:
            check_secret(secret)
        item = User(
            message.username, secrets, enabled=message.user.enabled, super=message.user.super
        )
    return Record(item, version, message.deleted)


def to_versions(records: Iterable[Record]) -> list[pb.RecordVersion]:
    return [
        pb.RecordVersion(
            key=key_text(record.key),
            version=pb.Version(time_ms=record.version.time_ms, node=record.version.node),
            deleted=record.deleted,
        )
        for record in records
    ]


def key_text(key: Key) -> str:
    return "/".join(key)


def key_of(text: str) -> Key:
    """Return the key that `key_text` wrote. The name of a resource may contain a slash."""
    kind, _, rest = text.partition("/")
    if kind != "policy":
        return (kind, rest)
    username, policy_type, resource = [*rest.split("/", 2), "", ""][:3]
    return (kind, username, policy_type, *resource.rpartition("/")[::2])
