"""Relay the bytes of one connection in both directions, with backpressure and half-close.

Both sockets are non-blocking. Bytes that one side does not accept at once are kept. Until it
accepts them, no more bytes are read from the other side. If many connections keep bytes, each
connection reads smaller chunks.
"""

from __future__ import annotations

import contextlib
import socket

from aerobee_chassis.tls_port.poller import IN, OUT, Poller

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class End(Protocol):
        """A socket, or TLS over a socket. Raises BlockingIOError instead of waiting."""

        def fileno(self) -> int: ...

        def recv_into(self, buffer: memoryview, /) -> int: ...

        def send(self, data: memoryview, /) -> int: ...

        def shutdown(self, how: int, /) -> None: ...

        def close(self) -> None: ...


CHUNK_BYTES = 256 * 1024
SMALL_CHUNK_BYTES = 16 * 1024  # one TLS record; used while KEPT_BYTES or more are kept
KEPT_BYTES = 64 * 1024 * 1024
NOTHING = memoryview(b"")


class Kept:
    """The number of bytes that all connections of a relay keep until the receiver accepts them."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0

    @property
    def chunk_bytes(self) -> int:
        """Return how many bytes a connection reads at a time."""
        return CHUNK_BYTES if self.size < KEPT_BYTES else SMALL_CHUNK_BYTES


class Direction:
    """One direction of a connection, from `source` to `sink`.

    It has ended if the source has no more bytes, or the sink accepts no more.
    """

    __slots__ = ("ended", "pending", "sink", "source")

    def __init__(self, source: End, sink: End) -> None:
        self.source = source
        self.sink = sink
        self.pending = NOTHING
        self.ended = False

    @property
    def interest_in_source(self) -> int:
        return 0 if self.ended or self.pending else IN

    @property
    def interest_in_sink(self) -> int:
        return OUT if self.pending else 0


class Connection:
    """Relay between `client` and `backend` until both directions have ended or a side fails.

    After that, close both sides and call `on_close`, once. All connections of a thread share
    `buffer` and `kept`.
    """

    __slots__ = ("_backend", "_buffer", "_client", "_down", "_kept", "_on_close", "_poller", "_up")

    def __init__(
        self,
        poller: Poller,
        client: End,
        backend: End,
        buffer: memoryview,
        kept: Kept,
        *,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_close: Callable[[], None] | None = on_close
        self._kept = kept
        self._poller = poller
        self._client = client
        self._backend = backend
        self._buffer = buffer
        self._up = Direction(client, backend)
        self._down = Direction(backend, client)

    def start(self) -> None:
        self._wait()

    def close(self) -> None:
        for way in (self._up, self._down):
            way.ended = True
            self._keep(way, NOTHING)
        for end in (self._client, self._backend):
            self._poller.forget(end.fileno())
            end.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()

    def _client_ready(self, events: int) -> None:
        self._ready(events, self._up, self._down)

    def _backend_ready(self, events: int) -> None:
        self._ready(events, self._down, self._up)

    def _ready(self, events: int, from_here: Direction, to_here: Direction) -> None:
        # Errors and hang-ups are reported for every interest.
        if to_here.pending and events & ~IN:
            self._flush(to_here)
        if events & ~OUT and from_here.interest_in_source:
            self._forward(from_here)

    def _forward(self, way: Direction) -> None:
        buffer = self._buffer
        try:
            count = way.source.recv_into(buffer[: self._kept.chunk_bytes])
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        if not count:
            self._end(way)
            return
        try:
            sent = way.sink.send(buffer[:count])
        except BlockingIOError:
            sent = 0
        except OSError:
            self._sink_broke(way)
            return
        if sent < count:
            self._keep(way, memoryview(bytes(buffer[sent:count])))
            self._wait()

    def _flush(self, way: Direction) -> None:
        try:
            sent = way.sink.send(way.pending)
        except BlockingIOError:
            return
        except OSError:
            self._sink_broke(way)
            return
        self._keep(way, way.pending[sent:] if sent < len(way.pending) else NOTHING)
        if not way.pending:
            self._wait()

    def _end(self, way: Direction) -> None:
        with contextlib.suppress(OSError):
            way.sink.shutdown(socket.SHUT_WR)
        self._ended(way)

    def _sink_broke(self, way: Direction) -> None:
        if way is self._down:
            self.close()
        else:
            # The server has closed. Its last bytes may contain the reason, so still send them.
            self._ended(way)

    def _ended(self, way: Direction) -> None:
        way.ended = True
        self._keep(way, NOTHING)
        if self._up.ended and self._down.ended:
            self.close()
        else:
            self._wait()

    def _keep(self, way: Direction, data: memoryview) -> None:
        self._kept.size += len(data) - len(way.pending)
        way.pending = data

    def _wait(self) -> None:
        up, down = self._up, self._down
        self._poller.wait_for(
            self._client.fileno(), up.interest_in_source | down.interest_in_sink, self._client_ready
        )
        self._poller.wait_for(
            self._backend.fileno(),
            down.interest_in_source | up.interest_in_sink,
            self._backend_ready,
        )
