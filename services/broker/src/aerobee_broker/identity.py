"""The identity of a broker: names, addresses, version."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """`address`: "host:port" that clients dial. `store_host`: "ip:port", in offset message ids."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    store_host: str
    version: str
    start_timestamp_ms: int
