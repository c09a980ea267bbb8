"""Keep named contexts: how the command connects to a cluster, and as which user.

A context is one file, NAME.json, in a directory that only its user may read. `current` has the name
of the context that counts by default. A secret key that was entered is beside it, in NAME.secret.

A context counts as a whole: it replaces the variables of the environment that it corresponds to. A
context that was not named, but is the current one, counts only if none of them is set.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from aerobee_cli.errors import CommandError

DIRECTORY = "AEROBEE_CONTEXT_DIR"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
# The variable of each field. The address of a proxy has none.
_VARIABLES = {
    "namesrv": "NAMESRV_ADDR",
    "access_key": "AEROBEE_ACCESS_KEY",
    "secret_key_file": "AEROBEE_SECRET_KEY_FILE",
    "tls_ca": "AEROBEE_TLS_TRUST_CERT_PATH",
    "tls_certificate": "AEROBEE_TLS_CERT_PATH",
    "tls_key": "AEROBEE_TLS_KEY_PATH",
    "tls_verify": "AEROBEE_TLS_VERIFY",
    "tls_cluster": "AEROBEE_TLS_CLUSTER_NAME",
}


@dataclass(frozen=True, slots=True)
class Connection:
    """The settings with which the command connects to a cluster. An empty text is not set.

    `namesrv` has the form "H:P;H:P", and `proxy` "H:P". The files are absolute paths.
    """

    namesrv: str
    proxy: str = ""
    access_key: str = ""
    secret_key_file: str = ""
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""
    tls_verify: str = ""
    tls_cluster: str = ""

    def variables(self) -> dict[str, str]:
        """Return the environment of a client that uses this connection."""
        return {
            variable: value
            for name, variable in _VARIABLES.items()
            if (value := getattr(self, name))
        }


def variables_set(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the variables of the environment because of which the current context is ignored."""
    return [variable for variable in _VARIABLES.values() if environ.get(variable)]


def default_directory() -> Path:
    """Return the directory of the contexts of the user who runs this process."""
    if given := os.environ.get(DIRECTORY):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".config") / "aerobee"


class Contexts:
    """The contexts in a directory. Each method raises CommandError if it cannot use a file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._directory.glob("*.json"))

    def current(self) -> str:
        """Return the name of the current context, or "" if there is none."""
        try:
            return (self._directory / "current").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def chosen(self, named: str, environ: Mapping[str, str] = os.environ) -> str:
        """Return the name of the context to use, or "" for none.

        It is `named` if given. Otherwise it is the current context, unless the environment has
        settings of a connection.
        """
        if named:
            return named
        return "" if variables_set(environ) else self.current()

    def get(self, name: str) -> Connection:
        """Read a context. Raises CommandError if others may read it, or its secret key."""
        path = self._path(name)
        try:
            _check_private(path)
            content = json.loads(path.read_text(encoding="utf-8"))
            connection = _connection(content)
        except FileNotFoundError:
            known = ", ".join(self.names()) or "there is none yet"
            raise CommandError(
                f"there is no context {name!r} ({known}): aerobee context add"
            ) from None
        except (ValueError, TypeError):
            raise CommandError(
                f"{path} is not a context: remove it, and run aerobee context add {name}"
            ) from None
        if connection.secret_key_file:
            check_secret_file(Path(connection.secret_key_file))
        return connection

    def add(self, name: str, connection: Connection, secret: str, *, replace: bool) -> Connection:
        """Write a context. A `secret` that is not empty is kept beside it."""
        path, secret_path = self._path(name), self._secret_path(name)
        if path.exists() and not replace:
            raise CommandError(f"the context {name} exists: give --replace, or another name")
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        values = asdict(connection)
        if secret:
            _write(secret_path, secret)
            values["secret_key_file"] = str(secret_path.absolute())
        written = Connection(**values)
        # The context is last: if it names a secret key, then the key is there.
        _write(path, json.dumps({key: value for key, value in values.items() if value}, indent=2))
        if Path(written.secret_key_file).resolve() != secret_path.resolve():
            secret_path.unlink(missing_ok=True)  # of a context that was replaced
        return written

    def use(self, name: str) -> None:
        """Make a context the current one, or none if the name is empty."""
        if not name:
            (self._directory / "current").unlink(missing_ok=True)
            return
        self.get(name)
        _write(self._directory / "current", name)

    def remove(self, name: str) -> None:
        """Remove a context, and its secret key if it is kept beside it."""
        path = self._path(name)
        if not path.exists():
            self.get(name)  # its error names the others
        if self.current() == name:
            self.use("")
        path.unlink()
        self._secret_path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise CommandError(
                f"invalid context {name!r}: write letters, digits, and - . _ after the first"
            )
        return self._directory / f"{name}.json"

    def _secret_path(self, name: str) -> Path:
        return self._directory / f"{name}.secret"


def enter(
    connection: Connection, kept: frozenset[str], environ: MutableMapping[str, str] = os.environ
) -> None:
    """Replace the variables of the environment by those of a connection, except those in `kept`."""
    wanted = connection.variables()
    for variable in _VARIABLES.values():
        if variable in kept:
            continue
        if variable in wanted:
            environ[variable] = wanted[variable]
        else:
            environ.pop(variable, None)


def check_secret_file(path: Path) -> None:
    """Raise CommandError if a secret key cannot be read, or if others may read it."""
    try:
        _check_private(path)
        path.open("rb").close()
    except OSError as error:
        raise CommandError(f"cannot read the secret key from {path}: {error.strerror}") from None


def _connection(content: object) -> Connection:
    """Return the context of a file. Raises ValueError or TypeError if it is not one."""
    if not isinstance(content, dict) or not _are_texts(content.values()):
        raise ValueError("it is not an object of texts")
    if unknown := content.keys() - {field.name for field in fields(Connection)}:
        raise ValueError(f"it has {sorted(unknown)}")
    return Connection(**content)


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _check_private(path: Path) -> None:
    if os.name == "posix" and path.stat().st_mode & _OTHERS:
        raise CommandError(f"others may read {path}: chmod 600 it, and change the secret key")


def _write(path: Path, text: str) -> None:
    """Write a whole file that only its user may read."""
    descriptor, partial = tempfile.mkstemp(prefix=".new-", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        Path(partial).replace(path)
    finally:
        Path(partial).unlink(missing_ok=True)
