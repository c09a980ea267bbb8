"""Call servers over gRPC with deadlines, and convert failures to MqError.

This module neither retries nor chooses an address. `aerobee_http2` makes the calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, NamedTuple

from google.protobuf import empty_pb2

from aerobee_client.credentials import Credentials
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.tls import Tls, read
from aerobee_cluster.transport import CODE_OF_STATUS, Q, R
from aerobee_http2.calls import CallFailed
from aerobee_http2.channel import FAILED_TO_CONNECT, Channel, Metadata
from aerobee_http2.tls import client_context
from aerobee_wire import rpcs
from aerobee_wire.access.signature import AUTHORIZATION_KEY, Signer
from aerobee_wire.certificates import (
    NAME,
    CallerCertificates,
    UnusableCertificate,
    tls_cause,
)
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError, error_from

log = logging.getLogger(__name__)

# The time limit for calls in flight on a replaced channel. A long poll takes 30 s.
DRAIN_S = 60.0

# A function that opens a channel. Its arguments are the address, and the path of the RPC that needs
# the channel.
Connect = Callable[[str, str], Channel]
# A function that returns the metadata of a call. Its arguments are the path of the method,
# "/package.Service/Method", and the serialized request.
CallMetadata = Callable[[str, bytes], Metadata]

# The time between two checks whether certificates have changed.
RELOAD_S = 5.0


def plaintext(address: str, path: str) -> Channel:
    return Channel(address)


class TlsConnect:
    """Open channels with the certificates of `tls`. Implements `Connect`."""

    def __init__(self, tls: Tls) -> None:
        cluster = tls.cluster if tls.verify == NAME else ""
        self._certificates = CallerCertificates(tls.files(), cluster)
        self._broker_names: dict[str, str] = {}  # that certificates must have, by address

    def __call__(self, address: str, path: str) -> Channel:
        context = client_context(read(self._certificates))
        name = self._certificates.server_name(path, self._broker_names.get(address, ""))
        return Channel(address, context, name)

    def expect(self, address: str, broker_name: str) -> bool:
        """Accept only the certificate of this broker at an address, on new channels.

        Return whether another broker, or any broker, was accepted there before.
        """
        former = self._broker_names.get(address)
        self._broker_names[address] = broker_name
        return former != broker_name

    def reload(self) -> bool:
        """Read the files again if they have changed. Return whether there are new certificates.

        If the new files cannot be used, log an error and keep the former certificates.
        """
        try:
            return self._certificates.reload()
        except UnusableCertificate as error:
            log.error("the new certificates are not used: %s", error)
            return False


class Channels:
    """The channels of one client, one for each address. Use and close them on one event loop.

    `connect` opens a channel to an address; without it, channels use `tls`, or plaintext if it is
    None. After the certificates have changed, new calls use new channels. `metadata` returns
    the metadata of each call, such as credentials. If `key_changed` returns True, calls are signed
    with another key than before: new ones use new channels, and lasting ones are made again after
    DRAIN_S.
    """

    def __init__(
        self,
        connect: Connect | None = None,
        metadata: CallMetadata | None = None,
        *,
        tls: Tls | None = None,
        key_changed: Callable[[], bool] | None = None,
    ) -> None:
        certificates = self._tls = None if tls is None else TlsConnect(tls)
        self._connect = connect or certificates or plaintext
        # Each returns whether calls need new channels.
        self._changes = [] if certificates is None else [certificates.reload]
        self._changes += [] if key_changed is None else [key_changed]
        self._reloading: asyncio.TimerHandle | None = None
        self._metadata = metadata
        self._channels: dict[str, Channel] = {}
        self._replaced: set[asyncio.Task[None]] = set()

    def channel(self, address: str, path: str) -> Channel:
        """Return the channel to an address, for the RPC at `path`.

        Raises MqError with the code ILLEGAL_OPERATION in a forked child of a process that has used
        a client.
        """
        return self._channels.get(address) or self._new_channel(address, path)

    def metadata(self, path: str, request: bytes) -> Metadata:
        return () if self._metadata is None else self._metadata(path, request)

    def expect(self, address: str, broker_name: str) -> None:
        """Accept only the certificate of this broker at an address, from the next call on.

        Without TLS, do nothing.
        """
        if self._tls is not None and self._tls.expect(address, broker_name):
            self.replace(address)

    def replace(self, address: str) -> None:
        """Use a new channel to an address from now on, for example with a new certificate.

        Calls in flight continue on the old channel for up to DRAIN_S.
        """
        channel = self._channels.pop(address, None)
        if channel is None:
            return
        draining = asyncio.get_running_loop().create_task(channel.close(DRAIN_S))
        self._replaced.add(draining)
        draining.add_done_callback(self._replaced.discard)

    async def drop(self, address: str) -> None:
        """Use a new channel to an address from now on, and cancel calls in flight."""
        channel = self._channels.pop(address, None)
        if channel is not None:
            await channel.close(None)

    async def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close(None)
        draining = list(self._replaced)
        for task in draining:
            task.cancel()
        await asyncio.gather(*draining, return_exceptions=True)

    def _reload(self) -> None:
        """Use new channels if certificates or key have changed. Run again after RELOAD_S."""
        self._reloading = asyncio.get_running_loop().call_later(RELOAD_S, self._reload)
        needed = [changed() for changed in self._changes]
        if any(needed):
            for address in tuple(self._channels):
                self.replace(address)

    def _new_channel(self, address: str, path: str) -> Channel:
        PROCESS.use()
        channel = self._channels[address] = self._connect(address, path)
        if self._changes and self._reloading is None:
            loop = asyncio.get_running_loop()
            self._reloading = loop.call_later(RELOAD_S, self._reload)
        return channel


class _Server(NamedTuple):
    """A kind of server. Its RPCs are in `package`, and each version has the RPC `identifies`."""

    name: str
    where: str
    package: str
    identifies: Rpc[Any, Any]


_OF_PROXIES = "/apache.rocketmq.v2.MessagingService/QueryRoute"
_SERVERS = (
    _Server(
        "a name server",
        "name servers listen on port 9876 by default",
        "/aerobee.namesrv.",
        rpcs.GET_CLUSTER_INFO,
    ),
    _Server(
        "the administration port of a proxy",
        "aerobee proxy list --wide shows it",
        rpcs.GET_PROXY_CONFIG.path.rpartition("/")[0],
        rpcs.GET_PROXY_CONFIG,
    ),
    _Server(
        "a broker",
        "brokers listen on port 10911 by default",
        "/aerobee.broker.",
        rpcs.GET_BROKER_STATUS,
    ),
    _Server(
        "a proxy",
        "proxies listen on port 8081 by default",
        "/apache.",
        Rpc(_OF_PROXIES, empty_pb2.Empty, empty_pb2.Empty),
    ),
)
# The time limit of a request that identifies a server.
IDENTIFY_S = 2.0


class GrpcTransport:
    """Implements `Transport` with `aerobee_http2`. Use and close it on one event loop.

    Calls raise BrokerUnreachable, RequestTimeout, or the refusal of the server.
    """

    def __init__(self, channels: Channels | None = None) -> None:
        self._channels = channels or _channels(None, None)

    @classmethod
    def of(cls, tls: Tls | None, credentials: Credentials | None) -> GrpcTransport:
        """Return a transport with these options of a client. None: those of the environment."""
        return cls(_channels(tls, credentials))

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        if PROCESS.is_child:
            PROCESS.check()
        try:
            return await self._unary(address, rpc, request, timeout_s)
        except CallFailed as caught:
            # The traceback refers to the serialized request. A failed send would keep it in memory.
            failure = caught.with_traceback(None)
        error = translated(failure, address, timeout_s)
        if failure.status == "UNIMPLEMENTED":
            error = await self._other_server(address, rpc) or error
        raise error

    async def _unary(self, address: str, rpc: Rpc[Q, R], request: Q, timeout_s: float) -> R:
        channels, path, serialized = self._channels, rpc.path, request.SerializeToString()
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        while True:
            metadata = channels.metadata(path, serialized)
            channel = channels.channel(address, path)
            try:
                response = await channel.unary(path, serialized, timeout_s, metadata)
            except CallFailed as failure:
                # The channel was replaced while the call waited for its connection.
                if not failure.was_not_processed or channels.channel(address, path) is channel:
                    raise
                timeout_s = max(0.0, deadline_s - loop.time())
            else:
                return rpc.response.FromString(response)

    async def _other_server(self, address: str, rpc: Rpc[Any, Any]) -> MqError | None:
        """Return the error for an address of another kind of server than `rpc` needs.

        Return None if the server has the right kind, and is too old for the RPC, or if it is
        unknown.
        """
        wanted = next((each for each in _SERVERS if rpc.path.startswith(each.package)), None)
        if wanted is None or await self._is(wanted, address):
            return None
        for server in _SERVERS:
            if server is not wanted and await self._is(server, address):
                return MqError(
                    Code.REQUEST_CODE_NOT_SUPPORTED,
                    f"{address} is {server.name}: give the address of {wanted.name}; "
                    f"{wanted.where}",
                )
        return None

    async def _is(self, server: _Server, address: str) -> bool:
        """Return whether the server at `address` has the RPC that identifies `server`."""
        identifies = server.identifies
        try:
            await self._unary(address, identifies, identifies.request(), IDENTIFY_S)
        except CallFailed as failure:
            return failure.status not in ("UNIMPLEMENTED", "UNAVAILABLE", "DEADLINE_EXCEEDED")
        return True

    async def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        PROCESS.check()
        channels, path, serialized = self._channels, rpc.path, request.SerializeToString()
        metadata = channels.metadata(path, serialized)
        messages = channels.channel(address, path).stream(path, serialized, metadata)
        async with aclosing(messages):
            try:
                async for message in messages:
                    yield rpc.response.FromString(message)
            except CallFailed as failure:
                raise translated(failure, address, 0) from None

    def expect(self, address: str, broker_name: str) -> None:
        self._channels.expect(address, broker_name)

    async def drop(self, address: str) -> None:
        await self._channels.drop(address)

    async def close(self) -> None:
        await self._channels.close()


def _channels(tls: Tls | None, credentials: Credentials | None) -> Channels:
    credentials, tls = credentials or Credentials.from_environment(), tls or Tls.from_environment()
    if credentials is None:
        return Channels(tls=tls)
    signer = credentials.signer(over_tls=tls is not None)
    key_changed = signer.key_changed if str(credentials.secret_key_file) else None
    return Channels(metadata=_signing(signer), tls=tls, key_changed=key_changed)


def _signing(signer: Signer) -> CallMetadata:
    def metadata(path: str, request: bytes) -> Metadata:
        return ((AUTHORIZATION_KEY, signer.sign(path, request)),)

    return metadata


def translated(failure: CallFailed, address: str, timeout_s: float) -> MqError:
    details = failure.details
    sent = error_from(details, failure.trailers)
    if sent is not None:
        return sent
    if failure.status == "DEADLINE_EXCEEDED":
        return RequestTimeout(address, timeout_s)
    if failure.status in ("UNAVAILABLE", "CANCELLED"):
        cause = details.removeprefix(FAILED_TO_CONNECT)
        cause = tls_cause(details) or cause[:1].lower() + cause[1:]
        return BrokerUnreachable(address, cause or failure.status)
    code = CODE_OF_STATUS.get(failure.status, Code.SYSTEM_ERROR)
    return MqError(code, f"{address} refused the request: {failure.status}: {details}")
