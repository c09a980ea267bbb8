"""Call servers over gRPC with deadlines, and convert failures to MqError.

This module neither retries nor chooses an address. Only this module and `testing/container.py` use
grpc.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from operator import methodcaller
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf import empty_pb2

from aerobee_client.credentials import Credentials
from aerobee_client.errors import BrokerUnreachable, RequestTimeout
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.tls import Tls, read
from aerobee_cluster.transport import CODE_OF_STATUS, Q, R
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

# enough for a batch of large messages; the servers have the same limit
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A broker that restarts on the same port is reached again within a second (default: 120 s).
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # The time limit of one attempt to connect (default: 20 s).
    ("grpc.min_reconnect_backoff_ms", 3_000),
    # A frozen or disconnected peer is detected after 40 s. TCP alone never detects it.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # http_proxy in the environment does not apply to brokers.
    ("grpc.enable_http_proxy", 0),
)

# The time limit for calls in flight on a replaced channel. A long poll takes 30 s.
DRAIN_S = 60.0

# A function that opens a channel. Its arguments are the address, and the path of the RPC that needs
# the channel.
Connect = Callable[[str, str], grpc.aio.Channel]
# A function that returns the metadata of a call. Its arguments are the path of the method,
# "/package.Service/Method", and the serialized request.
CallMetadata = Callable[[str, bytes], Sequence[tuple[str, str | bytes]]]

CLOSED = "the connection was closed during the call: by this client, or for a new master"


# The time between two checks whether certificates have changed.
RELOAD_S = 5.0


def plaintext(address: str, path: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class TlsConnect:
    """Open channels with the certificates of `tls`. Implements `Connect`."""

    def __init__(self, tls: Tls) -> None:
        cluster = tls.cluster if tls.verify == NAME else ""
        self._certificates = CallerCertificates(tls.files(), cluster)
        self._broker_names: dict[str, str] = {}  # that certificates must have, by address

    def __call__(self, address: str, path: str) -> grpc.aio.Channel:
        authorities, certificate, key = read(self._certificates)
        credentials = grpc.ssl_channel_credentials(authorities, key or None, certificate or None)
        options: tuple[tuple[str, int | str], ...] = CHANNEL_OPTIONS
        if name := self._certificates.server_name(path, self._broker_names.get(address, "")):
            options = (*options, ("grpc.ssl_target_name_override", name))
        return grpc.aio.secure_channel(address, credentials, options=options)

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
    the metadata of each call, such as credentials. If `metadata` is None, calls have no metadata,
    and gRPC serializes the requests. If `key_changed` returns True, calls are signed with another
    key than before: new ones use new channels, and lasting ones are made again after DRAIN_S.
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
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._methods: dict[tuple[str, str], Callable[..., Any]] = {}
        self._replaced: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def method(self, address: str, rpc: Rpc[Any, Any], kind: str) -> Callable[..., Any]:
        """Return a function that calls an RPC at an address: `method(request, timeout=…)`.

        `kind` is "unary_unary" or "unary_stream". Raises MqError with the code ILLEGAL_OPERATION in
        a forked child of a process that has used a client.
        """
        return self._methods.get((address, rpc.path)) or self._new_method(address, rpc, kind)

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
        channel = self._take(address)
        if channel is None:
            return
        draining = asyncio.get_running_loop().create_task(channel.close(DRAIN_S))
        self._replaced[draining] = channel
        draining.add_done_callback(self._replaced.pop)

    async def drop(self, address: str) -> None:
        """Use a new channel to an address from now on, and cancel calls in flight."""
        channel = self._take(address)
        if channel is not None:
            await channel.close(None)

    def _take(self, address: str) -> grpc.aio.Channel | None:
        for key in [key for key in self._methods if key[0] == address]:
            del self._methods[key]
        return self._channels.pop(address, None)

    async def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()
        channels, self._channels = self._channels, {}
        self._methods = {}
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

    def _new_method(self, address: str, rpc: Rpc[Any, Any], kind: str) -> Callable[..., Any]:
        channel = self._channels.get(address)
        if channel is None:
            PROCESS.use()
            channel = self._channels[address] = self._connect(address, rpc.path)
            if self._changes and self._reloading is None:
                loop = asyncio.get_running_loop()
                self._reloading = loop.call_later(RELOAD_S, self._reload)
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
    """Wrap a gRPC method so that it serializes the request and sends metadata with each call."""

    def call(request: Any, timeout: float | None = None) -> Any:
        serialized = request.SerializeToString()
        sent = grpc.aio.Metadata(*metadata(path, serialized))
        return method(serialized, timeout=timeout, metadata=sent)

    return call


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
    """Implements `Transport` with `grpc.aio`. Use and close it on one event loop.

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
        method = self._channels.method(address, rpc, "unary_unary")
        try:
            response: R = await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            failure = translated(error, address, timeout_s)
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                failure = await self._other_server(address, rpc) or failure
            raise failure from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise BrokerUnreachable(address, CLOSED) from None
        return response

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
        # Later calls of the RPC at this address use the same method, so it needs the real types.
        method = self._channels.method(address, server.identifies, "unary_unary")
        try:
            await method(server.identifies.request(), timeout=IDENTIFY_S)
        except grpc.aio.AioRpcError as error:
            unknown = (
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )
            return error.code() not in unknown
        return True

    async def stream(self, address: str, rpc: Rpc[Q, R], request: Q) -> AsyncGenerator[R, None]:
        PROCESS.check()
        call = self._channels.method(address, rpc, "unary_stream")(request)
        try:
            async for message in call:
                yield message
        except grpc.aio.AioRpcError as error:
            raise translated(error, address, 0) from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise BrokerUnreachable(address, CLOSED) from None
        finally:
            call.cancel()

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
    def metadata(path: str, request: bytes) -> Sequence[tuple[str, str | bytes]]:
        return ((AUTHORIZATION_KEY, signer.sign(path, request)),)

    return metadata


def _is_cancelled() -> bool:
    """Return whether the current task was cancelled.

    A CancelledError alone does not prove it, because grpc also raises one when a channel is closed
    during a call.
    """
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def translated(error: grpc.aio.AioRpcError, address: str, timeout_s: float) -> MqError:
    details = error.details() or ""
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    sent = error_from(details, trailers)
    if sent is not None:
        return sent
    status = error.code()
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimeout(address, timeout_s)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return BrokerUnreachable(address, tls_cause(details) or cause_of(details) or status.name)
    code = CODE_OF_STATUS.get(status.name, Code.SYSTEM_ERROR)
    return MqError(code, f"{address} refused the request: {status.name}: {details}")


# gRPC puts the address and the steps of the connection before the cause.
_BEFORE_CAUSE = re.compile(
    r"^.*(?:remote host|connect|ipv[46]:\S+|\[field:hostname lookup error:.*?):\s+",
    re.DOTALL,
)
_ERRNO = re.compile(r" \(\d+\)$")
_TIMED_OUT = "Timeout occurred"


def cause_of(details: str) -> str:
    """Return the cause in gRPC's description of a failed connection, in one line.

    Args:
        details: The description. It names each address that was tried, and may have several lines.
    """
    if _TIMED_OUT in details:
        return "the connection timed out"
    cause = _ERRNO.sub("", " ".join(_BEFORE_CAUSE.sub("", details).rstrip("]").split()))
    return cause[:1].lower() + cause[1:]
