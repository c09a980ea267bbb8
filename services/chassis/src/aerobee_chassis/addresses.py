"""Convert gRPC's form of addresses to "host:port", with IPv6 in brackets."""

from __future__ import annotations

import urllib.parse
from functools import lru_cache


@lru_cache(maxsize=1_024)  # each call has one, and a connection makes many calls
def peer_address(peer: str) -> str:
    """Return the "host:port" of a gRPC peer: "ipv4:127.0.0.1:5123" or "ipv6:%5B::1%5D:5123".

    For a Unix domain socket, return the file's name if the name is an address, because a relay
    binds such a name. Otherwise return "unix".
    """
    kind, _, address = urllib.parse.unquote(peer).partition(":")
    if kind in ("ipv4", "ipv6"):
        return address
    name = address.rpartition("/")[2]
    return name if ":" in name else "unix"


def join_address(host: str, port: int) -> str:
    """Return "host:port", with an IPv6 host in brackets.

    A host "unix:PATH" is returned unchanged, because it needs no port.
    """
    if host.startswith("unix:"):
        return host
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of "host:port". Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
