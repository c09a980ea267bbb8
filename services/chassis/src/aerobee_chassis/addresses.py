"""Read and write addresses as "host:port", and find the address of this machine."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
_WILDCARDS = ("", "0.0.0.0", "::", "[::]")


def join_address(host: str, port: int) -> str:
    """Return "host:port", with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without brackets, and the port of "host:port". Raises ValueError."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def advertised_host(chosen: str, bound: str, namesrvs: Sequence[str]) -> str:
    """Return the host that clients dial.

    This is the operator's choice. If it is empty, it is the bound address, unless
    that is a wildcard. Otherwise it is the local end of a connection to a name server. May query
    DNS.
    """
    if chosen:
        return chosen
    if bound not in _WILDCARDS:
        return bound
    for namesrv in namesrvs:
        own = _own_address(namesrv)
        if own is not None:
            return own
    return ip_of(socket.gethostname())


def ip_of(host: str) -> str:
    """Return the IP address of a host, or loopback if it has none."""
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass  # a name
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except OSError:
        return LOOPBACK


def _own_address(namesrv: str) -> str | None:
    """Return the local address of a connection to a name server, or None if there is no route.

    The probe connects a datagram socket, which sends nothing.
    """
    host, _, port = namesrv.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])
            return str(probe.getsockname()[0])
    except OSError:
        return None
