"""Keep the users of a file of this proxy, and read them again when the file changes.

If the file cannot be read at the start, the proxy does not start. If the file is invalid later, the
proxy logs the error and keeps the last valid users. Thus an editing mistake does not lock out all
users. Secrets are not logged or printed.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import structlog

from aerobee_chassis import logs
from aerobee_chassis.errors import ConfigError
from aerobee_wire.access.users import User, parse_users
from aerobee_wire.status import MqError

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class UserSource(Protocol):
    """The users of this proxy, from a file or from the access table."""

    @property
    def complete(self) -> bool:
        """Return whether the users are known. If not, no call can be authenticated yet."""

    def get(self, name: str) -> User | None: ...


class Users:
    """The users of one file. The constructor raises ConfigError if the file cannot be used."""

    complete = True

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()  # the working directory may change
        self._broken = False
        self._seen = self._stat()
        self._by_name = read_users(path)
        self._hide()
        self._check_mode()

    def get(self, name: str) -> User | None:
        return self._by_name.get(name)

    def refresh(self) -> bool:
        """Read the file again if it changed since it was last read, and return whether it did.

        Log an invalid file.
        """
        log = structlog.get_logger()
        try:
            found = self._stat()
            if _version(found) == _version(self._seen) and not self._broken:
                return False
            users = read_users(self._path)
        except ConfigError as error:
            if not self._broken:
                log.error("users_not_reloaded", reason=str(error))
            self._broken = True
            return False
        self._by_name, self._seen, self._broken = users, found, False
        self._hide()
        self._check_mode()
        log.info("users_reloaded", users=len(users))
        return True

    def _hide(self) -> None:
        """Hide the secret keys in all lines of the log."""
        keys = [secret for user in self._by_name.values() for secret in user.secrets]
        logs.SECRETS.hide("users", keys)

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
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"the file of users {path} is not valid UTF-8", str(path)) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    try:
        return parse_users(text, str(path))
    except MqError as error:
        raise ConfigError(error.message, error.about) from None


def _version(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _unreadable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"cannot read the file of users {path}: {error.strerror}", str(path))
