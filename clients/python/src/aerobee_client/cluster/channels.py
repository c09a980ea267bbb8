"""The channels of one client: every one is made here, one for each address.

The place for TLS (`connect`) and for credentials (`metadata`); today all of them are in plaintext.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

import grpc

from aerobee_client.runtime.fork import PROCESS
from aerobee_wire.rpcs import Rpc

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # a batch of large messages; the servers take as much

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A broker that restarts on the same port is found again within a second (default: 120 s).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # How long one attempt to connect may take (default: 20 s).
    ("grpc.min_reconnect_backoff_ms", 3_000),
    # A peer that is frozen or cut off is noticed after 40 s; by TCP alone, never.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # http_proxy in the environment does not apply to brokers.
    ("grpc.enable_http_proxy", 0),
)

# How long the calls of a channel that was replaced may take; a long poll takes 30 s.
DRAIN_S = 60.0

Connect = Callable[[str], grpc.aio.Channel]
# Metadata of a call, from its path, "/package.Service/Method", and its serialized request.
CallMetadata = Callable[[str, bytes], Sequence[tuple[str, str | bytes]]]


def plaintext(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class Channels:
    """`connect`: makes a channel to an address. `metadata`: of each call; None: there is none, and
    a request is serialized by gRPC. To be used and closed on one event loop."""

    def __init__(self, connect: Connect = plaintext, metadata: CallMetadata | None = None) -> None:
        self._connect = connect
        self._metadata = metadata
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._methods: dict[tuple[str, str], Callable[..., Any]] = {}
        self._replaced: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def method(self, address: str, rpc: Rpc[Any, Any], kind: str) -> Callable[..., Any]:
        """What calls an RPC: `method(request, timeout=…)`. `kind`: "unary_unary" or
        "unary_stream". Raises ILLEGAL_OPERATION where the fork rule forbids clients."""
        return self._methods.get((address, rpc.path)) or self._new_method(address, rpc, kind)

    def replace(self, address: str) -> None:
        """Calls from now on take a new channel, with a new certificate for example. Those under way
        end on the old one, within DRAIN_S."""
        channel = self._take(address)
        if channel is None:
            return
        draining = asyncio.get_running_loop().create_task(channel.close(DRAIN_S))
        self._replaced[draining] = channel
        draining.add_done_callback(self._replaced.pop)

    async def drop(self, address: str) -> None:
        """Calls from now on take a new channel; those under way are cancelled."""
        channel = self._take(address)
        if channel is not None:
            await channel.close(None)

    def _take(self, address: str) -> grpc.aio.Channel | None:
        for key in [key for key in self._methods if key[0] == address]:
            del self._methods[key]
        return self._channels.pop(address, None)

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        self._methods = {}
        for channel in channels.values():
            await channel.close(None)
        draining = list(self._replaced)
        for task in draining:
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)

    def _new_method(self, address: str, rpc: Rpc[Any, Any], kind: str) -> Callable[..., Any]:
        channel = self._channels.get(address)
        if channel is None:
            PROCESS.use()
            channel = self._channels[address] = self._connect(address)
        make = getattr(channel, kind)
        decode = rpc.response.FromString
        method: Callable[..., Any]
        if self._metadata is None:
            encode = methodcaller("SerializeToString")
            method = make(rpc.path, request_serializer=encode, response_deserializer=decode)
        else:
            method = _with_metadata(
                make(rpc.path, response_deserializer=decode), rpc.path, self._metadata
            )
        self._methods[address, rpc.path] = method
        return method


def _with_metadata(
    method: Callable[..., Any], path: str, metadata: CallMetadata
) -> Callable[..., Any]:
    """`method`, which takes bytes, for requests; with metadata in each call."""

    def call(request: Any, timeout: float | None = None) -> Any:
        serialized = request.SerializeToString()
        sent = grpc.aio.Metadata(*metadata(path, serialized))
        return method(serialized, timeout=timeout, metadata=sent)

    return call
