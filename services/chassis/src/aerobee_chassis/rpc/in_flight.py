"""Limit the bytes that a server holds for calls: received requests, and answers not yet sent.

A request is read only when a large request would fit. After it has arrived, the unused part of this
reservation is released. A waiting request stays with its caller, except for its first
`LOOKAHEAD_BYTES`. Methods that may have large requests leave some space for other methods, so that
an acknowledgement does not wait for sends. Until the first request of a method has arrived, its
size is unknown: its calls wait, and leave the same space. A method counts as large until some 30
smaller requests have arrived.

Calls may wait if two estimates allow it: their requests, of the average size of their method, fit
into a quarter of the limit, and all of them can be read in time at the present rate. The second one
is for callers that keep their requests incomplete.

This module does not depend on the transport or a clock. The transport calls it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Protocol

from aerobee_chassis.config import Options
from aerobee_chassis.metrics.series import Kind, Metric, Series, Source
from aerobee_chassis.rpc.call import Failure
from aerobee_wire.status import Code, MqError, grpc_status_of, trailers_of

MAX_MESSAGE_BYTES = 64 * 1024 * 1024  # for one request: a batch of large messages
DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024
DEFAULT_STALL_S = 30.0
# A body of 4 MiB, which is the default of maxMessageSize, with its properties.
RESERVED_BYTES = 4 * 1024 * 1024 + 256 * 1024
# A caller may send this much of each request before the server reads it: the window of a stream.
LOOKAHEAD_BYTES = 512 * 1024
MAX_WAITING = 100_000  # calls of methods that have only small requests; as many of unknown ones
# Each request that arrives takes 1/16 off the largest size of its method, and has this weight in
# its average. After one request of 4 MiB, 34 small ones make a method small again.
_FORGET = 1 / 16
RATE_S = 0.5  # the time over which arrivals are counted, and before which any burst may wait
# Less than the 3 s that SDKs give a call, so that they get the reason instead of a timeout.
WAIT_S = 2.0
RETRY_AFTER_MS = 1_000  # a refused caller should wait this long
# An answer up to this size is always sent, because it may be an error message.
SMALL_ANSWER_BYTES = 64 * 1024


class TooMuchInFlight(Exception):
    """The server has no memory left for this call, which was not executed.

    The message says what is exhausted, and what the caller or the operator can do.
    """


def failure_of(error: Exception) -> Failure | None:
    """Return the gRPC failure for an MqError or TooMuchInFlight, or None for an unknown error."""
    if isinstance(error, TooMuchInFlight):
        error = MqError(Code.SYSTEM_BUSY, str(error), retry_after_ms=RETRY_AFTER_MS)
    if isinstance(error, MqError):
        return Failure(grpc_status_of(error.code), error.message, trailers_of(error))
    return None


def bounds_of(options: Options) -> InFlight:
    """Return a new `InFlight` for one server, with the limits in the options."""
    return InFlight(
        options.max_in_flight_bytes,
        stall_s=options.stalled_client_timeout_millis / 1_000,
        largest_request=options.largest_request,
    )


class Reader(Protocol):
    """A call whose request is waiting to be read."""

    @property
    def kind(self) -> object:
        """Return a value that is the same for all calls of one method."""

    def read(self, reserved: int) -> None:
        """Start reading the request.

        `reserved` bytes are reserved for it until `InFlight.arrived` is called.
        """

    def refuse(self, error: TooMuchInFlight) -> None:
        """End the call with an error, because too many bytes are in flight."""


class _Sizes:
    """The sizes of the requests of a method. Later requests outweigh earlier ones.

    `average` is that of the bytes that are held of a request before it is read.
    """

    __slots__ = ("average", "is_large", "largest")

    def __init__(self, size: int) -> None:
        self.largest = float(size)
        self.is_large = size > LOOKAHEAD_BYTES
        self.average = min(self.largest, LOOKAHEAD_BYTES)

    def add(self, size: int) -> None:  # without calls of functions, because each call adds one
        largest = self.largest * (1 - _FORGET)
        if size > largest:
            largest = float(size)
        self.largest, self.is_large = largest, largest > LOOKAHEAD_BYTES
        size = min(size, LOOKAHEAD_BYTES)
        self.average += (size - self.average) * _FORGET


# Readers with the time when their wait ends, which is never before that of the reader before.
_Waiting = OrderedDict[Reader, float]


class _Queue:
    """The waiting calls of methods of one size.

    They are read while all bytes in flight are at most `limit`. `arrivals` counts the requests of
    these methods that have arrived.
    """

    __slots__ = ("_counted_s", "_readable", "arrivals", "limit", "waiting")

    def __init__(self, limit: int) -> None:
        self.waiting: _Waiting = OrderedDict()
        self.limit = limit
        self.arrivals = 0
        self._counted_s = 0.0  # the time since which arrivals are counted
        self._readable = MAX_WAITING

    def readable(self, now_s: float) -> int:
        """Return how many calls can be read within WAIT_S at the present rate."""
        if not self.waiting:
            self._readable, self._counted_s, self.arrivals = MAX_WAITING, now_s, 0
        elif (counting_s := now_s - self._counted_s) >= RATE_S:
            self._readable = round(self.arrivals * WAIT_S / counting_s)
            self._counted_s, self.arrivals = now_s, 0
        return self._readable

    def continue_from(self, other: _Queue) -> None:
        """Count since the time since which another queue counts, whose calls move to this one."""
        self._readable, self._counted_s = other._readable, other._counted_s
        self.arrivals = other.arrivals


class InFlight:
    """Limit the bytes in flight of one server.

    `limit` is the maximum of the bytes of requests and answers together. Answers take at most half
    of it, so that callers that do not read leave space for requests. One request has at most a
    quarter of the limit, and at most `largest_request`. A caller that reads nothing of an answer
    for `stall_s` is disconnected.
    """

    def __init__(
        self,
        limit: int = DEFAULT_LIMIT_BYTES,
        *,
        stall_s: float = DEFAULT_STALL_S,
        largest_request: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self.limit = limit
        self.stall_s = stall_s
        self.largest_request = min(largest_request, limit // 4)
        self.requests = 0  # bytes that are read or reserved
        self.answers = 0  # bytes that callers have not read yet
        self.peak = 0  # the highest sum of both
        self.refused = 0  # calls
        self.cut = 0  # calls whose caller did not read
        self._answer_limit = limit // 2
        self._usual = self._reserved = min(RESERVED_BYTES, self.largest_request)
        self._reading = 0
        self._sizes: dict[object, _Sizes] = {}  # by kind of calls; a missing kind is unknown
        # Each waiting call holds up to LOOKAHEAD_BYTES. Those that may have large requests hold up
        # to a quarter of the limit together.
        self._large_places = max(1, limit // 4 // LOOKAHEAD_BYTES)
        # By `_Sizes.is_large`; None: methods that have had no request. The queues read in this
        # order: the first request of a method decides about all of its calls that wait.
        large_limit = limit - max(limit // 8, self._usual)
        self._queues: dict[bool | None, _Queue] = {
            False: _Queue(limit),
            None: _Queue(large_limit),
            True: _Queue(large_limit),
        }
        self._for_room: dict[asyncio.Future[None], None] = {}  # the longest wait first

    @property
    def waiting(self) -> int:
        """Return the number of calls whose request waits to be read."""
        return self.small_waiting + self.large_waiting

    @property
    def small_waiting(self) -> int:
        """Return how many of these calls are of methods that have only small requests."""
        return len(self._queues[False].waiting)

    @property
    def large_waiting(self) -> int:
        """Return how many of these calls are of methods that may have large requests."""
        return len(self._queues[None].waiting) + len(self._queues[True].waiting)

    @property
    def is_reading(self) -> bool:
        """Return whether a request is read that has not arrived whole."""
        return self._reading > 0

    # ---- requests ----

    def admit(self, reader: Reader, now_s: float) -> None:
        """Let a call read its request now, or put it into a queue, or refuse it."""
        total = self.requests + self.answers + self._reserved
        sizes = self._sizes.get(reader.kind)
        queue = self._queues[None if sizes is None else sizes.is_large]
        if total <= queue.limit and not queue.waiting:
            self._begin(reader, total)
        elif len(queue.waiting) < (places := self._places_of(queue, sizes, now_s)):
            queue.waiting[reader] = now_s + WAIT_S
        else:
            self._refuse(reader, self._too_many(places))

    def arrived(self, reader: Reader, reserved: int, size: int) -> None:
        """Record that a request was read, and that it has `size` bytes.

        A size of 0 means that the request will not be read.
        """
        self._reading -= 1
        self.requests += size - reserved
        if size > self._reserved:
            # More requests of this size will probably follow, so read fewer at a time.
            self._reserved = size
        elif self._reserved != self._usual and not self._reading and not self.waiting:
            self._reserved = self._usual
        if size:
            self._learn(reader.kind, size)
        self._go_on()

    def done(self, size: int) -> None:
        """Release the bytes of a request whose call has ended."""
        self.requests -= size
        self._go_on()

    def expire(self, now_s: float) -> None:
        """Refuse the calls whose requests have waited for WAIT_S."""
        error = TooMuchInFlight(
            f"the server had no memory for the request within {WAIT_S:g} s: requests and answers "
            f"take up to {self.limit} bytes (maxInFlightBytes); retry after "
            f"{RETRY_AFTER_MS / 1_000:g} s, send fewer calls at once, or raise the limit"
        )
        for queue in self._queues.values():
            waiting = queue.waiting
            while waiting and next(iter(waiting.values())) <= now_s:
                self._refuse(waiting.popitem(last=False)[0], error)

    def too_slow(self, reader: Reader) -> None:
        """Refuse a call whose request is arriving too slowly while other calls wait."""
        self._refuse(
            reader,
            TooMuchInFlight(
                "the request arrives too slowly while other calls wait for memory "
                f"(maxInFlightBytes is {self.limit}): retry after {RETRY_AFTER_MS / 1_000:g} s, "
                "over a faster connection or in smaller parts"
            ),
        )

    def forget(self, reader: Reader) -> None:
        """Remove a call that has ended from the queues, if it is waiting."""
        for queue in self._queues.values():
            queue.waiting.pop(reader, None)

    # ---- answers ----

    def check_room(self, size: int) -> None:
        """Check that an answer of `size` bytes fits into the limits. Raises TooMuchInFlight.

        This is for handlers that can return an error instead of the answer.
        """
        answers = self.answers + size
        has_room = answers <= self._answer_limit and self.requests + answers <= self.limit
        if size > SMALL_ANSWER_BYTES and self.answers and not has_room:
            self.refused += 1
            raise self._no_room()

    def answering(self, size: int) -> None:
        """Count `size` bytes of an answer that will be sent."""
        self.answers += size
        total = self.requests + self.answers
        self.peak = max(self.peak, total)

    def answered(self, size: int) -> None:
        """Release `size` bytes of an answer that were sent or discarded."""
        self.answers -= size
        if self._for_room:
            self._wake()
        self._go_on()

    async def room(self, timeout_s: float) -> None:
        """Wait until a large answer fits. Raises TooMuchInFlight after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.is_full:
                    waiter = asyncio.get_running_loop().create_future()
                    self._for_room[waiter] = None
                    try:
                        await waiter
                    except asyncio.CancelledError:
                        if not waiter.cancelled():  # it was woken, and does not use the room
                            self._wake()
                        raise
                    finally:
                        self._for_room.pop(waiter, None)
        except TimeoutError:
            self.refused += 1
            raise self._no_room() from None

    @property
    def is_full(self) -> bool:
        """Return whether the held answers leave no space for another large answer."""
        return self.answers > 0 and not self._has_room

    # ---- steps ----

    @property
    def _has_room(self) -> bool:
        return self.answers + self._usual <= self._answer_limit

    def _wake(self) -> None:
        """Wake the first call that waits in `room`. Its answer may take all the free space."""
        for waiter in self._for_room if not self.is_full else ():
            if not waiter.done():  # otherwise, its call is over
                waiter.set_result(None)
                break

    def _begin(self, reader: Reader, total: int) -> None:
        self.requests += self._reserved
        self._reading += 1
        self.peak = max(self.peak, total)
        reader.read(self._reserved)

    def _go_on(self) -> None:
        """Let waiting calls read their requests while there is free space."""
        for queue in self._queues.values():
            while queue.waiting:
                total = self.requests + self.answers + self._reserved
                if total > queue.limit:
                    return
                self._begin(queue.waiting.popitem(last=False)[0], total)

    def _places_of(self, queue: _Queue, sizes: _Sizes | None, now_s: float) -> int:
        """Return how many calls may wait in the queue of a method with these sizes."""
        if sizes is not None and sizes.is_large:
            return self._large_places
        places = min(self._large_places + queue.readable(now_s), MAX_WAITING)
        if sizes is None:
            return places
        return min(places, max(int(self.limit // 4 / sizes.average), self._large_places))

    def _learn(self, kind: object, size: int) -> None:
        """Learn from a request that has arrived whether a method has large requests.

        If that changes, the calls of the method move into the queue of their size. Large ones
        without a place there are refused.
        """
        sizes = self._sizes.get(kind)
        if sizes is None:
            before, sizes = None, _Sizes(size)
            self._sizes[kind] = sizes
        else:
            before = sizes.is_large
            sizes.add(size)
        queue = self._queues[sizes.is_large]
        if sizes.is_large is not before:
            former = self._queues[before]
            if not queue.waiting:
                queue.continue_from(former)
            self._move(kind, former.waiting, queue.waiting)
            if sizes.is_large:
                self._refuse_surplus(queue.waiting)
        queue.arrivals += 1

    def _move(self, kind: object, before: _Waiting, after: _Waiting) -> None:
        moving = [entry for entry in before.items() if entry[0].kind == kind]
        if not moving:
            return
        for reader, _ in moving:
            del before[reader]
        ordered = sorted((*after.items(), *moving), key=itemgetter(1))
        after.clear()
        after.update(ordered)

    def _refuse_surplus(self, waiting: _Waiting) -> None:
        surplus = list(islice(waiting, self._large_places, None))
        for reader in surplus:
            del waiting[reader]
        error = self._too_many(self._large_places)
        for reader in surplus:
            self._refuse(reader, error)

    def _too_many(self, places: int) -> TooMuchInFlight:
        return TooMuchInFlight(
            f"{places} calls already wait for memory to read their requests: send fewer calls at "
            f"once, or raise maxInFlightBytes ({self.limit}); retry after "
            f"{RETRY_AFTER_MS / 1_000:g} s"
        )

    def _no_room(self) -> TooMuchInFlight:
        return TooMuchInFlight(
            f"clients have not read {self.answers} bytes of answers, which may take up to half of "
            f"maxInFlightBytes ({self.limit}): read answers sooner, ask for fewer messages, or "
            f"raise the limit; retry after {RETRY_AFTER_MS / 1_000:g} s"
        )

    def _refuse(self, reader: Reader, error: TooMuchInFlight) -> None:
        self.refused += 1
        reader.refuse(error)


def in_flight_source(prefix: str, in_flight: InFlight) -> Source:
    """Return the metrics of `InFlight` for a registry.

    Args:
        prefix: The beginning of each metric's name.
        in_flight: The limits.
    """
    held, peak, refused, cut = in_flight_metrics(prefix)

    def collect() -> Iterator[Series]:
        yield Series(held, {("requests",): in_flight.requests, ("answers",): in_flight.answers})
        yield Series(peak, {(): in_flight.peak})
        yield Series(refused, {(): in_flight.refused})
        yield Series(cut, {(): in_flight.cut})

    return collect


def in_flight_metrics(prefix: str) -> tuple[Metric, Metric, Metric, Metric]:
    """Declare the metrics of `in_flight_source`."""

    def metric(name: str, kind: Kind, text: str, *labels: str) -> Metric:
        return Metric(prefix + name, kind, text, labels)

    return (
        metric(
            "in_flight_bytes",
            Kind.GAUGE,
            "Bytes of requests that are read, and of answers that no caller has taken.",
            "kind",
        ),
        metric(
            "in_flight_bytes_peak",
            Kind.GAUGE,
            "The most that requests and answers were together since the start.",
        ),
        metric(
            "calls_refused_total",
            Kind.COUNTER,
            "Calls refused because too many bytes were in flight.",
        ),
        metric("calls_cut_total", Kind.COUNTER, "Calls cut off because their caller did not read."),
    )
