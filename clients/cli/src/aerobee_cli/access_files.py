"""Read users and policies from files for `aerobee acl import`, and write them for `acl export`.

Two formats are read: the proxy's file of users (JSON), and plain_acl.yml of RocketMQ 4.x. What has
no equivalent is named, and is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerobee_cli.errors import CommandError
from aerobee_wire.access.policies import Policy, policy
from aerobee_wire.access.users import User, check_name, parse_users
from aerobee_wire.status import MqError, invalid_parameter
from aerobee_wire.topics import group_of

# Permissions of plain_acl.yml. None denies.
_PERMISSIONS = {
    "DENY": None,
    "PUB": ("Pub",),
    "SUB": ("Sub",),
    "PUB|SUB": ("Pub", "Sub"),
    "SUB|PUB": ("Pub", "Sub"),
    "ANY": ("Pub", "Sub"),
}
_ACCOUNT_KEYS = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)


@dataclass(slots=True)
class AccessFile:
    """The users of a file, and a sentence for each thing in it that has no equivalent."""

    users: list[User]
    skipped: list[str] = field(default_factory=list)


def read(path: Path) -> AccessFile:
    """Read a file of either format. Raises CommandError, without a secret in its text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandError(f"cannot read {path}: {reason}") from None
    try:
        if text.lstrip().startswith("{"):
            users = parse_users(text, str(path), needs_secrets=False)
            return AccessFile([_merged(user) for user in users.values()])
        return _plain_acl(_yaml(text, path), path)
    except MqError as error:
        raise CommandError(error.message) from None


def exported(
    users: Iterable[Mapping[str, Any]], policies: Mapping[str, Sequence[Policy]]
) -> dict[str, Any]:
    """Return users and policies as the object of a file of users, without secrets."""
    return {
        "users": [
            {
                "username": user["username"],
                "userType": "SUPER" if user["super"] else "NORMAL",
                "userStatus": "enable" if user["enabled"] else "disable",
                "policies": [each.to_json() for each in policies.get(user["username"], ())],
            }
            for user in users
        ]
    }


def _merged(user: User) -> User:
    """Join policies with the same resource, type, decision and sources, as the table keeps one."""
    joined: dict[object, Policy] = {}
    for each in user.policies:
        key = each.resource, each.type, each.decision
        known = joined.get(key)
        if known is None:
            joined[key] = each
        elif known.sources == each.sources:
            joined[key] = policy(
                each.resource,
                sorted(known.actions | each.actions),
                decision=each.decision,
                type_=each.type,
                source_ips=[str(source) for source in each.sources],
            )
        else:
            raise invalid_parameter(
                f"user {user.name!r} has two policies {each.decision} on {each.resource} with "
                "other sourceIps: a user has one with the same resource, type and decision"
            )
    return User(
        user.name, user.secrets, enabled=user.enabled, super=user.super,
        policies=tuple(joined.values()),
    )  # fmt: skip


def _yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # the text of the error may contain a secret
        at = f":{mark.line + 1}" if mark is not None else ""
        raise CommandError(f"{path}{at} is neither JSON nor YAML") from None


def _plain_acl(content: Any, path: Path) -> AccessFile:
    accounts = content.get("accounts") if isinstance(content, dict) else None
    if not isinstance(accounts, list):
        raise invalid_parameter(
            f'{path} is neither a file of users ({{"users": […]}}) nor a plain_acl.yml (accounts:)'
        )
    found = AccessFile([])
    if content.get("globalWhiteRemoteAddresses"):
        found.skipped.append(
            "globalWhiteRemoteAddresses: no address may call without a signature; sign the calls"
        )
    for key in sorted(set(content) - {"accounts", "globalWhiteRemoteAddresses", "dataVersion"}):
        found.skipped.append(f"{key}: unknown")
    for number, account in enumerate(accounts, 1):
        try:
            found.users.append(_account(account, found.skipped))
        except MqError as error:
            raise invalid_parameter(f"account {number} of {path}: {error.message}") from None
    return found


def _account(account: Any, skipped: list[str]) -> User:
    if not isinstance(account, dict):
        raise invalid_parameter("it is not a mapping")
    name, secret = str(account.get("accessKey", "")), str(account.get("secretKey", ""))
    check_name(name)
    if not secret:
        raise invalid_parameter(f"{name!r} has no secretKey")
    if account.get("whiteRemoteAddress"):
        skipped.append(
            f"whiteRemoteAddress of {name}: no address may call without a signature; to limit the "
            "user to it, add --source-ip to its policies"
        )
    for key in sorted(set(account) - _ACCOUNT_KEYS):
        skipped.append(f"{key} of {name}: unknown")
    if account.get("admin"):
        return User(name, (secret.encode(),), super=True)
    policies = [
        *_listed("Topic", account.get("topicPerms")),
        *_listed("Group", account.get("groupPerms")),
        *_default("Topic", account.get("defaultTopicPerm")),
        *_default("Group", account.get("defaultGroupPerm")),
    ]
    return _merged(User(name, (secret.encode(),), policies=tuple(policies)))


def _listed(kind: str, entries: Any) -> Iterator[Policy]:
    for entry in entries or ():
        name, _, permission = str(entry).partition("=")
        name = name.strip()
        if kind == "Group":
            name = group_of(name) or name
        actions = _actions(permission, str(entry))
        decision = "DENY" if actions is None else "ALLOW"
        yield policy(f"{kind}:{name}", actions or ["All"], decision=decision)


def _default(kind: str, permission: Any) -> Iterator[Policy]:
    if permission and (actions := _actions(str(permission), str(permission))):
        yield policy(f"{kind}:*", actions, type_="DEFAULT")


def _actions(permission: str, entry: str) -> tuple[str, ...] | None:
    wanted = permission.strip().upper()
    if wanted not in _PERMISSIONS:
        known = ", ".join(_PERMISSIONS)
        raise invalid_parameter(f"{entry[:64]!r} has an unknown permission: {known} are known")
    return _PERMISSIONS[wanted]
