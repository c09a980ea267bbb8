"""Define the identity of a broker: names, addresses, version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a broker.

    - `address`: the "host:port" that clients dial.
    - `store_host`: the "ip:port" in offset message ids.
    - `broker_id`: depends on the role, 0 for a master; `number`: from the options, whatever the
      role.
    - `process_id`: a random name for this process.
    - `store_id`: that of a replica's store, otherwise "".
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
