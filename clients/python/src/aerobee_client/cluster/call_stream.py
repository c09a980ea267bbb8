"""Make unary calls to one server over one stream, which costs less than a call of its own.

The stream is opened by the first call. If it ends, the calls without an answer fail, and the next
call opens another one. Each RENEW_S another stream takes the new calls, so that they reach the
server over a connection with present certificates.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from aerobee.call.v1 import call_pb2

from aerobee_wire.status import MqError

RENEW_S = 60.0


class Unsupported(Exception):
    """The server does not make calls over a stream. It has not made this call."""


class Stream(Protocol):
    """A stream of frames in both directions, as the transport opens it.

    One task may read while another one writes.
    """

    async def write(self, frame: bytes) -> None:
        """Write a frame. Do nothing if the stream has ended."""

    async def read(self) -> bytes | None:
        """Return the next frame, or None at the end of the stream."""

    def failure(self) -> Exception:
        """Return a new error, Unsupported or MqError, for a call without an answer at the end."""

    def cancel(self) -> None:
        """End the stream at once, with the calls in progress."""


class CallStream:
    """Makes calls to one server. Use and close it on one event loop.

    `open_stream` opens a stream. `expired` returns the error for a call without an answer after the
    given seconds.
    """

    def __init__(
        self, open_stream: Callable[[], Stream], expired: Callable[[float], MqError]
    ) -> None:
        self._open = open_stream
        self._expired = expired
        self._loop = asyncio.get_running_loop()
        self._streams: set[_OpenStream] = set()  # with calls in progress, or the present one
        self._present: _OpenStream | None = None

    async def call(
        self, path: str, request: bytes, metadata: Mapping[str, str], timeout_s: float
    ) -> call_pb2.AnswerFrame:
        """Make the call of an RPC, and return its answer.

        Raises MqError if no answer arrives, and Unsupported.
        """
        stream = self._present
        if stream is None or not stream.accepts(self._loop.time()):
            stream = self._renew(stream)
        answer = stream.send(path, request, metadata, timeout_s)
        expiry = self._loop.call_later(timeout_s, self._expire, answer, timeout_s)
        try:
            return await answer.frame
        except BaseException:
            stream.forget(answer)
            raise
        finally:
            expiry.cancel()

    def retire(self) -> None:
        """Make no further calls on the present stream. It ends after its calls in progress."""
        present, self._present = self._present, None
        if present is not None:
            present.retire()

    async def close(self) -> None:
        """End the streams at once. Their calls fail."""
        self._present = None
        await asyncio.gather(*(stream.close() for stream in tuple(self._streams)))

    def _renew(self, former: _OpenStream | None) -> _OpenStream:
        if former is not None:
            former.retire()
        stream = self._present = _OpenStream(self._open(), self._loop, self._streams.discard)
        self._streams.add(stream)
        return stream

    def _expire(self, answer: _Answer, timeout_s: float) -> None:
        if not answer.frame.done():
            answer.frame.set_exception(self._expired(timeout_s))


class _Answer(NamedTuple):
    """The answer that the call with this number waits for."""

    number: int
    frame: asyncio.Future[call_pb2.AnswerFrame]


class _OpenStream:
    """One stream with its calls in progress. `gone` is called at its end."""

    def __init__(
        self,
        stream: Stream,
        loop: asyncio.AbstractEventLoop,
        gone: Callable[[_OpenStream], None],
    ) -> None:
        self._stream = stream
        self._loop = loop
        self._gone = gone
        self._numbers = itertools.count(1)
        self._awaited: dict[int, asyncio.Future[call_pb2.AnswerFrame]] = {}
        # Frames that are not written yet, by the number of the call, which is negative for its
        # cancellation. gRPC accepts one write at a time.
        self._unwritten: dict[int, bytes] = {}
        self._writing: asyncio.Task[None] | None = None
        self._renew_at = loop.time() + RENEW_S
        self._has_ended = False
        self._is_retired = False
        self._reading = loop.create_task(self._read())

    def accepts(self, now_s: float) -> bool:
        return now_s < self._renew_at and not self._has_ended

    def send(
        self, path: str, request: bytes, metadata: Mapping[str, str], timeout_s: float
    ) -> _Answer:
        """Start a call."""
        number = next(self._numbers)
        frame = call_pb2.CallFrame(
            id=number,
            path=path,
            request=request,
            timeout_ms=max(1, int(timeout_s * 1_000)),
            metadata=metadata,
        )
        answer = self._awaited[number] = self._loop.create_future()
        self._write(number, frame.SerializeToString())
        return _Answer(number, answer)

    def forget(self, answer: _Answer) -> None:
        """Cancel a call whose caller has stopped waiting for the answer."""
        number = answer.number
        if self._awaited.pop(number, None) is None or self._has_ended:
            return
        if self._unwritten.pop(number, None) is None:
            self._write(-number, call_pb2.CallFrame(id=number, cancel=True).SerializeToString())
        self._end_if_idle()

    def retire(self) -> None:
        """End the stream after its calls in progress."""
        self._is_retired = True
        self._end_if_idle()

    async def close(self) -> None:
        """End the stream at once. Its calls fail."""
        self._stream.cancel()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def _end_if_idle(self) -> None:
        if self._is_retired and not self._awaited and self._writing is None:
            self._stream.cancel()

    def _write(self, number: int, frame: bytes) -> None:
        self._unwritten[number] = frame
        if self._writing is None:
            self._writing = self._loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        try:
            while self._unwritten:
                await self._stream.write(self._unwritten.pop(next(iter(self._unwritten))))
        finally:
            self._writing = None
            self._end_if_idle()

    async def _read(self) -> None:
        """Pass each answer to its call. At the end of the stream, fail the calls without one."""
        awaited = self._awaited
        try:
            while (data := await self._stream.read()) is not None:
                answer = call_pb2.AnswerFrame.FromString(data)
                waiting = awaited.pop(answer.id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
                self._end_if_idle()
        finally:
            self._has_ended = True
            self._gone(self)
            self._stream.cancel()
            if self._writing is not None:
                self._writing.cancel()
            for waiting in awaited.values():
                if not waiting.done():
                    waiting.set_exception(self._stream.failure())
            awaited.clear()
