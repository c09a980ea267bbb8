"""Addresses: as "host:port", with IPv6 in brackets, from those that grpc has."""

from __future__ import annotations

import urllib.parse
from functools import lru_cache


@lru_cache(maxsize=1_024)  # each call has one, and a connection makes many calls
def peer_address(peer: str) -> str:
    """The "host:port" of grpc's "ipv4:127.0.0.1:5123" or "ipv6:%5B::1%5D:5123".

    Of a unix domain socket: the file's name if that is an address, as a relay binds it; else
    "unix".
    """
    kind, _, address = urllib.parse.unquote(peer).partition(":")
    if kind in ("ipv4", "ipv6"):
        return address
    name = address.rpartition("/")[2]
    return name if ":" in name else "unix"


def join_address(host: str, port: int) -> str:
    """ "host:port", an IPv6 host in brackets. "unix:PATH" has no port and stays as it is."""
    if host.startswith("unix:"):
        return host
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Host, without brackets, and port of "host:port". Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
