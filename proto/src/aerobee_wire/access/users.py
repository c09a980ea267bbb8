"""Define a user of a cluster, and read users from a JSON file. This module does no I/O.

The file looks like this:

    {"users": [{"username": "billing", "password": "…", "userStatus": "enable",
                "policies": [{"resource": "Topic:orders", "actions": ["Sub"]}]}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from aerobee_wire.access.policies import (
    LONGEST_KEPT,
    Need,
    Policy,
    allowed,
    host_of,
    is_of_system,
    policies_of,
    writes_traces,
)
from aerobee_wire.status import MqError, invalid_parameter

MAX_SECRETS = 2  # the current one, and the former one while clients change
MAX_SECRET_BYTES = 1_024
MAX_DECISIONS = 10_000  # that a user keeps; an entry takes some 200 bytes
NAME_RULE = "1 to 128 characters, no blanks and none of , / ="

# The characters that end a name in an authorization header are not allowed.
_USERNAME = re.compile(r"[^\s,/=]{1,128}")
_KEYS = frozenset({"username", "password", "userType", "userStatus", "policies"})


@dataclass(frozen=True, slots=True)
class User:
    name: str
    secrets: tuple[bytes, ...] = field(repr=False)  # the newest first
    enabled: bool = True
    super: bool = False  # may do everything
    policies: tuple[Policy, ...] = ()
    # Decisions by need and address. A user with other policies is another object.
    _decisions: dict[tuple[Need, str], bool] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def may(self, need: Need, source: str = "") -> bool:
        """Return whether this user has a right, for a call from the "host:port" `source`.

        A SUPER user has each right. For other users, no policy counts for topics and groups of the
        system: they may only send traces.
        """
        if self.super:
            return True
        key = need, host_of(source)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= MAX_DECISIONS:
                self._decisions.clear()
            decision = writes_traces(need) or (
                not is_of_system(need) and allowed(self.policies, need, source)
            )
            if len(need.name) <= LONGEST_KEPT:
                self._decisions[key] = decision
        return decision


def check_name(name: str) -> None:
    """Raise MqError with the code INVALID_PARAMETER if a user cannot have this name."""
    if not _USERNAME.fullmatch(name) or not name.isprintable():
        raise invalid_parameter(f"invalid username {name[:64]!r}: {NAME_RULE}", about="username")


def check_secret(secret: bytes) -> None:
    """Raise MqError with the code INVALID_PARAMETER if a user cannot have this secret."""
    if not 0 < len(secret) <= MAX_SECRET_BYTES:
        problem = f"a secret has 1 to {MAX_SECRET_BYTES} bytes, not {len(secret)}"
        raise invalid_parameter(problem, about="secret")


def parse_users(text: str, file: str, *, needs_secrets: bool = True) -> Mapping[str, User]:
    """Parse the content of a file of users. Return a mapping from name to user.

    If `needs_secrets` is false, users may have no password. Raises MqError with the code
    INVALID_PARAMETER. The error names `file` and the invalid entry, but does not contain a secret.
    """
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        at = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        problem = f"the file of users {file}{at} is not valid JSON"
        raise invalid_parameter(problem, about=f"{file}{at}") from None
    if not isinstance(content, dict) or not isinstance(content.get("users"), list):
        problem = f'the file of users {file} must be like {{"users": [{{…}}]}}'
        raise invalid_parameter(problem, about="users")
    users: dict[str, User] = {}
    for number, entry in enumerate(content["users"], 1):
        try:
            user = _user(entry, needs_secrets)
            if user.name in users:
                problem = f"has the username {user.name!r}, which is taken"
                raise invalid_parameter(problem, about=".username")
        except MqError as error:
            problem = f"entry {number} of the file of users {file} {error}"
            raise invalid_parameter(problem, about=f"users[{number - 1}]{error.about}") from None
        users[user.name] = user
    return users


def first_user(text: str, source: str) -> User:
    """Parse the first user of a cluster, one entry of the file above. It is SUPER.

    Raises MqError with the code INVALID_PARAMETER. The error names `source`, but does not contain
    the password.
    """
    try:
        user = _user(json.loads(text), needs_secret=True)
    except ValueError:
        raise invalid_parameter(f"{source} is not valid JSON", about=source) from None
    except MqError as error:
        raise invalid_parameter(f"{source} {error}", about=source) from None
    return replace(user, super=True)


def _user(entry: object, needs_secret: bool) -> User:
    """Parse one entry of "users".

    Raises MqError if the entry is invalid. The caller puts "entry 1 of the file of users … " before
    the text of the error, and "users[0]" before its `about`.
    """
    if not isinstance(entry, dict):
        raise invalid_parameter("is not an object")
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        problem = f"has an unknown key {unknown[0]!r}: {', '.join(sorted(_KEYS))} are known"
        raise invalid_parameter(problem, about=f".{unknown[0]}")
    name, secret = entry.get("username"), entry.get("password")
    if not isinstance(name, str) or not _USERNAME.fullmatch(name):
        raise invalid_parameter(f"needs a username: {NAME_RULE}", about=".username")
    if (secret is not None or needs_secret) and (not isinstance(secret, str) or not secret):
        raise invalid_parameter(f"needs a password for {name!r}", about=".password")
    kind = str(entry.get("userType", "NORMAL")).upper()
    if kind not in ("NORMAL", "SUPER"):
        problem = f"has a userType for {name!r} that is neither NORMAL nor SUPER"
        raise invalid_parameter(problem, about=".userType")
    status = str(entry.get("userStatus", "enable")).lower()
    if status not in ("enable", "disable"):
        problem = f"has a userStatus for {name!r} that is neither enable nor disable"
        raise invalid_parameter(problem, about=".userStatus")
    return User(
        name,
        () if secret is None else (secret.encode(),),
        enabled=status == "enable",
        super=kind == "SUPER",
        policies=tuple(_policies(entry.get("policies", []))),
    )


def _policies(entries: object) -> Iterator[Policy]:
    if not isinstance(entries, list):
        raise invalid_parameter("has policies that are not a list", about=".policies")
    for index, entry in enumerate(entries):
        try:
            yield from policies_of(entry)
        except MqError as error:
            about = f".policies[{index}]{error.about}"
            raise invalid_parameter(f"has a policy {error}", about=about) from None
