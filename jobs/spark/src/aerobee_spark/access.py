"""Define the options with which reads and writes use TLS and sign their calls.

The driver passes them to the workers: paths, but no secret key and no certificate. If they are
missing, each process reads its own environment. This module does no I/O before a client is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from aerobee_spark.errors import OptionError
from aerobee_spark.options import text
from aerobee_wire.access.users import check_name

if TYPE_CHECKING:
    from aerobee_client import Credentials, Tls


def _access_key(value: str) -> str:
    check_name(value)
    return value


# name → (field of Access, parser)
OPTIONS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "accessKey": ("access_key", _access_key),
    "secretKeyFile": ("secret_key_file", text),
    "tlsCa": ("tls_ca", text),
    "tlsCert": ("tls_cert", text),
    "tlsKey": ("tls_key", text),
    "tlsCluster": ("tls_cluster", text),
}
# An option, and the option that it needs.
_NEEDS = (
    ("accessKey", "secretKeyFile"),
    ("secretKeyFile", "accessKey"),
    ("tlsCert", "tlsKey"),
    ("tlsKey", "tlsCert"),
    ("tlsCert", "tlsCa"),
    ("tlsCluster", "tlsCa"),
)


class _Settings(TypedDict):
    tls: Tls | None
    credentials: Credentials | None


@dataclass(frozen=True, slots=True)
class Access:
    """The user and the certificates of a read or a write. "" stands for the environment."""

    access_key: str = ""
    secret_key_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_cluster: str = "DefaultCluster"

    @classmethod
    def take(cls, parsed: dict[str, Any]) -> Access:
        """Remove the fields of this class from the fields of all options, and return them.

        Raises:
            OptionError: an option is given without the one that it needs.
        """
        given = {name for name, (field, _) in OPTIONS.items() if field in parsed}
        for name, needed in _NEEDS:
            if name in given and needed not in given:
                problem = f"the option {name} needs {needed}: set both, or remove {name}"
                raise OptionError(problem, needed)
        return cls(**{f.name: parsed.pop(f.name) for f in fields(cls) if f.name in parsed})

    def settings(self) -> _Settings:
        """Return the arguments of a client: None stands for the environment.

        Raises MqError with the code INVALID_PARAMETER if the secret key cannot be read.
        """
        from aerobee_client import Credentials, Tls

        credentials = tls = None
        if self.access_key:
            credentials = Credentials(self.access_key, secret_key_file=self.secret_key_file)
        if self.tls_ca:
            tls = Tls(self.tls_ca, self.tls_cert, self.tls_key, cluster=self.tls_cluster)
        return {"tls": tls, "credentials": credentials}


FROM_ENVIRONMENT = Access()
