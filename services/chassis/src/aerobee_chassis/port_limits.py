"""Define the limits of a port: its connections, their silence, and late requests.

`rpc.connections` and `rpc.http2` enforce them. The bytes of requests and answers have limits of
their own (`rpc.in_flight`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from aerobee_chassis.config import Options


@dataclass(slots=True)
class PortCounts:
    """The connections of a port now, and what it accepted and refused since its start."""

    open: int = 0
    plaintext: int = 0  # connections that clients opened
    tls: int = 0
    # Connections that were closed: the client sent nothing for too long, or plaintext although TLS
    # is enforced, or it failed the handshake of TLS.
    silent: int = 0
    refused_plaintext: int = 0
    failed_handshakes: int = 0
    # A header of the PROXY protocol was malformed, missing, or not from a trusted address.
    refused_headers: int = 0
    too_many: int = 0  # connections above maxConnections
    refused: int = 0  # connections above maxConnectionsPerAddress
    late: int = 0  # calls whose request did not arrive in time


@dataclass(frozen=True, slots=True)
class PortLimits:
    """The limits of one port, with its counts. The comments name the options."""

    connections: int = 20_000  # maxConnections
    connections_per_address: int = 2_000  # maxConnectionsPerAddress
    silent_ms: int = 10_000  # silentConnectionTimeoutMillis
    streams: int = 10_000  # maxStreamsPerConnection
    arrival_s: float = 30.0  # requestArrivalTimeoutMillis
    counts: PortCounts = field(default_factory=PortCounts)


def limits_of(options: Options) -> PortLimits:
    """Return the limits in the options of a service, with new counts."""
    return PortLimits(
        options.max_connections,
        options.max_connections_per_address,
        options.silent_connection_timeout_millis,
        options.max_streams_per_connection,
        options.request_arrival_timeout_millis / 1_000,
    )
