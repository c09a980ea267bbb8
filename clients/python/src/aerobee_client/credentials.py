"""Describe the user who signs the calls of a client."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_client.runtime.kinds import checked_class
from aerobee_wire.access.signature import Signer
from aerobee_wire.access.users import check_name, check_secret
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

_ACCESS_KEY, _SECRET_KEY_FILE = "AEROBEE_ACCESS_KEY", "AEROBEE_SECRET_KEY_FILE"
RELOAD_S = 5.0  # between two checks whether the file has changed


@checked_class
@dataclass(frozen=True, slots=True)
class Credentials:
    """The user who signs each call, and whose policies decide what the client may do.

    A client without this option reads it from the environment (`from_environment`). A service with
    authenticationEnabled checks signatures. They do not hide what is sent: use TLS, too.

    Args:
        access_key: The name of the user.
        secret_key: The secret key of the user.
        secret_key_file: The path of a file with the secret key, in place of `secret_key`. It is
            read again when it changes: later calls are signed with the new key.

    Raises:
        MqError: INVALID_PARAMETER if the name or the secret key is not valid, if not exactly one of
            `secret_key` and `secret_key_file` is given, or if the file cannot be read.

    Example:
        credentials = Credentials("billing", secret_key_file="billing.secret")
        with Producer(namesrv="127.0.0.1:9876", credentials=credentials) as producer:
            producer.send(Message("orders", b"42 apples"))
    """

    access_key: str
    secret_key: str = field(default="", repr=False)
    secret_key_file: str | Path = ""

    def __post_init__(self) -> None:
        check_name(self.access_key)
        if bool(self.secret_key) == bool(str(self.secret_key_file)):
            raise _invalid("give one of secret_key and secret_key_file")
        check_secret(self._secret())

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Credentials | None:
        """Read the credentials from AEROBEE_ACCESS_KEY and AEROBEE_SECRET_KEY_FILE.

        Args:
            environ: The environment.

        Returns:
            The credentials, or None if AEROBEE_ACCESS_KEY is not set.

        Raises:
            MqError: INVALID_PARAMETER, see the class.
        """
        access_key = environ.get(_ACCESS_KEY, "")
        if not access_key:
            return None
        file = environ.get(_SECRET_KEY_FILE, "")
        if not file:
            raise _invalid(f"{_ACCESS_KEY} needs {_SECRET_KEY_FILE}, a file with the secret key")
        return cls(access_key, secret_key_file=file)

    def signer(self, *, over_tls: bool = False) -> Signer:
        """Return an object that signs the calls of one client, which are `over_tls` or not."""
        secret = _FileSecret(self._secret) if str(self.secret_key_file) else self._secret
        now_ms = lambda: time.time_ns() // 1_000_000  # noqa: E731
        return Signer(self.access_key, secret, now_ms, over_tls=over_tls)

    def _secret(self) -> bytes:
        if self.secret_key:
            return self.secret_key.encode()
        try:
            return Path(self.secret_key_file).read_bytes().rstrip(b"\r\n")
        except OSError as error:
            raise _invalid(
                f"cannot read the secret key from {self.secret_key_file}: {error.strerror}"
            ) from None


class _FileSecret:
    """The secret key of a file, which is read again every RELOAD_S.

    While the file cannot be read, or is empty, the former key stays.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._read = read
        self._secret = read()
        self._next = time.monotonic() + RELOAD_S

    def __call__(self) -> bytes:
        if (now := time.monotonic()) >= self._next:
            self._next = now + RELOAD_S
            try:
                self._secret = self._read() or self._secret
            except MqError as error:
                log.error("the former secret key stays: %s", error)
        return self._secret


def _invalid(problem: str) -> MqError:
    return MqError(Code.INVALID_PARAMETER, f"credentials: {problem}", about="credentials")
