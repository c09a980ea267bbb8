"""Identify a process or a client by the URI of its certificate: "aerobee://CLUSTER/ROLE/NAME".

A URI with another form does not identify its holder. The name of a broker's certificate is its
brokerName.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

NAMESRV, BROKER, PROXY = "namesrv", "broker", "proxy"
CONSOLE, ADMIN, CLIENT = "console", "admin", "client"
ROLES = (NAMESRV, BROKER, PROXY, CONSOLE, ADMIN, CLIENT)

URI_SCHEME = "aerobee"
# A name is also a part of the name of a file. That of a broker may be "ROOM@NAME".
_URI = re.compile(rf"{URI_SCHEME}://([A-Za-z0-9.-]+)/([a-z]+)/([A-Za-z0-9][A-Za-z0-9._@-]*)")


@dataclass(frozen=True, slots=True)
class Identity:
    """The holder of a certificate. Its text is the URI."""

    cluster: str
    role: str
    name: str

    def __str__(self) -> str:
        return f"{URI_SCHEME}://{self.cluster}/{self.role}/{self.name}"


def identity_of(uris: Iterable[str]) -> Identity | None:
    """Return the holder of a certificate with these URIs.

    Return None if no URI has the scheme "aerobee", if several have it, or if its form is wrong.
    """
    ours = [uri for uri in uris if uri.startswith(f"{URI_SCHEME}:")]
    found = _URI.fullmatch(ours[0]) if len(ours) == 1 else None
    return None if found is None else Identity(*found.groups())
