"""One connection of HTTP/2 (RFC 9113) on which a server serves calls of gRPC.

It accepts no sockets and has no timers: a listener calls `check`. A peer that violates the protocol
or one of the limits loses the connection. What a peer can make the server store is bounded: by the
windows of its streams, by MAX_BLOCK_BYTES for headers, and by MAX_UNSENT_BYTES for answers to its
frames. Everything that one turn of the event loop sends leaves in one write.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

from aerobee_http2 import frames
from aerobee_http2.calls import PREFIX
from aerobee_http2.frames import ACK, DATA, END_HEADERS, END_STREAM, HEAD, HEADERS, ProtocolError
from aerobee_http2.framing import MAX_BLOCK_BYTES, NOT_HTTP2, FrameReader
from aerobee_http2.hpack import Decoder, HeadersTooLarge, MalformedBlock
from aerobee_http2.request_head import OPENING, MalformedHead, RequestHead, http_error, trailers
from aerobee_http2.server_stream import ServerStream

# A client may send frames of data of this size; larger ones delay calls of the same connection.
FRAME_BYTES = 256 * 1024
CONNECTION_WINDOW = 16 * 1024 * 1024
HEADER_TABLE_BYTES = 4_096  # the default of HTTP/2
# Bytes that wait for a peer which does not read. The server reads no more of its frames until it
# does, because most of them have answers.
MAX_UNSENT_BYTES = 1024 * 1024
WRITE_BYTES = 256 * 1024  # of data in one write, and of one stream before the next one
WRITES_A_TURN = 4
# Resets of running calls in a burst, and how many of them are forgotten each second. A client that
# gives up many long polls resets each of them once.
MAX_RESETS, RESETS_A_S = 20_000, 200.0
# Settings that change the windows of all running calls.
MAX_CHANGES, CHANGES_A_S = 100, 10.0
CLOSE_S = 5.0  # for a peer to read what was written before its connection was closed
# Heads that are remembered, and the largest block of one: calls of a client have the same headers.
_HEADS, _HEAD_BYTES = 64, 512


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits of a connection."""

    streams: int = 10_000  # that run at once
    lookahead_bytes: int = 512 * 1024  # of each request, before it is read
    header_list_bytes: int = 16 * 1024
    keepalive_s: float = 60.0  # after this silence, a peer gets a ping
    ping_timeout_s: float = 30.0  # for its answer
    ping_interval_s: float = 1.0  # between pings of the peer; earlier ones are strikes
    ping_strikes: int = 20


# Return the stream for a call, or the block that ends a call which is not served. None refuses the
# call in a way that lets its caller repeat it elsewhere.
Accept = Callable[["ServerConnection", RequestHead], ServerStream | bytes | None]
# Run an action at the end of the present turn of the event loop.
AtEndOfTurn = Callable[[Callable[[], None]], object]


class _Bucket:
    """Count events that a peer may cause `most` times in a burst, and `rate` times each second."""

    __slots__ = ("_at_s", "_count", "_most", "_problem", "_rate")

    def __init__(self, most: int, rate: float, problem: str) -> None:
        self._most = most
        self._rate = rate
        self._problem = problem
        self._count = self._at_s = 0.0

    def count(self, now_s: float) -> None:
        """Count an event. Raises ProtocolError if there were too many."""
        self._count = max(0.0, self._count - (now_s - self._at_s) * self._rate) + 1
        self._at_s = now_s
        if self._count > self._most:
            raise ProtocolError(self._problem, frames.ENHANCE_YOUR_CALM)


class ServerConnection(FrameReader):
    """A connection of one client. Use it on one event loop.

    Args:
        loop: The event loop.
        buffer: The buffer for reads.
        limits: The limits.
        accept: Accepts the calls.
        at_end: Runs an action at the end of a turn of the loop.
        now_s: Returns the time, by a clock that does not jump.
        on_made: Is called when the socket, and its TLS, are ready.
        on_closed: Is called once, after the last stream has ended and the socket is closed.
        silent_at_s: The time until which the settings of the peer must have arrived.

    Attributes:
        transport: The transport, after the connection was made.
        accepts: Whether new calls may begin.
        opened: Whether the peer has sent its settings.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        buffer: memoryview,
        limits: ServerLimits,
        *,
        accept: Accept,
        at_end: AtEndOfTurn,
        now_s: Callable[[], float],
        on_made: Callable[[ServerConnection], None],
        on_closed: Callable[[ServerConnection], None],
        silent_at_s: float = math.inf,
    ) -> None:
        super().__init__(FRAME_BYTES, buffer)
        self._loop = loop
        self._limits = limits
        self._accept = accept
        self._at_end = at_end
        self._now_s = now_s
        self._on_made = on_made
        self._on_closed = on_closed
        self.accepts = True
        self._preface_left = frames.PREFACE
        # streams
        self._streams: dict[int, ServerStream] = {}
        self._last_stream = 0
        self._decoder = Decoder(HEADER_TABLE_BYTES, limits.header_list_bytes)
        self._heads: dict[bytes, RequestHead] = {}  # by their blocks, of this version of the table
        self._heads_version = 0
        self._seen: set[int] = set()  # hashes of blocks that came once
        self._resets = _Bucket(MAX_RESETS, RESETS_A_S, "too many calls were reset")
        self._changes = _Bucket(MAX_CHANGES, CHANGES_A_S, "the windows change too often")
        # what the peer has set
        self._initial_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        # sending
        self._out: list[bytes | memoryview] = []  # of this turn
        self._out_bytes = 0
        self._flushes = False  # at the end of this turn
        self._ready: dict[ServerStream, None] = {}  # with data to send, in their order
        self._send_window = frames.DEFAULT_WINDOW
        self._is_paused = True  # the socket does not take more at present
        self._reads = True  # the peer reads the answers to what it has sent
        # receiving
        self._receive_window = CONNECTION_WINDOW
        self._held = 0  # bytes without credit, which streams hold
        # times
        self._silent_at_s = silent_at_s
        self._heard_at_s = 0.0
        self._pinged_at_s = math.inf  # when the ping was sent that was not answered
        self._peer_pinged_at_s = -math.inf
        self._strikes = 0
        # the end
        self._is_draining = False
        self._drained_at_s = math.inf  # when it began
        self._closed_at_s = math.inf

    # ---- asyncio.BufferedProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._is_paused = False
        self._heard_at_s = self._now_s()
        self._put(
            frames.settings(
                (frames.MAX_CONCURRENT_STREAMS, self._limits.streams),
                (frames.INITIAL_WINDOW_SIZE, self._limits.lookahead_bytes),
                (frames.MAX_FRAME_SIZE, FRAME_BYTES),
                (frames.MAX_HEADER_LIST_SIZE, self._limits.header_list_bytes),
            )
            + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)
        )
        self._on_made(self)

    def buffer_updated(self, size: int) -> None:
        if self.is_closed:
            return
        self._heard_at_s = self._now_s()
        try:
            data = self._buffer[:size]
            if self._preface_left:
                data = self._read_preface(data)
            self._receive(data)
        except ProtocolError as error:
            self._violated(str(error), error.code)
        except MalformedBlock as error:
            self._violated(str(error), frames.COMPRESSION_ERROR)
        if self._is_paused and not self.is_closed and self._unsent_bytes > MAX_UNSENT_BYTES:
            self._reads = False
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        if not self._reads and not self.is_closed:
            self._reads = True
            self.transport.resume_reading()
        if self._ready:
            self._schedule()

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()
        self._on_closed(self)

    # ---- state and end ----

    @property
    def opened(self) -> bool:
        return self._has_settings

    @property
    def is_made(self) -> bool:
        """Return whether the connection was made. Only then it reports its end."""
        return hasattr(self, "transport")

    def drain(self) -> None:
        """Accept no new calls soon, and close the connection after the last one.

        Calls that the peer sends before it reads this still run. It answers a ping that follows,
        and what it sends after the answer does not run.
        """
        if not self._is_draining:
            self._is_draining = True
            self._drained_at_s = self._now_s()
            self._put(
                frames.goaway(frames.MAX_STREAM, frames.NO_ERROR)
                + frames.frame(frames.PING, 0, 0, _DRAIN_PING)
            )

    def abort(self) -> None:
        """Close the socket at once. Running calls are cancelled."""
        self.transport.abort()
        self._end()

    def check(self, now_s: float) -> float:
        """Ping or close a silent peer. Return when to check again."""
        if self.is_closed:
            if now_s >= self._closed_at_s + CLOSE_S:
                self.transport.abort()
            return self._closed_at_s + CLOSE_S
        if not self.opened:
            if now_s >= self._silent_at_s:
                self.abort()
            return self._silent_at_s
        if self._is_draining and self.accepts:  # the peer has not answered yet
            due_s = self._drained_at_s + self._limits.ping_timeout_s
            if now_s < due_s:
                return due_s
            self._refuse_calls()
        return self._check_silence(now_s)

    def _check_silence(self, now_s: float) -> float:
        limits = self._limits
        if self._heard_at_s > self._pinged_at_s:
            self._pinged_at_s = math.inf
        if self._pinged_at_s == math.inf:
            due_s = self._heard_at_s + limits.keepalive_s
            if now_s < due_s:
                return due_s
            self._pinged_at_s = now_s
            self._put(frames.frame(frames.PING, 0, 0, bytes(8)))
        elif now_s >= self._pinged_at_s + limits.ping_timeout_s:
            self.abort()
        return self._pinged_at_s + limits.ping_timeout_s

    # ---- sending (the carrier of streams) ----

    def send_headers(self, stream: ServerStream) -> None:
        self._put(frames.headers(stream.stream, OPENING, self._frame_bytes))
        stream.headers_sent()

    def send_whole(self, stream: ServerStream, message: bytes, block: bytes) -> bool:
        size = len(message) + PREFIX.size
        if (
            self._is_paused
            or self.is_closed
            or stream.queued
            or size > self._send_window
            or size > stream.send_window
            or size > self._frame_bytes
            or self._out_bytes > WRITE_BYTES
        ):
            return False
        number = stream.stream
        parts: list[bytes] = []
        if not stream.has_sent_headers:
            parts = [HEAD.pack(_OPENING_HEAD, END_HEADERS, number), OPENING]
        parts += (
            HEAD.pack(size << 8 | DATA, 0, number),
            PREFIX.pack(0, size - PREFIX.size),
            message,
            HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS | END_STREAM, number),
            block,
        )
        self._send_window -= size
        self._out += parts
        self._out_bytes += size
        self._schedule()
        self._finish(stream)
        return True

    def send(self, stream: ServerStream) -> None:
        if stream.is_over or self.is_closed:
            return
        if stream.queued:
            self._send_data(stream)
        elif stream.ending is not None:
            self._send_end(stream)

    def give_credit(self, stream: ServerStream, more: int) -> None:
        if not stream.is_over:
            self._put(frames.window_update(stream.stream, more))

    def hold(self, more: int) -> None:
        self._held += more
        if more < 0 and not self.transport.is_closing():
            self._refill()

    def _reset(self, stream: ServerStream, code: int) -> None:
        """End a stream without a status. Raises ProtocolError."""
        if self._streams.pop(stream.stream, None) is not None:
            self._ready.pop(stream, None)
            self._put(frames.reset(stream.stream, code))
            stream.finished(was_cancelled=True)
            self._resets.count(self._heard_at_s)  # the peer has caused it
            self._check_drained()

    def _send_data(self, stream: ServerStream) -> None:
        """Send queued data of a stream, up to WRITE_BYTES, and its end."""
        if not stream.has_sent_headers:
            self.send_headers(stream)
        budget = WRITE_BYTES
        while stream.queued and budget > 0:
            if self._is_paused or self._out_bytes >= WRITE_BYTES or self._send_window <= 0:
                self._ready[stream] = None
                return
            if stream.send_window <= 0:  # an update of the window continues it
                self._ready.pop(stream, None)
                return
            size = min(
                stream.queued, stream.send_window, self._send_window, self._frame_bytes, budget
            )
            parts = stream.take(size)
            self._send_window -= size
            budget -= size
            self._out_bytes += size
            self._out.append(HEAD.pack(size << 8 | DATA, 0, stream.stream))
            self._out += parts
            self._strikes = 0
            self._schedule()
            stream.sent(size)  # other calls may begin now
        if stream.queued:  # other streams are next
            self._ready.pop(stream, None)
            self._ready[stream] = None
            self._schedule()
            return
        self._ready.pop(stream, None)
        if stream.ending is not None and not stream.is_over:
            self._send_end(stream)

    def _send_end(self, stream: ServerStream) -> None:
        """Send the trailers; with the headers, if there is no message."""
        block = stream.ending
        assert block is not None
        if not stream.has_sent_headers:
            block = OPENING + block
        self._put(frames.headers(stream.stream, block, self._frame_bytes, END_STREAM))
        self._finish(stream)

    def _finish(self, stream: ServerStream) -> None:
        """Forget a stream whose end was sent."""
        del self._streams[stream.stream]
        self._strikes = 0
        if self._ready:
            self._ready.pop(stream, None)
        if not stream.is_half_closed:  # the server needs no more of the request
            self._put(frames.reset(stream.stream, frames.NO_ERROR))
        stream.finished(was_cancelled=False)
        if self._is_draining:
            self._check_drained()

    def _put(self, data: bytes) -> None:
        self._out.append(data)
        self._out_bytes += len(data)
        self._schedule()

    def _schedule(self) -> None:
        if not self._flushes:
            self._flushes = True
            self._at_end(self._flush)

    def _flush(self) -> None:
        """Write what this turn sends."""
        for _ in range(WRITES_A_TURN):
            self._write_out()
            if not self._ready:
                break
            for stream in tuple(self._ready):
                if self._is_paused or self._send_window <= 0 or self._out_bytes >= WRITE_BYTES:
                    break
                self._send_data(stream)
            if not self._out:
                break
        self._write_out()
        self._flushes = bool(self._ready) and not self._is_paused and self._send_window > 0
        if self._flushes:  # other work of the loop comes first
            self._loop.call_soon(self._flush)

    def _write_out(self) -> None:
        if self._out and not self.is_closed:
            out, self._out, self._out_bytes = self._out, [], 0
            self.transport.write(out[0] if len(out) == 1 else b"".join(out))

    @property
    def _unsent_bytes(self) -> int:
        return self.transport.get_write_buffer_size() + self._out_bytes

    # ---- receiving ----

    def _read_preface(self, data: memoryview) -> memoryview:
        """Return what follows the preface. Raises ProtocolError."""
        size = min(len(data), len(self._preface_left))
        if data[:size] != self._preface_left[:size]:
            raise ProtocolError(NOT_HTTP2)
        self._preface_left = self._preface_left[size:]
        return data[size:]

    def _check_stream(self, kind: int, stream: int) -> None:
        if not stream & 1 or (kind != HEADERS and stream > self._last_stream):
            raise ProtocolError(f"the stream {stream} does not exist")

    def _receive_data(
        self, stream: int, flags: int, data: memoryview, size: int, is_whole: bool
    ) -> None:
        self._receive_window -= size
        if self._receive_window < 0:
            raise ProtocolError("data exceeds the window", frames.FLOW_CONTROL_ERROR)
        self._refill()
        found = self._streams.get(stream)
        if found is None:  # it has ended
            return
        if found.is_half_closed:
            raise ProtocolError("data follows the end of its request", frames.STREAM_CLOSED)
        if is_whole and flags & END_STREAM:
            found.half_closed(data, size)
        else:
            found.data(data, size)

    def _refill(self) -> None:
        """Give the peer credit for what was read, when half of the window is used."""
        window = CONNECTION_WINDOW - self._held
        if self._receive_window < window // 2:
            self._put(frames.window_update(0, window - self._receive_window))
            self._receive_window = window

    def _receive_headers(self, stream: int, flags: int, block: bytes) -> None:
        if (found := self._streams.get(stream)) is not None:
            with suppress(HeadersTooLarge):  # trailers of a request, which gRPC does not use
                self._decoder.decode(block)
            if not flags & END_STREAM or found.is_half_closed:
                raise ProtocolError("the headers of a call follow its headers")
            found.half_closed()
            return
        try:
            head = self._head(block)
        except HeadersTooLarge as error:
            head = None
            ending = trailers("RESOURCE_EXHAUSTED", str(error))
        except MalformedHead:
            if self._begins(stream):
                self._put(frames.reset(stream, frames.PROTOCOL_ERROR))
            return
        if not self._begins(stream):
            return
        if len(self._streams) >= self._limits.streams or not self.accepts:
            self._put(frames.reset(stream, frames.REFUSED_STREAM))
            return
        if head is None:
            self._answer(stream, flags, OPENING + ending)
        elif head.http_status:
            self._answer(stream, flags, http_error(head.http_status))
        else:
            self._begin(stream, flags, head)

    def _begins(self, stream: int) -> bool:
        """Return whether a stream is new: frames of streams that have ended may follow them."""
        if stream <= self._last_stream:
            return False
        self._last_stream = stream
        return True

    def _begin(self, number: int, flags: int, head: RequestHead) -> None:
        stream = self._accept(self, head)
        if stream is None:
            self._put(frames.reset(number, frames.REFUSED_STREAM))
        elif isinstance(stream, bytes):
            self._answer(number, flags, OPENING + stream)
        else:
            stream.opened(self, number, self._initial_window)
            self._streams[number] = stream
            if flags & END_STREAM:
                stream.half_closed()
            stream.begun()

    def _answer(self, stream: int, flags: int, block: bytes) -> None:
        """End a call that is not served."""
        self._put(frames.headers(stream, block, self._frame_bytes, END_STREAM))
        if not flags & END_STREAM:
            self._put(frames.reset(stream, frames.NO_ERROR))

    def _head(self, block: bytes) -> RequestHead:
        """Return the head in a block. Raises MalformedHead or HeadersTooLarge."""
        heads, decoder = self._heads, self._decoder
        version = decoder.version
        if version != self._heads_version:  # the blocks mean something else now
            heads.clear()
            self._heads_version = version
        elif (head := heads.get(block)) is not None:
            return head
        head = RequestHead(decoder.decode(block))
        if len(block) <= _HEAD_BYTES and version == decoder.version:
            self._remember(block, head)
        return head

    def _remember(self, block: bytes, head: RequestHead) -> None:
        """Keep the head of a block that came for the second time: many calls have their own."""
        key = hash(block)
        if key in self._seen:
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[block] = head
        elif len(self._seen) < _HEADS:
            self._seen.add(key)
        else:
            self._seen = {key}

    def _receive_control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if (receive := _CONTROL.get(kind)) is not None:
            receive(self, flags, stream, payload)

    def _receive_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ProtocolError("a SETTINGS frame belongs to the connection")
        if flags & ACK:
            if payload:
                raise ProtocolError("a SETTINGS frame has a wrong size", frames.FRAME_SIZE_ERROR)
            return
        values = frames.read_settings(payload, by_server=False)
        self._frame_bytes = min(values.get(frames.MAX_FRAME_SIZE, self._frame_bytes), WRITE_BYTES)
        if frames.INITIAL_WINDOW_SIZE in values:
            more = values[frames.INITIAL_WINDOW_SIZE] - self._initial_window
            if more:
                self._initial_window += more
                self._changes.count(self._heard_at_s)
                for each in tuple(self._streams.values()):
                    self._widen(each, more)
        self._put(frames.frame(frames.SETTINGS, ACK, 0))

    def _receive_ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ProtocolError("a PING frame belongs to the connection")
        if len(payload) != 8:
            raise ProtocolError("a PING frame has a wrong size", frames.FRAME_SIZE_ERROR)
        if flags & ACK:
            if self._is_draining and payload == _DRAIN_PING:
                self._refuse_calls()
            return
        now_s = self._heard_at_s
        if now_s < self._peer_pinged_at_s + self._limits.ping_interval_s:
            self._strikes += 1
            if self._strikes > self._limits.ping_strikes:
                raise ProtocolError("too_many_pings", frames.ENHANCE_YOUR_CALM)
        self._peer_pinged_at_s = now_s
        self._put(frames.frame(frames.PING, ACK, 0, payload))

    def _receive_reset(self, _flags: int, stream: int, payload: bytes) -> None:
        frames.number_in(payload)
        if (found := self._streams.pop(stream, None)) is None:
            return
        self._ready.pop(found, None)
        found.finished(was_cancelled=True)
        self._resets.count(self._heard_at_s)
        if self._is_draining:
            self._check_drained()

    def _receive_window_update(self, _flags: int, stream: int, payload: bytes) -> None:
        more = frames.number_in(payload) & frames.MAX_WINDOW
        if stream == 0:
            self._send_window += more
            if not more or self._send_window > frames.MAX_WINDOW:
                raise ProtocolError("the window is invalid", frames.FLOW_CONTROL_ERROR)
            if self._ready:
                self._schedule()
        elif stream > self._last_stream:
            raise ProtocolError(f"the stream {stream} does not exist")
        elif (found := self._streams.get(stream)) is not None:
            if not more:
                self._reset(found, frames.PROTOCOL_ERROR)
            else:
                self._widen(found, more)

    def _widen(self, stream: ServerStream, more: int) -> None:
        stream.widen(more)
        if stream.send_window > frames.MAX_WINDOW:
            self._reset(stream, frames.FLOW_CONTROL_ERROR)
        elif stream.queued and stream.send_window > 0:
            self._ready[stream] = None
            self._schedule()

    def _receive_goaway(self, _flags: int, stream: int, payload: bytes) -> None:
        """Accept a notice that the peer begins no more calls. It closes the connection itself."""
        if stream:
            raise ProtocolError("a GOAWAY frame belongs to the connection")
        if len(payload) < 8:
            raise ProtocolError("a GOAWAY frame has a wrong size", frames.FRAME_SIZE_ERROR)

    def _receive_unexpected(self, _flags: int, _stream: int, _payload: bytes) -> None:
        raise ProtocolError("a client sends no pushes")

    # ---- the end ----

    def _refuse_calls(self) -> None:
        """Let no more calls begin on a connection that drains."""
        if self.accepts:
            self.accepts = False
            self._put(frames.goaway(self._last_stream, frames.NO_ERROR))
            self._check_drained()

    def _check_drained(self) -> None:
        if self._is_draining and not self.accepts and not self._streams and not self.is_closed:
            self._write_out()
            self.transport.close()
            self._end()

    def _violated(self, problem: str, code: int) -> None:
        self._put(frames.goaway(self._last_stream, code, problem.encode()[:200]))
        self._write_out()
        if self.transport.get_write_buffer_size():  # it does not read
            self.transport.abort()
        else:
            self.transport.close()
        self._end()

    def _end(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._closed_at_s = self._now_s()
        self.accepts = False
        self._forget()
        self._ready.clear()
        self._out.clear()
        self._heads.clear()
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.finished(was_cancelled=True)


_OPENING_HEAD = len(OPENING) << 8 | HEADERS
_DRAIN_PING = b"draining"
_CONTROL: dict[int, Callable[[ServerConnection, int, int, bytes], None]] = {
    frames.SETTINGS: ServerConnection._receive_settings,
    frames.WINDOW_UPDATE: ServerConnection._receive_window_update,
    frames.RST_STREAM: ServerConnection._receive_reset,
    frames.PING: ServerConnection._receive_ping,
    frames.GOAWAY: ServerConnection._receive_goaway,
    frames.PUSH_PROMISE: ServerConnection._receive_unexpected,
}
assert MAX_BLOCK_BYTES <= FRAME_BYTES
