"""Define the identity of a broker, and find a free port for it."""

from __future__ import annotations

import socket
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
