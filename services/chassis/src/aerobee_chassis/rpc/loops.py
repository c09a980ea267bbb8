"""Create listeners and channels on the running event loop."""

from __future__ import annotations

from collections.abc import Sequence

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.http2.channel import Http2Channel
from aerobee_chassis.rpc.http2.listener import Http2Listener
from aerobee_chassis.rpc.in_flight import InFlight, TooMuchInFlight
from aerobee_chassis.rpc.services import Method, Service
from aerobee_chassis.rpc.transport import (
    CHANNEL_OPTIONS,
    Admit,
    Channel,
    ChannelOptions,
    ChannelTls,
    Listener,
    Refuse,
    Run,
    admit_all,
)


def refuse_plainly(_method: Method, error: TooMuchInFlight) -> Failure:
    return Failure("RESOURCE_EXHAUSTED", str(error))


def make_listener(
    services: Sequence[Service],
    run: Run,
    in_flight: InFlight | None = None,
    refuse: Refuse = refuse_plainly,
    *,
    admit: Admit = admit_all,
    limits: PortLimits | None = None,
    max_age_ms: int | None = None,
) -> Listener:
    """Create a listener for the running loop. `max_age_ms` is that of its connections."""
    return Http2Listener(
        services,
        run,
        in_flight or InFlight(),
        refuse,
        admit=admit,
        limits=limits or PortLimits(),
        max_age_ms=max_age_ms,
    )


def open_channel(
    target: str, options: ChannelOptions = CHANNEL_OPTIONS, tls: ChannelTls | None = None
) -> Channel:
    """Open a channel to "host:port" on the running loop. Without `tls`, it uses plaintext."""
    return Http2Channel(target, options, tls)
