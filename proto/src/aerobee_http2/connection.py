"""One connection of HTTP/2 (RFC 9113) that carries calls of gRPC to a server.

It opens no sockets and knows no deadlines. A server that violates the protocol loses the
connection, and its calls fail. What a server can make the client store is bounded: by windows for
data, by MAX_BLOCK_BYTES for headers, and by MAX_REPLY_BYTES for answers to its frames.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from aerobee_http2 import frames
from aerobee_http2.calls import (
    PREFIX,
    STREAM_WINDOW,
    Call,
    CallFailed,
    deadline_passed,
    failure_of_reset,
)
from aerobee_http2.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    ProtocolError,
)
from aerobee_http2.framing import MAX_BLOCK_BYTES, NOT_HTTP2, FrameReader
from aerobee_http2.hpack import MalformedBlock, decode


@dataclass(frozen=True, slots=True)
class Times:
    """The times of connections, in seconds."""

    # A broker that restarts on the same port is reached again within a second.
    first_backoff_s: float = 0.1
    last_backoff_s: float = 1.0
    connect_s: float = 3.0  # for one attempt, with TLS and the settings of the server
    # A frozen or disconnected peer is detected 12 s after a call began, or after 40 s without
    # calls. TCP alone never detects it.
    silence_s: float = 2.0
    keepalive_s: float = 30.0
    ping_timeout_s: float = 10.0
    pings_idle: bool = True  # whether a server without calls gets pings after `keepalive_s`


# A server may send frames of data of this size; it sends fewer of them.
FRAME_BYTES = 1024 * 1024
CONNECTION_WINDOW = 64 * 1024 * 1024
# The server gets credit again when it has used half of a window.
_LOW_CONNECTION, _LOW_STREAM = CONNECTION_WINDOW // 2, STREAM_WINDOW // 2
EARLY_S = 0.001  # by which a timer may come too early
SOONEST_S = 0.01  # between two checks of all deadlines
# Bytes that wait for a server which sends frames that need answers, and does not read them.
MAX_REPLY_BYTES = 1024 * 1024
WRITE_BYTES = 256 * 1024  # of data in one write

OPENING = b"".join((
    frames.PREFACE,
    frames.settings(
        (frames.HEADER_TABLE_SIZE, 0),
        (frames.ENABLE_PUSH, 0),
        (frames.INITIAL_WINDOW_SIZE, STREAM_WINDOW),
        (frames.MAX_FRAME_SIZE, FRAME_BYTES),
        (frames.MAX_HEADER_LIST_SIZE, MAX_BLOCK_BYTES),
    ),
    frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW),
))  # fmt: skip

SOCKET_CLOSED = "Socket closed"  # by the server; `tls_cause` knows this text of gRPC's


class Connection(FrameReader):
    """A connection to one server. Use it on one event loop.

    All calls have one timer, for the next deadline. Most calls have ended before it.

    The server gets a ping after a silence of `times.keepalive_s`, or of `times.silence_s` if a call
    began in it. Without calls, it gets one only if `times.pings_idle`. Then it has
    `times.ping_timeout_s` to send something. `on_closed` is called once, after the last call has
    ended.

    Attributes:
        opened: A future that is done when the server has sent its settings, or has failed.
        accepts: Whether new calls may begin.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        times: Times,
        on_closed: Callable[[Connection], None],
        buffer: memoryview,
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(FRAME_BYTES, buffer)
        self._loop = loop
        self._now_s = now_s
        self._times = times
        self._on_closed = on_closed
        self.opened: asyncio.Future[None] = loop.create_future()
        self.accepts = False
        self._transport: asyncio.Transport | None = None
        self._write: Callable[[bytes], None] = _discard
        self._closed_because: CallFailed | None = None
        self._farewell = ""  # why the server ends the connection, if it says so
        # calls
        self._calls: dict[int, Call] = {}
        # With block and request, in their order: the server or the socket takes no more calls.
        self._waiting: OrderedDict[Call, tuple[bytes, bytes | None]] = OrderedDict()
        self._blocked: dict[Call, None] = {}  # with data to send and no window, in their order
        self._next_stream = 1
        # what the server has set
        self._max_calls = math.inf
        self._initial_window = frames.DEFAULT_WINDOW
        self._frame_bytes = frames.DEFAULT_FRAME_BYTES
        # sending
        self._send_window = frames.DEFAULT_WINDOW
        self._is_paused = False  # the socket does not take more at present
        # receiving
        self._receive_window = CONNECTION_WINDOW
        # deadlines
        self._due: asyncio.TimerHandle | None = None
        self._due_at = math.inf
        self._due_after = -math.inf  # not before this time again
        # pings
        self._heard_at = 0.0
        self._asked_at = math.inf  # when the first call began after that
        self._silence: asyncio.TimerHandle | None = None
        self._keepalive: asyncio.TimerHandle | None = None
        self._answer: asyncio.TimerHandle | None = None  # of a ping

    # ---- calls ----

    def begin(self, call: Call, block: bytes, request: bytes | None) -> None:
        """Send a call, or queue it while the server accepts no more calls.

        `block` contains the encoded headers. The request is None if the call writes it later, as
        a stream of messages.
        """
        call.carried_by(self)
        if call.deadline_s < self._due_at:
            self._check_deadlines_at(call.deadline_s)
        if len(self._calls) >= self._max_calls or self._is_paused or self._waiting:
            self._waiting[call] = block, request
        else:
            self._send(call, block, request)

    def abandon(self, call: Call) -> None:
        """Reset the stream of a call that the client has given up."""
        if self._waiting.pop(call, None) is None and self._calls.pop(call.stream, None) is not None:
            self._write(frames.reset(call.stream, frames.CANCEL))
        self._finished(call)

    def give_credit(self, call: Call) -> None:
        """Let the server send more of a call whose messages were read."""
        if credit := call.take_credit():
            self._write(frames.window_update(call.stream, credit))

    def send_more(self, call: Call) -> None:
        """Send what a call has written, and the end of its request if no more follows."""
        if not call.stream:  # the call waits for its stream
            return
        if call.unsent:
            self._send_data(call)
        elif not call.more_follows:
            self._write(frames.frame(DATA, END_STREAM, call.stream))

    @property
    def is_idle(self) -> bool:
        return not self._calls and not self._waiting

    def close(self, failure: CallFailed) -> None:
        """Close the connection. Its calls end with `failure`."""
        self._write(frames.frame(frames.GOAWAY, 0, 0, bytes(8)))
        self._abort(failure)

    def drain(self) -> None:
        """Accept no new calls, and close the connection after the last one."""
        self.accepts = False
        if self.is_idle and self.opened.done() and self._closed_because is None:
            self.close(CallFailed("UNAVAILABLE", "the connection is closed"))

    def _send(self, call: Call, block: bytes, request: bytes | None) -> None:
        stream = self._next_stream
        self._next_stream = stream + 2
        if self._next_stream > frames.MAX_STREAM:
            self.accepts = False
        self._calls[stream] = call
        if self._asked_at == math.inf:
            self._asked_at = self._now_s()
            if self._silence is None:
                self._silence = self._loop.call_later(self._times.silence_s, self._check_silence)
        window = self._initial_window
        if request is None:
            call.opened(stream, window, call.unsent)
            self._write(frames.headers(stream, block, self._frame_bytes))
            self.send_more(call)
            return
        size = len(request) + PREFIX.size
        prefix = PREFIX.pack(0, len(request))
        if (
            size <= self._frame_bytes
            and size <= self._send_window
            and size <= window
            and len(block) <= self._frame_bytes
        ):
            self._send_window -= size
            call.opened(stream, window - size)
            head = HEAD.pack(len(block) << 8 | HEADERS, END_HEADERS, stream)
            data = HEAD.pack(size << 8 | DATA, END_STREAM, stream)
            self._write(b"".join((head, block, data, prefix, request)))
        else:
            parts = (memoryview(prefix), memoryview(request)) if request else (memoryview(prefix),)
            call.opened(stream, window, parts)
            self._write(frames.headers(stream, block, self._frame_bytes))
            self._send_data(call)

    def _send_data(self, call: Call) -> None:
        """Send as much of a request as the windows allow."""
        while call.unsent:
            pieces: list[bytes | memoryview] = []
            budget = WRITE_BYTES
            while call.unsent and budget > 0 and not self._is_paused:
                first = call.unsent[0]
                window = min(self._send_window, call.send_window)
                size = min(len(first), self._frame_bytes, window, budget)
                if size <= 0:
                    break
                is_last = size == len(first) and len(call.unsent) == 1 and not call.more_follows
                head = HEAD.pack(size << 8 | DATA, END_STREAM if is_last else 0, call.stream)
                pieces += (head, first[:size])
                call.sent(size)
                self._send_window -= size
                budget -= size
            if not pieces:
                self._blocked[call] = None
                return
            self._write(b"".join(pieces))
        self._blocked.pop(call, None)

    def _send_blocked(self) -> None:
        for call in tuple(self._blocked):
            if self._send_window <= 0 or self._is_paused:
                return
            self._send_data(call)

    def _send_waiting(self) -> None:
        while self._waiting and len(self._calls) < self._max_calls and not self._is_paused:
            call, (block, request) = self._waiting.popitem(last=False)
            if self._next_stream <= frames.MAX_STREAM:
                self._send(call, block, request)
            else:
                call.carried_by(None)
                call.end(_unprocessed())

    def _finished(self, call: Call) -> None:
        """Forget a call that has ended on this connection."""
        call.carried_by(None)
        if self._blocked:
            self._blocked.pop(call, None)
        if self._waiting:
            self._send_waiting()
        if not self.accepts:
            self.drain()

    # ---- asyncio.BufferedProtocol ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._write = self._transport.write
        self._heard_at = self._now_s()
        self._write(OPENING)
        self._keepalive = self._loop.call_later(self._times.keepalive_s, self._check_keepalive)

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send_blocked()
        self._send_waiting()

    def connection_lost(self, error: Exception | None) -> None:
        self._end(CallFailed("UNAVAILABLE", self._farewell or _reason(error)))

    def buffer_updated(self, size: int) -> None:
        if self.is_closed:
            return
        self._heard_at = self._now_s()
        self._asked_at = math.inf
        try:
            self._receive(self._buffer[:size])
        except ProtocolError as error:
            self._violated(str(error), error.code)
        except MalformedBlock as error:
            self._violated(str(error), frames.COMPRESSION_ERROR)

    # ---- receiving ----

    def _check_stream(self, kind: int, stream: int) -> None:
        if not stream & 1 or stream >= self._next_stream:
            raise ProtocolError(f"the stream {stream} does not exist")

    def _receive_data(
        self, stream: int, flags: int, data: memoryview, size: int, is_whole: bool
    ) -> None:
        self._receive_window -= size
        if self._receive_window < _LOW_CONNECTION:
            if self._receive_window < 0:
                raise ProtocolError("data exceeds the window", frames.FLOW_CONTROL_ERROR)
            self._reply(frames.window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        call = self._calls.get(stream)
        if call is None:  # it was given up
            return
        call.received(size)
        try:
            if data:
                call.data(data)
            if is_whole and flags & END_STREAM:
                raise CallFailed("INTERNAL", "the response ends without a status")
        except CallFailed as failure:
            call.abandon(failure)
            return
        if call.receive_window <= _LOW_STREAM:
            self.give_credit(call)

    def _receive_headers(self, stream: int, flags: int, block: bytes) -> None:
        fields = decode(block)
        call = self._calls.get(stream)
        if call is None:  # it was given up
            return
        if flags & END_STREAM:
            del self._calls[stream]
            if call.unsent or call.more_follows:  # the server needs no more of the request
                self._write(frames.reset(stream, frames.NO_ERROR))
            self._finished(call)
            call.trailers(fields)
            return
        try:
            call.headers(fields)
        except CallFailed as failure:
            call.abandon(failure)

    def _receive_control(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if (receive := _CONTROL.get(kind)) is not None:
            receive(self, flags, stream, payload)

    def _receive_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream:
            raise ProtocolError("a SETTINGS frame belongs to the connection")
        if flags & ACK:
            return
        values = frames.read_settings(payload)
        self._max_calls = values.get(frames.MAX_CONCURRENT_STREAMS, self._max_calls)
        self._frame_bytes = values.get(frames.MAX_FRAME_SIZE, self._frame_bytes)
        if frames.INITIAL_WINDOW_SIZE in values:
            more = values[frames.INITIAL_WINDOW_SIZE] - self._initial_window
            self._initial_window += more
            for call in self._calls.values():
                call.widen(more)
        self._reply(frames.frame(frames.SETTINGS, ACK, 0))
        if not self.opened.done():
            self.accepts = True
            self.opened.set_result(None)
        self._send_blocked()
        self._send_waiting()

    def _receive_push(self, _flags: int, _stream: int, _payload: bytes) -> None:
        raise ProtocolError("a push was not allowed")

    def _receive_ping(self, flags: int, _stream: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ProtocolError("a PING frame has a wrong size", frames.FRAME_SIZE_ERROR)
        if not flags & ACK:
            self._reply(frames.frame(frames.PING, ACK, 0, payload))

    def _receive_reset(self, _flags: int, stream: int, payload: bytes) -> None:
        code = frames.number_in(payload)
        if (call := self._calls.pop(stream, None)) is not None:
            self._finished(call)
            call.end(failure_of_reset(code))

    def _receive_window_update(self, _flags: int, stream: int, payload: bytes) -> None:
        more = frames.number_in(payload) & frames.MAX_WINDOW
        if not more:
            raise ProtocolError("an update of a window is 0")
        if stream == 0:
            self._send_window += more
            if self._send_window > frames.MAX_WINDOW:
                raise ProtocolError("the window is too large", frames.FLOW_CONTROL_ERROR)
            self._send_blocked()
        elif (call := self._calls.get(stream)) is not None:
            call.widen(more)
            if call.unsent:
                self._send_data(call)

    def _receive_goaway(self, _flags: int, _stream: int, payload: bytes) -> None:
        """Begin no more calls. Those that the server has not seen may run elsewhere."""
        if len(payload) < 8:
            raise ProtocolError("a GOAWAY frame has a wrong size", frames.FRAME_SIZE_ERROR)
        last, code = frames.NUMBER.unpack_from(payload)[0], frames.NUMBER.unpack_from(payload, 4)[0]
        self.accepts = False
        if code:
            self._farewell = f"it ended the connection with the error code {code}"
        unseen = [call for stream, call in self._calls.items() if stream > last & frames.MAX_STREAM]
        for call in unseen:
            del self._calls[call.stream]
            self._blocked.pop(call, None)
        unseen += self._waiting
        self._waiting.clear()
        for call in unseen:
            call.carried_by(None)
            call.end(_unprocessed())
        self.drain()

    def _reply(self, frame: bytes) -> None:
        self._write(frame)
        transport = self._transport
        if (
            self._is_paused
            and transport is not None
            and transport.get_write_buffer_size() > MAX_REPLY_BYTES
        ):
            raise ProtocolError("it does not read the answers to its frames")

    # ---- deadlines and pings ----

    def _check_deadlines_at(self, due_at: float) -> None:
        if self._due is not None:
            self._due.cancel()
        self._due_at = max(due_at, self._due_after)
        self._due = self._loop.call_later(self._due_at - self._now_s(), self._check_deadlines)

    def _check_deadlines(self) -> None:
        """End the calls whose deadlines have passed."""
        now = self._now_s() + EARLY_S
        self._due, self._due_at, self._due_after = None, math.inf, now + SOONEST_S
        next_at = math.inf
        for call in (*self._calls.values(), *self._waiting):
            if call.deadline_s <= now:
                call.abandon(deadline_passed())
            else:
                next_at = min(next_at, call.deadline_s)
        if next_at < self._due_at and not self.is_closed:
            self._check_deadlines_at(next_at)

    def _check_silence(self) -> None:
        """Ping a server that has sent nothing since a call began."""
        self._silence = None
        if self._asked_at != math.inf and self._calls:
            due_s = self._asked_at + self._times.silence_s - self._now_s()
            if due_s > 0:
                self._silence = self._loop.call_later(due_s, self._check_silence)
            else:
                self._ping()

    def _check_keepalive(self) -> None:
        due_s = self._heard_at + self._times.keepalive_s - self._now_s()
        if due_s <= 0:
            if self._calls or self._times.pings_idle:
                self._ping()
            due_s = self._times.keepalive_s
        self._keepalive = self._loop.call_later(due_s, self._check_keepalive)

    def _ping(self) -> None:
        if self._answer is None:
            self._write(frames.frame(frames.PING, 0, 0, bytes(8)))
            due_at = self._now_s() + self._times.ping_timeout_s
            self._answer = self._loop.call_later(
                self._times.ping_timeout_s, self._check_answer, self._heard_at, due_at
            )

    def _check_answer(self, heard_at: float, due_at: float) -> None:
        """Close the connection if the server has sent nothing since `heard_at`, after `due_at`."""
        self._answer = None
        if self._heard_at > heard_at:
            return
        left_s = due_at - self._now_s()
        if left_s > EARLY_S:
            self._answer = self._loop.call_later(left_s, self._check_answer, heard_at, due_at)
        else:
            self._abort(CallFailed("UNAVAILABLE", "it does not answer pings"))

    # ---- the end ----

    def _violated(self, problem: str, code: int) -> None:
        self._write(frames.frame(frames.GOAWAY, 0, 0, bytes(4) + frames.NUMBER.pack(code)))
        details = problem if problem == NOT_HTTP2 else f"it violates HTTP/2: {problem}"
        self._abort(CallFailed("UNAVAILABLE", details))

    def _abort(self, failure: CallFailed) -> None:
        """Close the socket at once: a frozen server would never read what waits for it."""
        if self._transport is not None:
            self._transport.abort()
        self._end(failure)

    def _end(self, failure: CallFailed) -> None:
        if self._closed_because is not None:
            return
        self._closed_because = failure
        self.is_closed = True
        self.accepts = False
        self._write = _discard
        for timer in (self._due, self._silence, self._keepalive, self._answer):
            if timer is not None:
                timer.cancel()
        calls, self._calls = self._calls, {}
        waiting, self._waiting = self._waiting, OrderedDict()
        self._blocked.clear()
        self._forget()
        for call in calls.values():
            call.carried_by(None)
            call.end(failure)
        for call in waiting:
            call.carried_by(None)
            call.end(failure if failure.status == "CANCELLED" else _unprocessed())
        if not self.opened.done():
            self.opened.set_exception(failure)
            self.opened.exception()  # it is also raised to the channel, if it still waits
        self._on_closed(self)


_CONTROL: dict[int, Callable[[Connection, int, int, bytes], None]] = {
    frames.SETTINGS: Connection._receive_settings,
    frames.WINDOW_UPDATE: Connection._receive_window_update,
    frames.RST_STREAM: Connection._receive_reset,
    frames.PING: Connection._receive_ping,
    frames.GOAWAY: Connection._receive_goaway,
    frames.PUSH_PROMISE: Connection._receive_push,
}


def _discard(_data: bytes) -> None:
    """Write nothing: the connection is not open."""


def _reason(error: Exception | None) -> str:
    """Return why a connection was lost. The descriptions of `ssl` are for `tls_cause`."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.strerror:
        return error.strerror.lower()
    return str(error or "") or SOCKET_CLOSED


def _unprocessed() -> CallFailed:
    details = "the server closes the connection"
    return CallFailed("UNAVAILABLE", details, was_not_processed=True)
