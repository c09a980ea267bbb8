"""Call servers over gRPC with deadlines, and convert failures to MqError.

This module neither retries nor chooses an address. Only this module and `testing/container.py` use
grpc.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from operator import methodcaller
from typing import Any, NamedTuple, cast

import grpc
from google.protobuf import empty_pb2

from aerobee_client.cluster.call_stream import RENEW_S, CallStream, Unsupported
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
from aerobee_wire.rpcs import Request, Rpc
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

# The most frequent calls may use a stream for each RPC, if their requests have at most
# STREAMED_BYTES: the messages of a stream wait for each other.
STREAMED = frozenset({rpcs.SEND.path, rpcs.PULL.path})
STREAMED_BYTES = 256 * 1024

CLOSED = "the connection was closed during the call: by this client, or for a new master"


# What grpc.aio reports in place of the status of a stream that ended during a write.
_ENDED_DURING_WRITE = "Internal error from Core"

# The time between two checks whether certificates have changed.
RELOAD_S = 5.0


def plaintext(address: str, path: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class TlsConnect:
    """Open channels with the certificates of `tls`. Implements `Connect`."""

    def __init__(self, tls: Tls) -> None:
        cluster = tls.cluster if tls.verify == NAME else ""
        self._certificates = CallerCertificates(tls.files(), cluster)

    def __call__(self, address: str, path: str) -> grpc.aio.Channel:
        authorities, certificate, key = read(self._certificates)
        credentials = grpc.ssl_channel_credentials(authorities, key or None, certificate or None)
        options: tuple[tuple[str, int | str], ...] = CHANNEL_OPTIONS
        if name := self._certificates.server_name(path):
            options = (*options, ("grpc.ssl_target_name_override", name))
        return grpc.aio.secure_channel(address, credentials, options=options)

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
        certificates = None if tls is None else TlsConnect(tls)
        self._connect = connect or certificates or plaintext
        # Each returns whether calls need new channels.
        self._changes = [] if certificates is None else [certificates.reload]
        self._changes += [] if key_changed is None else [key_changed]
        self._reloading: asyncio.TimerHandle | None = None
        self._metadata = metadata
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._methods: dict[tuple[str, str], Callable[..., Any]] = {}
        self._streams: dict[tuple[str, str], CallStream] = {}
        # Servers that make no calls over a stream. The timer ends the entry: they may be upgraded.
        self._without_streams: dict[str, asyncio.TimerHandle] = {}
        self._replaced: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    def method(self, address: str, rpc: Rpc[Any, Any], kind: str) -> Callable[..., Any]:
        """Return a function that calls an RPC at an address: `method(request, timeout=…)`.

        `kind` is "unary_unary", "unary_stream" or "stream_stream"; a function of the last one has
        no arguments. Raises MqError with the code ILLEGAL_OPERATION in a forked child of a process
        that has used a client.
        """
        return self._methods.get((address, rpc.path)) or self._new_method(address, rpc, kind)

    def metadata_of(self, path: str, request: bytes) -> dict[str, str]:
        """Return the metadata of a call over a stream."""
        pairs = () if self._metadata is None else self._metadata(path, request)
        return {key: value for key, value in pairs if isinstance(value, str)}

    def call_stream(self, address: str, path: str) -> CallStream | None:
        """Return the stream for calls of an RPC to an address.

        Return None if the server does not make calls over a stream.
        """
        stream = self._streams.get((address, path))
        if stream is not None or address in self._without_streams:
            return stream
        stream = self._streams[address, path] = CallStream(
            lambda: _GrpcStream(self.method(address, rpcs.MULTIPLEX, "stream_stream"), address),
            lambda timeout_s: RequestTimeout(address, timeout_s),
        )
        return stream

    def avoid_streams(self, address: str) -> None:
        """Make calls to this address without a stream for some time: its server has no streams."""
        if address not in self._without_streams:
            self._retire_streams(address)
            loop = asyncio.get_running_loop()
            again = loop.call_later(RENEW_S, self._without_streams.pop, address, None)
            self._without_streams[address] = again

    def _retire_streams(self, address: str) -> None:
        for key in [key for key in self._streams if key[0] == address]:
            self._streams.pop(key).retire()

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
        self._retire_streams(address)
        return self._channels.pop(address, None)

    async def close(self) -> None:
        if self._reloading is not None:
            self._reloading.cancel()
        for again in self._without_streams.values():
            again.cancel()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            await stream.close()
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
        if kind == "stream_stream":  # of frames that are serialized already
            method = _with_stream_metadata(make(rpc.path), rpc.path, self._metadata)
        elif self._metadata is None:
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


def _with_stream_metadata(
    method: Callable[..., Any], path: str, metadata: CallMetadata | None
) -> Callable[..., Any]:
    """Wrap a gRPC method with a stream of requests so that it sends metadata with each call."""
    return lambda: method(metadata=grpc.aio.Metadata(*metadata(path, b"")) if metadata else None)


class _Serialized:
    """A request that is serialized already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # like a protobuf message
        return self._data


class _GrpcStream:
    """A stream of frames (`call_stream.Stream`). It begins with the call of `method`."""

    def __init__(self, method: Callable[..., Any], address: str) -> None:
        self._call = method()
        self._address = address
        self._error: grpc.aio.AioRpcError | None = None

    async def write(self, frame: bytes) -> None:
        try:
            # If a call ends during a write, grpc.aio hides its status. So a server without streams
            # must be known before the first write: other servers send the headers at once.
            await self._call.initial_metadata()
            await self._call.write(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it has ended, as `read` returns
            pass
        except asyncio.CancelledError:
            if _is_cancelled():
                raise

    async def read(self) -> bytes | None:
        try:
            frame: Any = await self._call.read()
        except grpc.aio.AioRpcError as error:
            self._error = error
            return None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            return None
        return frame if isinstance(frame, bytes) else None  # grpc.aio.EOF at the end

    def failure(self) -> Exception:
        if self._error is None or self._error.details() == _ENDED_DURING_WRITE:
            return BrokerUnreachable(self._address, CLOSED)
        if self._error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return Unsupported()
        return translated(self._error, self._address, 0)

    def cancel(self) -> None:
        self._call.cancel()


class _Server(NamedTuple):
    """A kind of server. Its RPCs are in `package`, and each version has the RPC `identifies`."""

    name: str
    port: int
    package: str
    identifies: str


_SERVERS = (
    _Server("name server", 9876, "/aerobee.namesrv.", rpcs.GET_CLUSTER_INFO.path),
    _Server("broker", 10911, "/aerobee.broker.", rpcs.GET_BROKER_STATUS.path),
    _Server("proxy", 8081, "/apache.", "/apache.rocketmq.v2.MessagingService/QueryRoute"),
)
# The time limit of a request that identifies a server.
IDENTIFY_S = 2.0


class GrpcTransport:
    """Implements `Transport` with `grpc.aio`. Use and close it on one event loop.

    Calls raise BrokerUnreachable, RequestTimeout, or the refusal of the server. `streamed` has the
    paths of the RPCs whose calls use a stream. By default there are none: while a broker hangs, the
    frames that wait for it would exceed the memory limit of a producer.
    """

    def __init__(
        self, channels: Channels | None = None, *, streamed: Collection[str] = frozenset()
    ) -> None:
        self._channels = channels or _channels(None, None)
        self._streamed = streamed

    @classmethod
    def of(cls, tls: Tls | None, credentials: Credentials | None) -> GrpcTransport:
        """Return a transport with these options of a client. None: those of the environment."""
        return cls(_channels(tls, credentials))

    async def call(self, address: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float) -> R:
        if PROCESS.is_child:
            PROCESS.check()
        if rpc.path not in self._streamed:
            return await self._call_alone(address, rpc, request, timeout_s)
        data = request.SerializeToString()
        stream = None
        if len(data) <= STREAMED_BYTES:
            stream = self._channels.call_stream(address, rpc.path)
        if stream is not None:
            try:
                return await self._call_over(stream, address, rpc, data, timeout_s)
            except Unsupported:
                self._channels.avoid_streams(address)
        return await self._call_alone(address, rpc, _Serialized(data), timeout_s)

    async def _call_alone(
        self, address: str, rpc: Rpc[Any, R], request: Request, timeout_s: float
    ) -> R:
        """Make a call of its own."""
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

    async def _call_over(
        self, stream: CallStream, address: str, rpc: Rpc[Any, R], request: bytes, timeout_s: float
    ) -> R:
        """Make a call over a stream. Raises Unsupported."""
        metadata = self._channels.metadata_of(rpc.path, request)
        answer = await stream.call(rpc.path, request, metadata, timeout_s)
        if not answer.HasField("failure"):
            return rpc.response.FromString(answer.response)
        failed = answer.failure
        trailers = [(trailer.key, trailer.value) for trailer in failed.trailers]
        raise failure_of(failed.status, failed.message, trailers, address, timeout_s)

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
                    f"{address} is a {server.name}: give the address of a {wanted.name}; "
                    f"{wanted.name}s listen on port {wanted.port} by default",
                )
        return None

    async def _is(self, server: _Server, address: str) -> bool:
        """Return whether the server at `address` has the RPC that identifies `server`."""
        identify = Rpc(server.identifies, empty_pb2.Empty, empty_pb2.Empty)
        method = self._channels.method(address, identify, "unary_unary")
        try:
            await method(empty_pb2.Empty(), timeout=IDENTIFY_S)
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
    trailers = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    return failure_of(error.code().name, error.details() or "", trailers, address, timeout_s)


def failure_of(
    status: str,
    details: str,
    trailers: Iterable[tuple[str, str | bytes]],
    address: str,
    timeout_s: float,
) -> MqError:
    """Return the error of a call that ended with a status, which is the name of a gRPC status."""
    sent = error_from(details, trailers)
    if sent is not None:
        return sent
    if status == "DEADLINE_EXCEEDED":
        return RequestTimeout(address, timeout_s)
    if status in ("UNAVAILABLE", "CANCELLED"):
        return BrokerUnreachable(address, tls_cause(details) or cause_of(details) or status)
    code = CODE_OF_STATUS.get(status, Code.SYSTEM_ERROR)
    return MqError(code, f"{address} refused the request: {status}: {details}")


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
