"""Create the event loop of a service, which determines the transport of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import structlog

from aerobee_chassis.port_limits import PortLimits
from aerobee_chassis.rpc.call import Failure
from aerobee_chassis.rpc.completion_queue.channel import CompletionQueueChannel
from aerobee_chassis.rpc.completion_queue.cygrpc import CompletionQueueUnavailable, on_this_system
from aerobee_chassis.rpc.completion_queue.listener import CompletionQueueListener
from aerobee_chassis.rpc.completion_queue.loop import CompletionQueueLoop, new_completion_queue_loop
from aerobee_chassis.rpc.http2.channel import Http2Channel
from aerobee_chassis.rpc.http2.listener import Http2Listener
from aerobee_chassis.rpc.http2.loop import ServiceLoop
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

# AIO is the former name of HTTP2, which has replaced grpc.aio.
Transport: TypeAlias = Literal["COMPLETION_QUEUE", "HTTP2", "AIO"]


class LoopKinds(NamedTuple):
    """The class of the event loop for each transport. A subclass may simulate time."""

    completion_queue: type[CompletionQueueLoop]
    http2: Callable[[], asyncio.AbstractEventLoop]


STANDARD_LOOPS = LoopKinds(CompletionQueueLoop, ServiceLoop)


def make_loop(transport: Transport, kinds: LoopKinds = STANDARD_LOOPS) -> asyncio.AbstractEventLoop:
    """Create a loop for `transport`, or for HTTP2 if the completion queue is unavailable."""
    if transport == "COMPLETION_QUEUE" and on_this_system():
        try:
            return new_completion_queue_loop(kinds.completion_queue)
        except CompletionQueueUnavailable as error:
            structlog.get_logger().warning(
                "completion_queue_unavailable", reason=str(error), instead="HTTP2"
            )
    return kinds.http2()


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
    loop, bounds = asyncio.get_running_loop(), in_flight or InFlight()
    limits = limits or PortLimits()
    if isinstance(loop, CompletionQueueLoop):
        return CompletionQueueListener(
            loop, services, run, bounds, refuse, admit=admit, limits=limits, max_age_ms=max_age_ms
        )
    return Http2Listener(
        services, run, bounds, refuse, admit=admit, limits=limits, max_age_ms=max_age_ms
    )


def open_channel(
    target: str, options: ChannelOptions = CHANNEL_OPTIONS, tls: ChannelTls | None = None
) -> Channel:
    """Open a channel to "host:port" on the running loop. Without `tls`, it uses plaintext."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, CompletionQueueLoop):
        return CompletionQueueChannel(loop, target, options, tls)
    return Http2Channel(target, options, tls)
