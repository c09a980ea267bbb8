"""Call the RPCs of one address. The channel connects when needed, and again after a failure."""

from __future__ import annotations

import asyncio
import base64
import math
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache

from aerobee_http2 import hpack
from aerobee_http2.calls import (
    Call,
    CallFailed,
    Exchange,
    StreamingCall,
    UnaryCall,
    deadline_passed,
    given_up,
)
from aerobee_http2.connection import SOCKET_CLOSED, Connection, Times
from aerobee_http2.framing import NOT_HTTP2, receive_buffer
from aerobee_wire.backoff import Backoff

# The values of names that end with "-bin" are bytes.
Metadata = Sequence[tuple[str, str | bytes]]

CLOSED = "the connection was closed during the call: by this client, or for a new master"
FAILED_TO_CONNECT = "failed to connect: "  # `tls_cause` knows this text of gRPC's
TIMES = Times()
# A call that the server has certainly not processed is repeated, after increasing pauses. A server
# with a limit may refuse a call because it has not forgotten one that has ended.
MAX_REPEATS = 10
FIRST_PAUSE_S, LAST_PAUSE_S = 0.002, 0.2
HAPPY_EYEBALLS_S = 0.25  # before the next address of a host is tried as well
_ERRNO = re.compile(r"\[Errno (\d+)\]")
_MAX_TIMEOUT_MS = 99_999_999  # 8 digits, the most in gRPC


class Channel:
    """Call the RPCs of one address. Use and close it on one event loop.

    While the address cannot be reached, calls fail at once until the time for the next attempt.

    Args:
        address: The "host:port" of the server; an IPv6 address is in brackets.
        tls: The context of TLS; None for plaintext.
        server_name: The name that the certificate of the server must have; "" is the host.
        times: The times.
        now_s: The clock of deadlines and pings, in seconds; by default that of the event loop.
    """

    def __init__(
        self,
        address: str,
        tls: ssl.SSLContext | None = None,
        server_name: str = "",
        times: Times = TIMES,
        now_s: Callable[[], float] | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self._host = host.removeprefix("[").removesuffix("]")
        self._port = port
        self._address = address
        self._tls = tls
        self._server_name = server_name or self._host
        self._times = times
        self._loop = asyncio.get_running_loop()
        self._now_s = now_s or self._loop.time
        self._blocks: dict[str, bytes] = {}
        self._buffer = receive_buffer()
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()  # with those that end after their last call
        self._connecting: asyncio.Task[Connection] | None = None
        self._backoff = Backoff(times.first_backoff_s, times.last_backoff_s)
        self._failure: CallFailed | None = None  # of the last attempt to connect
        self._retry_at = -math.inf
        self._closed: CallFailed | None = None  # of the calls that have not begun
        self._drained = asyncio.Event()

    async def unary(
        self, path: str, request: bytes, timeout_s: float | None = None, metadata: Metadata = ()
    ) -> bytes:
        """Call `path` ("/package.Service/Method"), and return the response. Raises CallFailed."""
        deadline_s = math.inf if timeout_s is None else self._now_s() + timeout_s
        repeats: Iterator[float] | None = None
        while True:
            call = UnaryCall(self._loop, deadline_s)
            await self._begin(call, path, request, metadata)
            try:
                return await call.outcome
            except CallFailed as failure:
                if not failure.was_not_processed:
                    raise
                repeats = repeats or _pauses()
                pause_s = next(repeats, None)
                if pause_s is None:
                    raise
            except asyncio.CancelledError:
                call.abandon(given_up())
                raise
            await asyncio.sleep(pause_s)

    async def stream(
        self, path: str, request: bytes, metadata: Metadata = ()
    ) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a server stream. Raises CallFailed."""
        has_messages = False
        repeats: Iterator[float] | None = None
        while True:
            call = StreamingCall(self._loop)
            await self._begin(call, path, request, metadata)
            try:
                while (message := await call.read()) is not None:
                    has_messages = True
                    yield message
                return
            except CallFailed as failure:
                if not failure.was_not_processed or has_messages:
                    raise
                repeats = repeats or _pauses()
                pause_s = next(repeats, None)
                if pause_s is None:
                    raise
            finally:
                if not call.has_ended:
                    call.abandon(given_up())
            await asyncio.sleep(pause_s)

    @asynccontextmanager
    async def exchange(self, path: str, metadata: Metadata = ()) -> AsyncIterator[Exchange]:
        """Start a call with streams in both directions, which ends with the `async with` block.

        The call is not repeated, because its messages are not kept. Raises CallFailed.
        """
        call = Exchange(self._loop)
        await self._begin(call, path, None, metadata)
        try:
            yield call
        finally:
            if not call.has_ended:
                call.abandon(given_up())

    async def close(self, grace_s: float | None, details: str = CLOSED) -> None:
        """Accept no new calls, and close the connections.

        Calls in flight continue for up to `grace_s`. Then they fail with CANCELLED and `details`,
        as later calls do. Calls that wait for a connection fail so at once: with a `grace_s`,
        another channel may repeat them.
        """
        is_replaced = grace_s is not None
        self._closed = CallFailed("CANCELLED", details, was_not_processed=is_replaced)
        try:
            if self._connecting is not None:
                self._connecting.cancel()
                await asyncio.wait([self._connecting])
            if grace_s is not None:
                for connection in tuple(self._connections):
                    connection.drain()
                async with asyncio.timeout(grace_s):
                    while self._connections:
                        self._drained.clear()
                        await self._drained.wait()
        except TimeoutError:
            pass
        finally:
            for connection in tuple(self._connections):
                connection.close(CallFailed("CANCELLED", details))
            await asyncio.sleep(0)  # until the sockets are closed

    # ---- calls ----

    async def _begin(
        self,
        call: Call,
        path: str,
        request: bytes | None,
        metadata: Metadata,
    ) -> None:
        """Send a call on a connection. Raises CallFailed without one at the deadline."""
        deadline_s = call.deadline_s
        connection = self._connection
        while connection is None or not connection.accepts:
            connection = await self._connected(deadline_s)
        block = self._blocks.get(path) or self._block(path)
        if deadline_s is not math.inf:
            left_s = deadline_s - self._now_s()
            if left_s <= 0:
                raise deadline_passed()
            block += _timeout(math.ceil(left_s * 1_000))
        if metadata:
            block += hpack.encoded((name, _text(value)) for name, value in metadata)
        connection.begin(call, block, request)

    def _block(self, path: str) -> bytes:
        block = self._blocks[path] = hpack.encoded(
            (
                (":method", "POST"),
                (":scheme", "http" if self._tls is None else "https"),
                (":path", path),
                (":authority", self._address),
                ("te", "trailers"),
                ("content-type", "application/grpc"),
                ("grpc-accept-encoding", "identity"),
                ("user-agent", "grpc-python-aerobee"),
            )
        )
        return block

    # ---- connecting ----

    async def _connected(self, deadline_s: float) -> Connection:
        """Return a connection that accepts calls. Raises CallFailed."""
        if self._closed is not None:
            raise _again(self._closed)
        connecting = self._connecting
        if connecting is None:
            if self._failure is not None and self._now_s() < self._retry_at:
                raise _again(self._failure)
            connecting = self._connecting = self._loop.create_task(self._connect())
            connecting.add_done_callback(self._on_connected)
        timeout_s = None if deadline_s is math.inf else max(0.0, deadline_s - self._now_s())
        await asyncio.wait([connecting], timeout=timeout_s)
        if self._closed is not None:
            raise _again(self._closed)
        if not connecting.done():
            raise deadline_passed()
        if self._connection is None:
            raise _again(self._failure or CallFailed("UNAVAILABLE", SOCKET_CLOSED))
        return self._connection

    def _on_connected(self, task: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if task.cancelled():
            return
        error = task.exception()
        if error is None and task.result().accepts:
            self._connection = task.result()
            self._failure = None
            self._backoff.reset()
            return
        if error is None:
            error = CallFailed("UNAVAILABLE", "it ended the connection before the first call")
        elif not isinstance(error, CallFailed):
            error = CallFailed("UNAVAILABLE", _cause(error))
        self._failure = error
        self._retry_at = self._now_s() + self._backoff.next_s()

    async def _connect(self) -> Connection:
        times = self._times
        if not self._port.isdecimal():
            raise CallFailed("UNAVAILABLE", f"the address {self._address!r} has no port")

        def make() -> Connection:
            return Connection(self._loop, times, self._on_closed, self._buffer, self._now_s)

        async with asyncio.timeout(times.connect_s):
            transport, connection = await self._loop.create_connection(
                make,
                self._host,
                int(self._port),
                ssl=self._tls,
                server_hostname=None if self._tls is None else self._server_name,
                happy_eyeballs_delay=HAPPY_EYEBALLS_S,
            )
            self._connections.add(connection)
            try:
                secured = transport.get_extra_info("ssl_object")
                if secured is not None and secured.selected_alpn_protocol() != "h2":
                    raise CallFailed("UNAVAILABLE", NOT_HTTP2)
                try:
                    await connection.opened
                except CallFailed as failure:
                    raise CallFailed("UNAVAILABLE", f"{FAILED_TO_CONNECT}{failure}") from None
            except BaseException:
                connection.close(CallFailed("UNAVAILABLE", "the connection was not opened"))
                raise
        return connection

    def _on_closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._drained.set()
        if self._connection is connection:
            self._connection = None


def _pauses() -> Iterator[float]:
    backoff = Backoff(FIRST_PAUSE_S, LAST_PAUSE_S)
    return (backoff.next_s() for _ in range(MAX_REPEATS))


@lru_cache(maxsize=64)
def _timeout(left_ms: int) -> bytes:
    """Return the part of a block with the timeout of a call, in milliseconds."""
    value = b"%dm" % min(_MAX_TIMEOUT_MS, left_ms)
    return b"\x00\x0cgrpc-timeout" + bytes((len(value),)) + value


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else base64.b64encode(value).rstrip(b"=").decode()


def _again(failure: CallFailed) -> CallFailed:
    """Return a failure as another object, because each raise adds to the traceback of one."""
    unsent = failure.was_not_processed
    return CallFailed(failure.status, failure.details, was_not_processed=unsent)


def _cause(error: BaseException) -> str:
    """Return the cause of a failed attempt to connect."""
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    if isinstance(error, ssl.SSLError):
        return str(error)
    # asyncio puts the addresses before the cause, and joins the errors of several addresses.
    if found := _ERRNO.search(str(error)):
        return os.strerror(int(found[1])).lower()
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
