"""A call that a server serves: the messages that arrive, and the answer that leaves.

A stream knows no frames. A connection passes data to it, and sends what it has queued. A subclass
gets the messages one by one, when it asks for them.

The peer may send `lookahead_bytes` before the server asks for a message, and then the rest of this
message. So no more than this is in memory for a call. All streams of a connection together hold
little more than `unread_bytes` each, and the window of the connection.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from typing import Protocol

from aerobee_http2 import frames
from aerobee_http2.calls import PREFIX, append_piece
from aerobee_http2.request_head import ENCODINGS, OK, RequestHead, trailers

_NOTHING = memoryview(b"")
_GZIP_WINDOW, _ZLIB_WINDOW = 31, 15  # zlib's numbers for the formats of "gzip" and "deflate"


class Carrier(Protocol):
    """The connection of a stream, as the stream needs it."""

    def send(self, stream: ServerStream) -> None:
        """Send what the stream has queued, as far as the windows and the socket allow."""

    def send_headers(self, stream: ServerStream) -> None: ...

    def send_whole(self, stream: ServerStream, message: bytes, block: bytes) -> bool:
        """Send a message and the end of the stream, if all of it fits now."""

    def give_credit(self, stream: ServerStream, more: int) -> None: ...

    def hold(self, more: int) -> None:
        """Give the peer no credit for `more` bytes; if negative, give it again."""


class ServerStream:
    """One call. A subclass receives the messages and the end.

    Attributes:
        head: The headers of the call.
        connection: The connection that carries the stream.
        stream: The number of the stream.
        send_window: Bytes that the peer still accepts.
        outgoing: Parts of messages to send.
        queued: The bytes in `outgoing`.
        ending: The block that ends the response after `outgoing`; None until the end is known.
        has_sent_headers: Whether the headers of the response were sent.
        is_half_closed: Whether the peer sends nothing more.
        is_over: Whether the stream has ended: the response was sent, or the stream was reset.
    """

    __slots__ = (
        "_buffered", "_is_compressed", "_later", "_limit_bytes", "_lookahead", "_missing",
        "_pieces", "_queued_total", "_uncredited", "_unread_bytes", "_waiters", "_wants",
        "_window", "connection", "ending", "has_sent_headers", "head", "is_half_closed", "is_over",
        "outgoing", "queued", "send_window", "stream",
    )  # fmt: skip

    connection: Carrier

    def __init__(
        self,
        head: RequestHead,
        lookahead_bytes: int,
        limit_bytes: int,
        unread_bytes: int | None = None,
    ) -> None:
        """Create a stream whose messages have at most `limit_bytes`.

        While the server asks for no message, the connection gives no credit for what the stream
        holds beyond `unread_bytes`.
        """
        self.head = head
        self.stream = 0
        self.send_window = 0
        self.is_half_closed = self.is_over = self.has_sent_headers = False
        # receiving
        self._lookahead = self._window = lookahead_bytes
        self._limit_bytes = limit_bytes
        self._unread_bytes = unread_bytes
        self._uncredited = 0  # bytes without credit of the connection
        self._pieces: list[bytes] | None = None  # of the next message, if its prefix has arrived
        self._missing = 0  # bytes of this message
        self._is_compressed = False
        self._later = bytearray()  # what follows it, or the beginning of its prefix
        self._buffered = 0  # bytes in both
        self._wants = False  # the server asks for a message
        # sending
        self.outgoing: deque[bytes | memoryview] = deque()
        self.queued = 0
        self._queued_total = 0  # since the stream began
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.ending: bytes | None = None

    # ---- for subclasses ----

    def begun(self) -> None:
        """Begin the call: its headers have arrived."""
        raise NotImplementedError

    def message(self, message: bytes | None) -> None:
        """Take the message that the server asked for; None if there is none any more."""
        raise NotImplementedError

    def unreadable(self, status: str, problem: str) -> None:
        """End the call, because its messages cannot be read."""
        raise NotImplementedError

    def sent(self, size: int) -> None:
        """Note that `size` bytes of the answer, with prefixes, were sent or discarded."""
        raise NotImplementedError

    def over(self, was_cancelled: bool) -> None:
        """Note the end of the stream. If it was cancelled, nothing more can be sent."""
        raise NotImplementedError

    # ---- requests ----

    def ask(self) -> None:
        """Ask for the next message. `message` gets it, perhaps at once."""
        self._wants = True
        self._hold()
        self._take()

    def data(self, data: memoryview, size: int) -> None:
        """Take a part of the request, which is valid only until this returns.

        `size` includes padding. Raises ProtocolError.
        """
        self._window -= size
        if self._window < 0:
            problem = "data exceeds the window of its call"
            raise frames.ProtocolError(problem, frames.FLOW_CONTROL_ERROR)
        if not data or self.is_over or self.ending is not None:  # the server needs no more of it
            return
        if self._wants and self._pieces is None and not self._later and len(data) >= PREFIX.size:
            flag, length = PREFIX.unpack_from(data)
            if not flag and len(data) == PREFIX.size + length <= self._limit_bytes:
                self._wants = False
                self.message(data[PREFIX.size :].tobytes())  # nearly every request
                return
        self._buffered += len(data)
        taken = 0
        if self._pieces is not None:
            taken = self._add(self._pieces, data)
        elif not self._later and len(data) >= PREFIX.size:
            taken = self._begin(data)
        self._later += data[taken:]
        if self._wants or self._pieces is None:
            self._take()
        self._hold()

    def half_closed(self, data: memoryview = _NOTHING, size: int = 0) -> None:
        """Take the last part of the request. Raises ProtocolError."""
        self.is_half_closed = True
        if size:
            self.data(data, size)
        if self._wants:
            self._take()

    def _take(self) -> None:
        """Pass on the message that the server asks for, if it has arrived."""
        if self._pieces is None:
            if len(self._later) >= PREFIX.size:
                later, self._later = self._later, bytearray()
                del later[: self._begin(memoryview(later))]
                self._later = later
            elif self._wants:
                self._continue()
        if not self._wants or self._pieces is None:
            return
        if self._missing:
            self._continue(self._missing)
            return
        message, self._pieces = b"".join(self._pieces), None
        self._buffered -= len(message)
        self._wants = False
        self._hold()
        if self._is_compressed:
            decompressed = self._decompressed(message)
            if decompressed is None:
                return
            message = decompressed
        self.message(message)

    def _begin(self, data: memoryview) -> int:
        """Begin the next message with its prefix. Return how many bytes of `data` were taken.

        If the server cannot read the message, end the call.
        """
        flag, length = PREFIX.unpack_from(data)
        problem = ""
        if length > self._limit_bytes:
            status, problem = "RESOURCE_EXHAUSTED", _too_large(length, self._limit_bytes)
        elif flag and (flag != 1 or self.head.encoding == "identity"):
            status = "INTERNAL"
            problem = "a message of the request has a flag of compression without grpc-encoding"
        if problem:
            self._discard()
            self.unreadable(status, problem)
            return len(data)
        self._buffered -= PREFIX.size
        self._missing, self._is_compressed = length, bool(flag)
        self._pieces = []
        return PREFIX.size + self._add(self._pieces, data[PREFIX.size :])

    def _add(self, pieces: list[bytes], data: memoryview) -> int:
        """Add data to the message. Return how many bytes belong to it."""
        part = data[: self._missing]
        append_piece(pieces, part)
        self._missing -= len(part)
        return len(part)

    def _continue(self, missing: int = 0) -> None:
        """Wait for the rest of a message, for which the peer gets credit."""
        if self.is_half_closed:
            self._wants = False
            if self._pieces is not None or self._buffered:
                self._discard()
                self.unreadable("INTERNAL", "the last message of the request is incomplete")
            else:
                self.message(None)
            return
        target = max(missing, self._lookahead)
        if self._window < missing or self._window <= self._lookahead // 2:
            self.connection.give_credit(self, target - self._window)
            self._window = target

    def _decompressed(self, message: bytes) -> bytes | None:
        """Return the content of a compressed message, or None if the call has ended for it."""
        limit = self._limit_bytes
        window = _GZIP_WINDOW if self.head.encoding == "gzip" else _ZLIB_WINDOW
        reader = zlib.decompressobj(window)
        try:
            content = reader.decompress(message, limit + 1)
        except zlib.error:
            content = None
        if content is None or (len(content) <= limit and not reader.eof):
            self.unreadable("INTERNAL", "a message of the request cannot be decompressed")
            return None
        if len(content) > limit:
            self.unreadable("RESOURCE_EXHAUSTED", _too_large(len(content), limit))
            return None
        return content

    def _discard(self) -> None:
        self._pieces = None
        self._later.clear()
        self._buffered = 0
        self._wants = False
        self._hold()

    def _hold(self) -> None:
        """Report how much the stream holds beyond what may wait for the server."""
        if self._unread_bytes is None:
            return
        held = 0 if self._wants else max(0, self._buffered - self._unread_bytes)
        if held != self._uncredited:
            more, self._uncredited = held - self._uncredited, held
            self.connection.hold(more)

    # ---- answers ----

    def queue(self, messages: list[bytes]) -> int:
        """Queue and send messages. Return their bytes, with prefixes."""
        size = 0
        outgoing = self.outgoing
        for message in messages:
            outgoing.append(PREFIX.pack(0, len(message)))
            if message:
                outgoing.append(message)
            size += PREFIX.size + len(message)
        self.queued += size
        self._queued_total += size
        return size

    def wait(self, waiter: asyncio.Future[None]) -> None:
        """Let a future end when everything that is queued now was sent."""
        self._waiters.append((self._queued_total, waiter))

    def answer(self, message: bytes) -> bool:
        """Send the only or last message and the status OK. Return whether all of it was sent.

        After the end of the stream, do nothing.
        """
        self._discard()
        if self.is_over or self.connection.send_whole(self, message, OK):
            return True
        self.queue([message])
        self.end()
        return False

    def end(self, block: bytes = OK) -> None:
        """End the stream after everything that is queued. `block` contains the trailers."""
        self.ending = block
        self._discard()
        self.connection.send(self)

    def cut(self, status: str, problem: str) -> None:
        """Discard what is queued, and end the stream with a failure."""
        self.discard_answer()
        self.end(trailers(status, problem))

    def discard_answer(self) -> None:
        size, self.queued = self.queued, 0
        self.outgoing.clear()
        waiters, self._waiters = self._waiters, deque()
        for _, waiter in waiters:
            waiter.cancel()
        if size:
            self.sent(size)

    # ---- reports of the connection ----

    def opened(self, connection: Carrier, stream: int, send_window: int) -> None:
        self.connection = connection
        self.stream = stream
        self.send_window = send_window

    def headers_sent(self) -> None:
        self.has_sent_headers = True

    def widen(self, more: int) -> None:
        """Note that the peer accepts more of the answer."""
        self.send_window += more

    def take(self, size: int) -> list[bytes | memoryview]:
        """Return the next `size` bytes of the answer, in parts. `sent` follows."""
        self.send_window -= size
        self.queued -= size
        outgoing, parts, left = self.outgoing, [], size
        while left:
            part = outgoing.popleft()
            if len(part) > left:
                view = memoryview(part)
                outgoing.appendleft(view[left:])
                part = view[:left]
            parts.append(part)
            left -= len(part)
        waiters = self._waiters
        if waiters:
            sent_total = self._queued_total - self.queued
            while waiters and waiters[0][0] <= sent_total:
                waiter = waiters.popleft()[1]
                if not waiter.done():
                    waiter.set_result(None)
        return parts

    def finished(self, was_cancelled: bool) -> None:
        """End the stream: its end was sent, or it was reset, or the connection is lost."""
        if not self.is_over:
            self.is_over = True
            self._discard()
            self.discard_answer()
            self.over(was_cancelled)


def unknown_encoding(head: RequestHead) -> bytes | None:
    """Return the end of a call whose compression the server does not know, or None."""
    if head.encoding in ENCODINGS:
        return None
    problem = f"the compression {head.encoding[:40]!r} of the request is unknown"
    return trailers("UNIMPLEMENTED", problem, (("grpc-accept-encoding", ",".join(ENCODINGS)),))


def _too_large(length: int, limit: int) -> str:
    return f"a message of the request has {length} bytes: at most {limit} are accepted"
