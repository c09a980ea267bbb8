"""One relayed connection over sockets that a test holds: order, backpressure, half-close,
breakage."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

import pytest

from aerobee_chassis.tls_port.connection import (
    CHUNK_BYTES,
    KEPT_BYTES,
    SMALL_CHUNK_BYTES,
    Connection,
    Kept,
)
from aerobee_chassis.tls_port.poller import IN, OUT


class FakeEnd:
    """A non-blocking socket: `incoming` is to be read (b"" is the end, an OSError is raised),
    `room` is how many bytes it takes before it would wait."""

    numbers = iter(range(10_000))

    def __init__(self, room: int = 1 << 30) -> None:
        self.number = next(self.numbers)
        self.incoming: list[bytes | OSError] = []
        self.room = room
        self.taken = b""
        self.broken = False
        self.shut = False
        self.closed = False

    def fileno(self) -> int:
        return self.number

    def recv_into(self, buffer: memoryview, /) -> int:
        if not self.incoming:
            raise BlockingIOError
        data = self.incoming.pop(0)
        if isinstance(data, OSError):
            raise data
        if len(data) > len(buffer):
            self.incoming.insert(0, data[len(buffer) :])
            data = data[: len(buffer)]
        buffer[: len(data)] = data
        return len(data)

    def send(self, data: memoryview, /) -> int:
        if self.broken:
            raise BrokenPipeError
        count = min(self.room, len(data))
        if not count:
            raise BlockingIOError
        self.taken += bytes(data[:count])
        self.room -= count
        return count

    def shutdown(self, how: int, /) -> None:
        assert how == socket.SHUT_WR
        self.shut = True

    def close(self) -> None:
        self.closed = True


class FakePoller:
    """The interest in each socket, and level-triggered turns over them."""

    def __init__(self) -> None:
        self.waiting: dict[int, tuple[int, Callable[[int], None]]] = {}

    def wait_for(self, fd: int, interest: int, on_event: Callable[[int], None]) -> None:
        if interest:
            self.waiting[fd] = (interest, on_event)
        else:
            self.forget(fd)

    def forget(self, fd: int) -> None:
        self.waiting.pop(fd, None)

    def interest(self, end: FakeEnd) -> int:
        return self.waiting.get(end.fileno(), (0, None))[0]


class Pair:
    def __init__(self, buffer_bytes: int = 16, kept: Kept | None = None) -> None:
        self.kept = kept or Kept()
        self.poller = FakePoller()
        self.client, self.backend = FakeEnd(), FakeEnd()
        buffer = memoryview(bytearray(buffer_bytes))
        self.connection = Connection(
            self.poller,  # type: ignore[arg-type]  # it has the methods that a connection calls
            self.client,
            self.backend,
            buffer,
            self.kept,
        )
        self.connection.start()

    @property
    def closed(self) -> bool:
        assert self.client.closed == self.backend.closed
        return self.client.closed

    def settle(self) -> None:
        """Turns until nothing is ready any more. Fails if that never happens."""
        for _ in range(1_000):
            if not self.turn():
                return
        pytest.fail("it spins")

    def turn(self) -> bool:
        busy = False
        for end in (self.client, self.backend):
            interest, on_event = self.poller.waiting.get(end.fileno(), (0, None))
            ready = (IN if end.incoming else 0) | (OUT if end.room or end.broken else 0)
            if on_event is not None and ready & interest:
                on_event(ready & interest)
                busy = True
        return busy


def test_bytes_pass_both_ways_in_order() -> None:
    pair = Pair()
    pair.client.incoming = [b"a" * 40, b"b"]
    pair.backend.incoming = [b"c", b"d" * 40]
    pair.settle()
    assert pair.backend.taken == b"a" * 40 + b"b"
    assert pair.client.taken == b"c" + b"d" * 40
    assert not pair.closed


def test_a_full_end_stops_the_reading_of_the_other() -> None:
    pair = Pair()
    pair.client.room = 5
    pair.backend.incoming = [b"0123456789", b"more"]
    pair.settle()
    assert pair.client.taken == b"01234"
    assert pair.backend.incoming == [b"more"]
    # Nor are hang-ups waited for: epoll would report them again and again.
    assert pair.poller.interest(pair.backend) == 0
    assert pair.poller.interest(pair.client) == IN | OUT

    pair.client.room = 100
    pair.settle()
    assert pair.client.taken == b"0123456789more"
    assert pair.poller.interest(pair.client) == IN


def test_bytes_of_slow_readers_are_counted_until_they_are_taken() -> None:
    pair = Pair()
    pair.client.room = 5
    pair.backend.incoming = [b"0123456789", b"more"]
    pair.settle()
    assert pair.kept.size == 5
    pair.client.room = 100
    pair.settle()
    assert pair.kept.size == 0


@pytest.mark.parametrize("ended", [True, False])
def test_bytes_of_a_connection_that_ends_are_not_kept(ended: bool) -> None:
    pair = Pair()
    pair.client.room = 0
    pair.backend.incoming = [b"0123456789"]
    pair.settle()
    if ended:
        pair.client.broken = True
        pair.settle()
    else:
        pair.connection.close()
    assert pair.closed and pair.kept.size == 0


def test_where_much_is_kept_each_connection_reads_little() -> None:
    kept = Kept()
    slow = [Pair(CHUNK_BYTES, kept) for _ in range(2 * KEPT_BYTES // CHUNK_BYTES)]
    for pair in slow:
        pair.client.room = 0
        pair.backend.incoming = [bytes(CHUNK_BYTES)]
        pair.settle()
    assert kept.size <= KEPT_BYTES + len(slow) * SMALL_CHUNK_BYTES
    for pair in slow:
        pair.client.room = 2 * CHUNK_BYTES
        pair.settle()
        assert len(pair.client.taken) == CHUNK_BYTES
    assert kept.size == 0


def test_a_slow_reader_may_still_send() -> None:
    pair = Pair()
    pair.client.room = 0
    pair.backend.incoming = [b"answer"]
    pair.client.incoming = [b"request"]
    pair.settle()
    assert pair.backend.taken == b"request"
    assert pair.client.taken == b""


def test_the_end_of_a_direction_leaves_the_other_open() -> None:
    pair = Pair()
    pair.client.incoming = [b"last words", b""]
    pair.settle()
    assert pair.backend.taken == b"last words"
    assert pair.backend.shut and not pair.client.shut
    assert not pair.backend.closed

    pair.backend.incoming = [b"answer", b""]
    pair.settle()
    assert pair.client.taken == b"answer"
    assert pair.closed
    assert pair.poller.waiting == {}


def test_the_end_waits_for_pending_bytes() -> None:
    pair = Pair()
    pair.client.room = 0
    pair.backend.incoming = [b"answer", b""]
    pair.settle()
    assert not pair.client.shut
    pair.client.room = 100
    pair.settle()
    assert pair.client.taken == b"answer"
    assert pair.client.shut


def test_a_reset_closes_both() -> None:
    for side in ("client", "backend"):
        pair = Pair()
        getattr(pair, side).incoming = [ConnectionResetError()]
        pair.settle()
        assert pair.closed, side
        assert pair.poller.waiting == {}


def test_a_client_that_closed_ends_the_connection() -> None:
    pair = Pair()
    pair.client.broken = True
    pair.backend.incoming = [b"answer"]
    pair.settle()
    assert pair.closed


def test_last_bytes_of_a_server_that_closed_reach_the_client() -> None:
    pair = Pair()
    pair.backend.broken = True
    pair.client.incoming = [b"request", b"more"]
    pair.backend.incoming = [b"goodbye", b""]
    pair.settle()
    assert pair.client.taken == b"goodbye"
    assert pair.closed


@pytest.mark.parametrize("seed", range(20))
def test_no_byte_is_lost_or_reordered(seed: int) -> None:
    chance = random.Random(seed)
    pair = Pair(buffer_bytes=chance.randint(1, 64))
    sent = {}
    for end in (pair.client, pair.backend):
        parts = [chance.randbytes(chance.randint(1, 100)) for _ in range(50)]
        sent[end] = b"".join(parts)
        end.incoming = [*parts, b""]
        end.room = 0
    for _ in range(10_000):
        for end in (pair.client, pair.backend):
            end.room = chance.choice([0, 1, 7, 30])
        pair.turn()
        if pair.closed:
            break
    assert pair.closed
    assert pair.backend.taken == sent[pair.client]
    assert pair.client.taken == sent[pair.backend]
