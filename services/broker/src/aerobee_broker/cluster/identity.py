"""Define the identity of a broker, and find its addresses for clients and for message ids."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from aerobee_chassis.errors import PortInUse


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a broker.

    - `address`: the "host:port" that clients dial.
    - `store_host`: the "ip:port" in offset message ids.
    - `broker_id`: the id that depends on the role; 0 for a master.
    - `number`: the id from the options, in every role.
    - `process_id`: a random name for this process.
    - `store_id`: the store id of a replica; "" for an unreplicated broker.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    store_host: str
    version: str
    start_timestamp_ms: int
    number: int = 0
    process_id: str = ""
    store_id: str = ""


LOOPBACK = "127.0.0.1"
_WILDCARDS = ("", "0.0.0.0", "::", "[::]")


def advertised_host(chosen: str, bound: str, namesrvs: Sequence[str]) -> str:
    """Return the host that clients dial.

    This is the operator's choice (brokerIP1). If it is not set, it is the bound address, unless
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
    return store_ip(socket.gethostname())


def store_ip(host: str) -> str:
    """Return the IP address of a host, for offset message ids, or loopback if it has none."""
    try:
        return str(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        pass  # a name
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except OSError:
        return LOOPBACK


def free_port(host: str) -> int:
    """Return a port that is free now. Another process may take it before it is used.

    Raises PortInUse if `host` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host.strip("[]"), 0))
        except OSError as error:
            problem = f"cannot listen on {host}: {error.strerror}; choose another"
            raise PortInUse(problem, host) from None
        return int(probe.getsockname()[1])


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
