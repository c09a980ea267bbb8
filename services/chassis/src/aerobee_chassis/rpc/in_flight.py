"""The bytes that a server holds for calls: requests that it has read, and answers not yet sent.

gRPC reports the size of a request only when all of it is in memory. Therefore, a request is read
when there is room for a large one, and unused room is released after it has arrived. A waiting
request stays with its caller, except for its first `LOOKAHEAD_BYTES`. Methods that may have large
requests leave some room for other methods, so that an acknowledgement does not wait for sends.

This module does not know transports or clocks. The transports count and ask here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from aerobee_chassis.config import Options

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # for one request: a batch of large messages
DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024
DEFAULT_STALL_S = 30.0
# A body of 4 MiB, which is the default of maxMessageSize, with its properties.
RESERVED_BYTES = 4 * 1024 * 1024 + 256 * 1024
# gRPC takes this much of each request before the server reads it: its window of a stream.
LOOKAHEAD_BYTES = 512 * 1024
MAX_WAITING = 100_000  # calls of methods that have only small requests
# Less than the 3 s that SDKs give a call, so that they get the reason instead of a timeout.
WAIT_S = 2.0
RETRY_AFTER_MS = 1_000  # the wait that a refused caller is asked for
# An answer up to this size is always sent: it may say why there is no other.
SMALL_ANSWER_BYTES = 64 * 1024


class TooMuchInFlight(Exception):
    """The process holds as many bytes for calls as it may. This call was not executed."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"the server holds as many bytes of requests and answers as it may ({limit}): retry "
            "later, or raise maxInFlightBytes"
        )


def bounds_of(options: Options) -> InFlight:
    """Return new bounds for one server."""
    return InFlight(
        options.max_in_flight_bytes, stall_s=options.stalled_client_timeout_millis / 1_000
    )


class Reader(Protocol):
    """A call whose request is waiting to be read."""

    @property
    def kind(self) -> object:
        """Return the same value for all calls of one method."""

    def read(self, reserved: int) -> None:
        """Start reading. `reserved` bytes are counted for it: see `InFlight.arrived`."""

    def refuse(self) -> None:
        """End the call, because too many bytes are in flight."""


class InFlight:
    """The bounds of one server.

    `limit`: bytes of requests and answers together. Answers take at most half of it, so that
    callers that do not read leave room for requests. One request has at most a quarter of the
    limit, and at most MAX_MESSAGE_BYTES. `stall_s`: a caller that takes nothing of an answer for
    this time is disconnected.
    """

    def __init__(
        self, limit: int = DEFAULT_LIMIT_BYTES, *, stall_s: float = DEFAULT_STALL_S
    ) -> None:
        self.limit = limit
        self.stall_s = stall_s
        self.largest_request = min(MAX_MESSAGE_BYTES, limit // 4)
        self.requests = 0  # bytes that are read or reserved
        self.answers = 0  # bytes that no caller has taken yet
        self.peak = 0  # the highest sum of both
        self.refused = 0  # calls
        self.cut = 0  # calls whose caller did not read
        self._answer_limit = limit // 2
        self._usual = self._reserved = min(RESERVED_BYTES, self.largest_request)
        self._reading = 0
        # Kind of calls → whether one of them had a large request. A missing kind may have one.
        self._is_large: dict[object, bool] = {}
        self._large_limit = limit - max(limit // 8, self._usual)
        # Each waiting call may have LOOKAHEAD_BYTES: a quarter of the limit for all of them.
        self._large_places = max(1, limit // 4 // LOOKAHEAD_BYTES)
        # Each entry has the time when its wait ends. Calls with small requests go first.
        self._small_waiting: deque[tuple[float, Reader]] = deque()
        self._large_waiting: deque[tuple[float, Reader]] = deque()
        self._for_room: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Return the number of calls whose request waits to be read."""
        return len(self._small_waiting) + len(self._large_waiting)

    # ---- requests ----

    def admit(self, reader: Reader, now_s: float) -> None:
        """Let a call read its request now, or when there is room; or refuse it."""
        total = self.requests + self.answers + self._reserved
        is_large = self._is_large.get(reader.kind)
        if is_large is False:
            limit, waiting, places = self.limit, self._small_waiting, MAX_WAITING
        else:
            limit, waiting = self._large_limit, self._large_waiting
            places = self._large_places if is_large else 4 * self._large_places
        if total <= limit and not waiting:
            self._begin(reader, total)
        elif len(waiting) < places:
            waiting.append((now_s + WAIT_S, reader))
        else:
            self._refuse(reader)

    def arrived(self, reader: Reader, reserved: int, size: int) -> None:
        """Record that a request was read: `size` bytes are held now.

        A size of 0 means that it will not be read.
        """
        if size > LOOKAHEAD_BYTES:
            self._is_large[reader.kind] = True
        elif size:
            self._is_large.setdefault(reader.kind, False)
        self._reading -= 1
        self.requests += size - reserved
        if size > self._reserved:
            # More requests of this size are probably on their way: read fewer at a time.
            self._reserved = size
        elif not self._reading and not self.waiting:
            self._reserved = self._usual
        self._go_on()

    def done(self, size: int) -> None:
        """Release the request of an ended call."""
        self.requests -= size
        self._go_on()

    def expire(self, now_s: float) -> None:
        """Refuse the calls whose request has waited for WAIT_S."""
        for waiting in (self._small_waiting, self._large_waiting):
            while waiting and waiting[0][0] <= now_s:
                self._refuse(waiting.popleft()[1])

    def forget(self, reader: Reader) -> None:
        """Remove a call that has ended and may be waiting."""
        for waiting in (self._small_waiting, self._large_waiting):
            for entry in [entry for entry in waiting if entry[1] is reader]:
                waiting.remove(entry)

    # ---- answers ----

    def check_room(self, size: int) -> None:
        """Check that an answer of `size` bytes has room. Raises TooMuchInFlight.

        This is for handlers that may as well not answer.
        """
        answers = self.answers + size
        has_room = answers <= self._answer_limit and self.requests + answers <= self.limit
        if size > SMALL_ANSWER_BYTES and self.answers and not has_room:
            self.refused += 1
            raise TooMuchInFlight(self.limit)

    def answering(self, size: int) -> None:
        """Count bytes that are to be sent."""
        self.answers += size
        total = self.requests + self.answers
        self.peak = max(self.peak, total)

    def answered(self, size: int) -> None:
        """Release bytes that were sent or given up."""
        self.answers -= size
        self._wake()
        self._go_on()

    async def room(self, timeout_s: float) -> None:
        """Wait until there is room for a large answer. Raises TooMuchInFlight after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_full:
                    waiter = asyncio.get_running_loop().create_future()
                    self._for_room.append(waiter)
                    try:
                        await waiter
                    except asyncio.CancelledError:
                        if not waiter.cancelled():  # it was woken, and does not use the room
                            self._wake()
                        raise
        except TimeoutError:
            self.refused += 1
            raise TooMuchInFlight(self.limit) from None

    @property
    def is_full(self) -> bool:
        """Return whether answers leave no room for another large one."""
        return self.answers > 0 and not self._has_room

    # ---- steps ----

    @property
    def _has_room(self) -> bool:
        return self.answers + self._usual <= self._answer_limit

    def _wake(self) -> None:
        """Wake the first call that waits for room: the next answer may fill it again."""
        while self._for_room and not self.is_full:
            waiter = self._for_room.popleft()
            if not waiter.done():  # otherwise, its call is over
                waiter.set_result(None)
                break

    def _begin(self, reader: Reader, total: int) -> None:
        self.requests += self._reserved
        self._reading += 1
        self.peak = max(self.peak, total)
        reader.read(self._reserved)

    def _go_on(self) -> None:
        """Let waiting calls read, as far as there is room now."""
        while self._small_waiting or self._large_waiting:
            waiting, limit = self._small_waiting, self.limit
            if not waiting:
                waiting, limit = self._large_waiting, self._large_limit
            total = self.requests + self.answers + self._reserved
            if total > limit:
                return
            self._begin(waiting.popleft()[1], total)

    def _refuse(self, reader: Reader) -> None:
        self.refused += 1
        reader.refuse()


if TYPE_CHECKING:
    from prometheus_client.core import Metric


class InFlightCollector:
    """A collector for `CollectorRegistry.register`, or for use inside another collector.

    A scrape runs on another thread. It reads only numbers, which is safe. prometheus_client is
    imported at the first scrape, because metrics are off by default.

    `prefix`: the beginning of each metric's name.
    """

    def __init__(
        self, prefix: str, in_flight: InFlight, labels: Mapping[str, str] | None = None
    ) -> None:
        self._prefix = prefix
        self._in_flight = in_flight
        self._labels = labels or {}

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        bounds, prefix = self._in_flight, self._prefix
        names, values = list(self._labels), list(self._labels.values())
        held = GaugeMetricFamily(
            f"{prefix}in_flight_bytes",
            "Bytes of requests that are read, and of answers that no caller has taken.",
            labels=[*names, "kind"],
        )
        held.add_metric([*values, "requests"], bounds.requests)
        held.add_metric([*values, "answers"], bounds.answers)
        yield held
        peak = GaugeMetricFamily(
            f"{prefix}in_flight_bytes_peak",
            "The most that requests and answers were together since the start.",
            labels=names,
        )
        peak.add_metric(values, bounds.peak)
        yield peak
        for name, text, count in (
            ("refused", "because too many bytes were in flight", bounds.refused),
            ("cut", "whose caller did not read the answer", bounds.cut),
        ):
            calls = CounterMetricFamily(f"{prefix}calls_{name}", f"Calls {text}.", labels=names)
            calls.add_metric(values, count)
            yield calls
