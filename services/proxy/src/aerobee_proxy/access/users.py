"""Read the users of this proxy and their policies from a JSON file, again when the file changes.

The file looks like this:

    {"users": [{"username": "billing", "password": "…", "userStatus": "enable",
                "policies": [{"resource": "Topic:orders", "actions": ["Sub"]}]}]}

If the file cannot be read at the start, the proxy does not start. If the file is invalid later, the
proxy logs the error and keeps the last valid users. Thus an editing mistake does not lock out all
users. Secrets are not logged or printed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

from aerobee_chassis.errors import ConfigError
from aerobee_proxy.access.policies import Policy, policies_of

# The characters that end a name in the authorization header are not allowed.
_USERNAME = re.compile(r"[^\s,/=]{1,128}")
_KEYS = frozenset({"username", "password", "userType", "userStatus", "policies"})
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class User:
    name: str
    secret: bytes = field(repr=False)
    enabled: bool = True
    super: bool = False  # may do everything
    policies: tuple[Policy, ...] = ()


class Users:
    """The users of one file. The constructor raises ConfigError if the file cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # the working directory may change
        self._broken = False
        self._seen = self._stat()
        self._by_name = read_users(path)
        self._check_mode()

    def get(self, name: str) -> User | None:
        return self._by_name.get(name)

    def refresh(self) -> None:
        """Read the file again if it changed since it was last read. Log an invalid file."""
        log = structlog.get_logger()
        try:
            found = self._stat()
            if _version(found) == _version(self._seen) and not self._broken:
                return
            users = read_users(self._path)
        except ConfigError as error:
            if not self._broken:
                log.error("users_not_reloaded", reason=str(error))
            self._broken = True
            return
        self._by_name, self._seen, self._broken = users, found, False
        self._check_mode()
        log.info("users_reloaded", users=len(users))

    def _stat(self) -> os.stat_result:
        try:
            return self._path.stat()
        except OSError as error:
            raise _unreadable(self._path, error) from None

    def _check_mode(self) -> None:
        if self._seen.st_mode & _OTHERS:
            structlog.get_logger().warning(
                "users_file_open_to_others",
                file=str(self._path),
                advice="chmod 600 it",
            )


def read_users(path: Path) -> Mapping[str, User]:
    """Read a file of users. Return a mapping from name to user.

    Raises ConfigError if the file cannot be read or is invalid. The error names the file and the
    invalid entry, but does not contain a secret.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from None
    except ValueError as error:
        at = f":{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        problem = f"the file of users {path}{at} is not valid JSON"
        raise ConfigError(problem, f"{path}{at}") from None
    if not isinstance(content, dict) or not isinstance(content.get("users"), list):
        raise ConfigError(f'the file of users {path} must be like {{"users": [{{…}}]}}', "users")
    users: dict[str, User] = {}
    for number, entry in enumerate(content["users"], 1):
        try:
            user = _user(entry)
            if user.name in users:
                raise ConfigError(f"has the username {user.name!r}, which is taken", ".username")
        except ConfigError as error:
            problem = f"entry {number} of the file of users {path} {error}"
            raise ConfigError(problem, f"users[{number - 1}]{error.about}") from None
        users[user.name] = user
    return users


def _user(entry: object) -> User:
    """Parse one entry of "users".

    Raises ConfigError if the entry is invalid. The caller puts "entry 1 of the file of users … "
    before the text of the error, and "users[0]" before its `about`.
    """
    if not isinstance(entry, dict):
        raise ConfigError("is not an object")
    unknown = sorted(entry.keys() - _KEYS)
    if unknown:
        problem = f"has an unknown key {unknown[0]!r}: {', '.join(sorted(_KEYS))} are known"
        raise ConfigError(problem, f".{unknown[0]}")
    name, secret = entry.get("username"), entry.get("password")
    if not isinstance(name, str) or not _USERNAME.fullmatch(name):
        problem = "needs a username: 1 to 128 characters, no blanks and none of , / ="
        raise ConfigError(problem, ".username")
    if not isinstance(secret, str) or not secret:
        raise ConfigError(f"needs a password for {name!r}", ".password")
    kind = str(entry.get("userType", "NORMAL")).upper()
    if kind not in ("NORMAL", "SUPER"):
        problem = f"has a userType for {name!r} that is neither NORMAL nor SUPER"
        raise ConfigError(problem, ".userType")
    status = str(entry.get("userStatus", "enable")).lower()
    if status not in ("enable", "disable"):
        problem = f"has a userStatus for {name!r} that is neither enable nor disable"
        raise ConfigError(problem, ".userStatus")
    return User(
        name,
        secret.encode(),
        enabled=status == "enable",
        super=kind == "SUPER",
        policies=tuple(_policies(entry.get("policies", []))),
    )


def _policies(entries: object) -> Iterator[Policy]:
    if not isinstance(entries, list):
        raise ConfigError("has policies that are not a list", ".policies")
    for index, entry in enumerate(entries):
        try:
            yield from policies_of(entry)
        except ConfigError as error:
            about = f".policies[{index}]{error.about}"
            raise ConfigError(f"has a policy {error}", about) from None


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read the file of users {path}: {error.strerror}", str(path))
