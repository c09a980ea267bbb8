"""The store as it grows to ten million messages: an append, a read of old messages, and a start.

In process, without gRPC. What is timed of an append is what the broker's loop does for it.
"""

from __future__ import annotations

import os
import random
import sys
import time
from pathlib import Path

from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewBatch
from bench.growth.points import curve
from bench.measure import Result
from bench.store import MIB, opened, scratch

MILLION = 1_000_000
COUNTS = (MILLION, 2 * MILLION, 5 * MILLION, 10 * MILLION)
SCALE = float(os.environ.get("GROWTH_SCALE", "1"))  # a small run shows only that it works
QUEUES, BATCH = 8, 512
READ = 32
READS = 200
APPENDS = 40
ROUNDS = 7
LIMITS = {"append": ("us/message", 1.3), "read": ("us/message", 1.3), "start": ("ms", 4.0)}
FILE_SIZE = 256 * MIB
TOPIC = "orders"
BODY = bytes(range(100))


class Growing:
    """A store that grows, and is measured at some sizes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store = opened(path, FILE_SIZE)
        self._batches = 0
        self._rng = random.Random(3)

    def append(self, batches: int) -> float:
        """Append batches with an id and a key for each message. Return the µs of a message."""
        flush, used = self._store.flush, 0.0
        for _ in range(batches):
            numbers = range(self._batches * BATCH, (self._batches + 1) * BATCH)
            named = [b"UNIQ_KEY\x01%032X\x02KEYS\x01order-%d\x02" % (n, n) for n in numbers]
            batch = NewBatch(TOPIC, self._batches % QUEUES, [BODY] * BATCH, named)
            began = time.thread_time()
            self._store.append_batch(batch)
            flush.write()
            flush.confirm(flush.sync())
            used += time.thread_time() - began
            self._batches += 1
        return used * 1e6 / batches / BATCH

    def read(self) -> float:
        """Read old messages anywhere in the queues. Return the µs of a message."""
        most = self._batches // QUEUES * BATCH - READ
        places = [(self._rng.randrange(QUEUES), self._rng.randrange(most)) for _ in range(READS)]

        began = time.thread_time()
        for place in places:
            read(self._store, *place)
        return (time.thread_time() - began) * 1e6 / READS / READ

    def start(self) -> float:
        """Close the store in order. Return the µs until it is open again."""
        self._store.close()
        began = time.thread_time()
        self._store = opened(self._path, FILE_SIZE)
        return (time.thread_time() - began) * 1e6

    def close(self) -> None:
        self._store.close()


def read(store: MessageStore, queue_id: int, offset: int) -> None:
    found = store.read(TOPIC, queue_id, offset, max_messages=READ).message_count
    if found != READ:
        raise RuntimeError(f"{found} of {READ} messages at {offset} of queue {queue_id}")


async def results() -> list[Result]:
    """Measure the growing store in turns with one that keeps the first number of messages."""
    points: dict[str, dict[int, list[float]]] = {"append": {}, "read": {}, "start": {}}
    base: dict[str, dict[int, list[float]]] = {"append": {}, "read": {}, "start": {}}
    with scratch() as path, scratch() as small_path:
        large, small = Growing(path), Growing(small_path)
        small.append(batches(COUNTS[0]))
        stored = 0
        for count in COUNTS:
            large.append(batches(count) - stored)
            stored = batches(count)
            print(f"{count:,} messages are stored", file=sys.stderr, flush=True)
            for _ in range(ROUNDS):
                for store, found in ((large, points), (small, base)):
                    found["append"].setdefault(count, []).append(store.append(APPENDS))
                    found["read"].setdefault(count, []).append(store.read())
                    found["start"].setdefault(count, []).append(store.start() / 1_000)
        large.close()
        small.close()
    note = f"in process, 100 B with id and key, processor time; baseline: {COUNTS[0]:,}"
    return [
        row
        for what, (unit, limit) in LIMITS.items()
        for count in COUNTS
        for row in curve(
            f"growth_stored_{what}", {count: points[what][count]}, base[what][count],
            unit=unit, limit=limit, note=note,
        )
    ]  # fmt: skip


def batches(messages: int) -> int:
    return max(1, int(messages * SCALE) // BATCH)
