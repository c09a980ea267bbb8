"""Convert the content of the access table to messages of its contract, and back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from aerobee.access.v1 import access_pb2 as pb

from aerobee_wire.access.policies import Policy, policy
from aerobee_wire.access.quotas import Quota, Rates, check_rates, parse_subject
from aerobee_wire.access.table import Item, Key, Record, UserPolicy, Version
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


def to_quota(quota: Quota) -> pb.Quota:
    return pb.Quota(subject=quota.subject, **asdict(quota.rates))


def quota_of(message: pb.Quota) -> Quota:
    """Return the quota in a message. Raises MqError with the code INVALID_PARAMETER."""
    rates = Rates(**{name: getattr(message, name) for name in Rates.__slots__})
    check_rates(rates)
    return Quota(*parse_subject(message.subject), rates)


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
    elif isinstance(item, Quota):
        message.quota.CopyFrom(to_quota(item))
    else:
        message.policy.CopyFrom(to_policy(item.policy))
    return message


def record_of(message: pb.TableRecord) -> Record:
    """Return the record in a message. Raises MqError with the code INVALID_PARAMETER."""
    version = Version.checked(message.version.time_ms, message.version.node)
    if message.WhichOneof("content") == "quota":
        return Record(quota_of(message.quota), version, message.deleted)
    check_name(message.username)
    item: Item
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
    if kind == "quota":
        return (kind, *rest.partition("/")[::2])
    if kind != "policy":
        return (kind, rest)
    username, policy_type, resource = [*rest.split("/", 2), "", ""][:3]
    return (kind, username, policy_type, *resource.rpartition("/")[::2])
