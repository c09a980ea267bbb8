"""Who a broker is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this broker is. `address`: "host:port" that clients dial."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    version: str
    start_timestamp_ms: int
