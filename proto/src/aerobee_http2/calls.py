"""The state of one gRPC call: the messages that arrive, and how the call ends.

A call knows no frames. A connection passes data and headers to it, and asks which credit to return.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from collections import deque
from collections.abc import Mapping
from struct import Struct
from typing import Protocol
from urllib.parse import unquote_to_bytes

from aerobee_http2 import frames
from aerobee_http2.hpack import Fields

# 64 MiB: enough for a batch of large messages; the servers have the same limit
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
# Bytes of a stream that the server may send before the call takes them.
STREAM_WINDOW = 4 * 1024 * 1024

SMALL_BYTES = 1024  # of a piece of a message
PREFIX = Struct(">BI")  # of a message: whether it is compressed, and its length in bytes
assert PREFIX.size == 5

# Fields of nearly every response.
_USUAL_HEADERS: Fields = ((":status", "200"), ("content-type", "application/grpc"))
_USUAL_TRAILERS: Fields = (("grpc-status", "0"),)

CALL_ENDED = "the server has ended the call"  # of a later write

Trailers = tuple[tuple[str, str | bytes], ...]

# gRPC's names of statuses, in the order of their numbers.
STATUSES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
    "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED",
    "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip

# The status of a response without one, by its HTTP status (gRPC: "HTTP to gRPC Status Code
# Mapping"). Any other is UNKNOWN.
_OF_HTTP: Mapping[str, str] = {
    "400": "INTERNAL", "401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED", "429": "UNAVAILABLE", "502": "UNAVAILABLE", "503": "UNAVAILABLE",
    "504": "UNAVAILABLE",
}  # fmt: skip

# The status of a stream that the server resets, by the error code. Any other is INTERNAL.
_OF_RESET: Mapping[int, str] = {
    frames.REFUSED_STREAM: "UNAVAILABLE",
    frames.CANCEL: "CANCELLED",
    frames.ENHANCE_YOUR_CALM: "RESOURCE_EXHAUSTED",
    frames.INADEQUATE_SECURITY: "PERMISSION_DENIED",
}


class CallFailed(Exception):
    """A call ended with a status that is not OK.

    `status` is the name of a gRPC status. `was_not_processed` is true if the server has certainly
    not run the call, so that another connection may repeat it.
    """

    def __init__(
        self,
        status: str,
        details: str,
        trailers: Trailers = (),
        *,
        was_not_processed: bool = False,
    ) -> None:
        super().__init__(details)
        self.status = status
        self.details = details
        self.trailers = trailers
        self.was_not_processed = was_not_processed


def deadline_passed() -> CallFailed:
    return CallFailed("DEADLINE_EXCEEDED", "the deadline of the call has passed")


def given_up() -> CallFailed:
    return CallFailed("CANCELLED", "the caller gave up")


def failure_of_reset(code: int) -> CallFailed:
    return CallFailed(
        _OF_RESET.get(code, "INTERNAL"),
        f"the server reset the call with the error code {code}",
        was_not_processed=code == frames.REFUSED_STREAM,
    )


def failure_of(fields: Fields) -> CallFailed | None:
    """Return the failure in the last header fields of a call, or None for the status OK."""
    if fields == _USUAL_TRAILERS:
        return None
    values = dict(fields)
    number = values.get("grpc-status")
    if number == "0":
        return None
    if number is None:
        http = values.get(":status", "")
        if http == "200" or not http:
            return CallFailed("UNKNOWN", "the response has no status")
        return CallFailed(_OF_HTTP.get(http, "UNKNOWN"), f"the response has the HTTP status {http}")
    known = number.isascii() and number.isdigit() and len(number) < 3
    status = STATUSES[int(number)] if known and int(number) < len(STATUSES) else "UNKNOWN"
    details = unquote_to_bytes(values.get("grpc-message", "")).decode("utf-8", "replace")
    return CallFailed(status, details, _trailers(fields))


def _trailers(fields: Fields) -> Trailers:
    """Return the metadata among header fields. Values of names that end with "-bin" are bytes."""
    found: list[tuple[str, str | bytes]] = []
    for name, value in fields:
        if name.startswith(":") or name in ("content-type", "grpc-status", "grpc-message"):
            continue
        if not name.endswith("-bin"):
            found.append((name, value))
            continue
        for part in value.split(","):  # a peer may join the values of one name
            try:
                found.append((name, base64.b64decode(part + "=" * (-len(part) % 4), validate=True)))
            except (binascii.Error, ValueError):
                continue  # unreadable metadata does not hide the status
    return tuple(found)


class Carrier(Protocol):
    """The connection of a call, as the call needs it."""

    def abandon(self, call: Call) -> None: ...

    def give_credit(self, call: Call) -> None: ...

    def send_more(self, call: Call) -> None: ...


class Call:
    """One call on a stream. A subclass receives the messages and the end.

    Attributes:
        connection: The connection that carries the call; None before and after.
        deadline_s: The time of the event loop at which the connection ends the call.
        stream: The number of its stream; 0 until the call is sent.
        send_window: Bytes that the server still accepts of the request.
        receive_window: Bytes that the server may still send.
        unsent: The rest of the request, without copies; empty if everything was sent.
        more_follows: Whether the request may continue after `unsent`.
    """

    more_follows: bool = False

    __slots__ = (
        "_has_headers", "_loop", "_missing", "_pieces", "_prefix", "_uncredited",
        "connection", "deadline_s", "receive_window", "send_window", "stream", "unsent",
    )  # fmt: skip

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_s: float = math.inf) -> None:
        self._loop = loop
        self.connection: Carrier | None = None
        self.deadline_s = deadline_s
        self.stream = 0
        self.send_window = 0
        self.receive_window = STREAM_WINDOW
        self.unsent: tuple[memoryview, ...] = ()
        self._has_headers = False
        self._prefix = b""  # the beginning of the prefix of the next message
        self._pieces: list[bytes] | None = None  # of this message, if its prefix has arrived
        self._missing = 0  # bytes of this message
        self._uncredited = 0  # bytes for which the server has not got credit again

    def abandon(self, failure: CallFailed) -> None:
        """End the call on both sides."""
        if self.connection is not None:
            self.connection.abandon(self)
        self.end(failure)

    # ---- what the connection reports ----

    def carried_by(self, connection: Carrier | None) -> None:
        self.connection = connection

    def opened(self, stream: int, send_window: int, unsent: tuple[memoryview, ...] = ()) -> None:
        """Record the stream of the call, and the parts of the request that were not sent yet."""
        self.stream = stream
        self.send_window = send_window
        self.unsent = unsent

    def sent(self, size: int) -> None:
        """Record that the next `size` bytes of the request, of its first part, were sent."""
        self.send_window -= size
        first, *others = self.unsent
        self.unsent = (first[size:], *others) if size < len(first) else tuple(others)

    def widen(self, more: int) -> None:
        """Record that the server accepts more of the request. Raises ProtocolError."""
        self.send_window += more
        if self.send_window > frames.MAX_WINDOW:
            problem = "the window of a call is too large"
            raise frames.ProtocolError(problem, frames.FLOW_CONTROL_ERROR)

    def received(self, size: int) -> None:
        """Count bytes of the server, with padding. Raises ProtocolError."""
        self.receive_window -= size
        self._uncredited += size
        if self.receive_window < 0:
            problem = "data exceeds the window of its call"
            raise frames.ProtocolError(problem, frames.FLOW_CONTROL_ERROR)

    def take_credit(self) -> int:
        """Return the bytes for which the server gets credit now; 0 for none yet."""
        if self.receive_window > STREAM_WINDOW // 2:
            return 0
        credit, self._uncredited = self._uncredited, 0
        self.receive_window += credit
        return credit

    def data(self, data: memoryview) -> None:
        """Take a part of the response, which is valid only until this returns.

        Raises CallFailed if it is not a sequence of messages.
        """
        if not self._has_headers:
            raise CallFailed("INTERNAL", "the response has data before its headers")
        at, size = 0, len(data)
        while at < size:
            if self._pieces is None:
                begun = len(self._prefix)
                if not begun and size - at >= PREFIX.size:
                    start = at + PREFIX.size
                    end = start + _length(data, at)
                    if end == size:  # nearly every response
                        self.message(data[start:].tobytes())
                        return
                    if end < size:
                        self.message(data[start:end].tobytes())
                        at = end
                        continue
                self._prefix += data[at : at + PREFIX.size - begun]
                at += len(self._prefix) - begun
                if len(self._prefix) < PREFIX.size:
                    return
                self._missing = _length(self._prefix)
                self._prefix, self._pieces = b"", []
            part = data[at : at + self._missing]
            at += len(part)
            self._missing -= len(part)
            append_piece(self._pieces, part)
            if not self._missing:
                message, self._pieces = b"".join(self._pieces), None
                self.message(message)

    def headers(self, fields: Fields) -> None:
        """Take headers that do not end the call. Raises CallFailed."""
        if fields == _USUAL_HEADERS and not self._has_headers:
            self._has_headers = True
            return
        values = dict(fields)
        http = values.get(":status", "")
        if http.startswith("1"):  # informational
            return
        if self._has_headers:
            raise CallFailed("INTERNAL", "the response has headers after its headers")
        if http != "200" or not values.get("content-type", "").startswith("application/grpc"):
            raise failure_of((*fields, (":status", http or "none"))) or _no_grpc(values)
        self._has_headers = True

    def trailers(self, fields: Fields) -> None:
        """Take the headers that end the call."""
        failure = failure_of(fields)
        if failure is None and (self._prefix or self._pieces is not None):
            failure = CallFailed("INTERNAL", "the last message of the response is incomplete")
        self.end(failure)

    # ---- for subclasses ----

    def message(self, message: bytes) -> None:
        raise NotImplementedError

    def end(self, failure: CallFailed | None) -> None:
        """End the call with a failure, or None for the status OK. Later ends change nothing."""
        self.unsent = ()
        self._prefix, self._pieces = b"", None


class UnaryCall(Call):
    """A call with one response, which is the result of `outcome`."""

    __slots__ = ("_message", "outcome")

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_s: float = math.inf) -> None:
        super().__init__(loop, deadline_s)
        self._message: bytes | None = None
        self.outcome: asyncio.Future[bytes] = loop.create_future()

    def message(self, message: bytes) -> None:
        if self._message is not None:
            raise CallFailed("INTERNAL", "the response has more than one message")
        self._message = message

    def end(self, failure: CallFailed | None) -> None:
        super().end(failure)
        if self.outcome.done():  # its caller was cancelled
            return
        if failure is not None:
            self.outcome.set_exception(failure)
        elif self._message is None:
            self.outcome.set_exception(CallFailed("INTERNAL", "the response has no message"))
        else:
            self.outcome.set_result(self._message)


class StreamingCall(Call):
    """A call with a stream of responses, which `read` returns one by one.

    While a message waits for `read`, the server gets no credit. So at most the window of a stream
    and one message are in memory.
    """

    __slots__ = ("_failure", "_has_ended", "_messages", "_reader")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._messages: deque[bytes] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._has_ended = False
        self._failure: CallFailed | None = None

    async def read(self) -> bytes | None:
        """Return the next message, or None after the last one. Raises CallFailed.

        Only one task may read.
        """
        while not self._messages:
            if self._failure is not None:
                raise self._failure
            if self._has_ended:
                return None
            self._reader = self._loop.create_future()
            await self._reader
        message = self._messages.popleft()
        if not self._messages and not self._has_ended and self.connection is not None:
            self.connection.give_credit(self)
        return message

    def message(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake()

    def take_credit(self) -> int:
        return 0 if self._messages else super().take_credit()

    def end(self, failure: CallFailed | None) -> None:
        super().end(failure)
        if not self._has_ended:
            self._has_ended = True
            self._failure = failure
            self._wake()

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


class Exchange(StreamingCall):
    """A call with streams in both directions. One task may read while another one writes.

    The call ends when a read or write is cancelled.
    """

    __slots__ = ("_writer", "more_follows")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.more_follows = True
        self._writer: asyncio.Future[None] | None = None

    async def write(self, message: bytes) -> None:
        """Send a message, and return when the windows and the socket have accepted all of it.

        Raises CallFailed if the call has ended.
        """
        self._check()
        prefix = PREFIX.pack(0, len(message))
        parts: tuple[memoryview, ...] = memoryview(prefix), memoryview(message)
        if len(message) < frames.DEFAULT_FRAME_BYTES:  # one frame, for a copy of up to 16 KiB
            parts = (memoryview(prefix + message),)
        self.unsent = parts
        if self.connection is not None:
            self.connection.send_more(self)
        if not self.unsent:
            return
        self._writer = self._loop.create_future()
        try:
            await self._writer
        except asyncio.CancelledError:
            self.abandon(given_up())
            raise
        if self._has_ended:
            self._check()

    def done_writing(self) -> None:
        """End the stream of requests. Do nothing if the call has ended."""
        if self.more_follows and not self._has_ended:
            self.more_follows = False
            if self.connection is not None and not self.unsent:
                self.connection.send_more(self)

    async def read(self) -> bytes | None:
        try:
            return await super().read()
        except asyncio.CancelledError:
            self.abandon(given_up())
            raise

    def sent(self, size: int) -> None:
        super().sent(size)
        if not self.unsent:
            self._resume_writer()

    def end(self, failure: CallFailed | None) -> None:
        super().end(failure)
        self._resume_writer()

    def _check(self) -> None:
        if self._has_ended:
            raise self._failure or CallFailed("UNAVAILABLE", CALL_ENDED)

    def _resume_writer(self) -> None:
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)


def append_piece(pieces: list[bytes], part: memoryview) -> None:
    """Add a part of a message. Two small pieces become one, so that few objects are in memory."""
    if pieces and len(part) < SMALL_BYTES and len(pieces[-1]) < SMALL_BYTES:
        pieces[-1] += part
    elif part:
        pieces.append(part.tobytes())


def _length(data: bytes | memoryview, at: int = 0) -> int:
    """Return the length of the message whose prefix is at `at`. Raises CallFailed."""
    compressed, length = PREFIX.unpack_from(data, at)
    if compressed:
        raise CallFailed("INTERNAL", "a message of the response is compressed")
    if length > MAX_MESSAGE_BYTES:
        raise CallFailed(
            "RESOURCE_EXHAUSTED",
            f"a message of the response has {length} bytes: at most {MAX_MESSAGE_BYTES} are "
            "accepted",
        )
    size: int = length
    return size


def _no_grpc(values: Mapping[str, str]) -> CallFailed:
    kind = values.get("content-type", "")[:80]
    return CallFailed("UNKNOWN", f"the response is not gRPC: its content type is {kind!r}")
