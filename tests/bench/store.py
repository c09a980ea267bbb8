"""The store by itself: recovery, opening, and what an append costs as queues and files grow.

In process, on the real disk, without gRPC. What is timed of an append is what the broker's loop
does for it (append, write, confirm); the flush in between belongs to another thread.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aerobee_broker.disk import RealDisk
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_chassis.clock import SystemClock
from aerobee_wire import properties as props
from bench.measure import Result

BODY = bytes(range(256)) * 4  # 1 KiB
BATCH = 128
MIB = 1 << 20
RECOVERED_MIB = 256
ROUNDS = 5
BATCHES_A_ROUND = 40
CLEAN_FILES = 10
MANY_FILES = 20


def opened(path: Path, file_size: int = 1 << 30) -> MessageStore:
    return MessageStore(
        path,
        StoreOptions(commit_log_file_size=file_size),
        clock=SystemClock(),
        disk=RealDisk(),
        store_host="127.0.0.1:10911",
    ).open()


def messages(queues: int, rng: random.Random, *, keyed: bool = False) -> list[NewMessage]:
    """A batch for random ones of so many queues, each of a topic of its own."""
    named = {props.TAGS: "bench"}
    batch = []
    for _ in range(BATCH):
        if keyed:
            named[props.UNIQUE_KEY] = f"{rng.getrandbits(128):032X}"
            named[props.KEYS] = f"order{rng.randrange(10**6):06d}"
        batch.append(NewMessage(f"t{rng.randrange(queues)}", 0, BODY, props.encode(named)))
    return batch


def put(store: MessageStore, batch: list[NewMessage]) -> float:
    """Stores a batch durably; returns the seconds that the loop's thread spent on it."""
    start = time.perf_counter()
    store.append(batch)
    store.flush.write()
    middle = time.perf_counter()
    flushed = store.flush.sync()
    end = time.perf_counter()
    store.flush.confirm(flushed)
    return middle - start + time.perf_counter() - end


def fill(store: MessageStore, size: int, *, keyed: bool = False) -> None:
    rng = random.Random(1)
    while store.end_offset < size:
        put(store, messages(8, rng, keyed=keyed))


def crashed(path: Path, size: int, file_size: int, *, keyed: bool = False) -> None:
    """Fills a store in another process that then dies without a word."""
    child = os.fork()
    if child == 0:
        try:
            fill(opened(path, file_size), size, keyed=keyed)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
        yield Path(folder) / "store"


def recovery(name: str, target: float, *, keyed: bool) -> Result:
    """What a crash leaves: a log behind the last checkpoint, every record of which is read, checked
    and derived again. `keyed`: with a unique id and a key each, as our client sends them."""
    with scratch() as path:
        crashed(path, RECOVERED_MIB * MIB, 64 * MIB, keyed=keyed)
        data = b"".join(file.read_bytes() for file in sorted((path / "commitlog").glob("0*")))
        checkpoint = (path / "checkpoint").read_bytes()
        ours, bulk = [], []
        for _ in range(ROUNDS):
            (path / "checkpoint").write_bytes(checkpoint)
            (path / "abort").touch()
            start = time.perf_counter()
            store = opened(path, 64 * MIB)
            ours.append(time.perf_counter() - start)
            data = data[: store.end_offset]
            store.close()
            start = time.perf_counter()
            zlib.crc32(data)
            bulk.append(time.perf_counter() - start)
        rates = [len(data) / MIB / statistics.median(seconds) for seconds in (ours, bulk)]
    kind = "1 KiB records with id and key" if keyed else "1 KiB records"
    note = f"{RECOVERED_MIB} MiB of {kind}, CRC on; baseline: one zlib.crc32"
    return Result(name, "MiB/s", rates[0], rates[1], rates[0] / rates[1], target, note)


def clean_open() -> Result:
    with scratch() as path:
        store = opened(path, 16 * MIB)
        fill(store, (CLEAN_FILES - 1) * 16 * MIB + MIB)
        store.close()
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            store = opened(path, 16 * MIB)
            times.append(time.perf_counter() - start)
            store.close()
    median = statistics.median(times)
    note = f"{CLEAN_FILES} files, stopped in order; baseline: the limit"
    return Result("store_open_clean", "s", median, 1.0, median, 1.0, note)


def append_costs(queue_counts: tuple[int, ...]) -> dict[int, float]:
    """Queues → µs a message, median of interleaved rounds."""
    rng = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
        stores = {count: opened(Path(folder) / str(count), 256 * MIB) for count in queue_counts}
        for count, store in stores.items():  # make every queue
            for first in range(0, count, BATCH):
                names = range(first, min(count, first + BATCH))
                put(store, [NewMessage(f"t{name}", 0, BODY) for name in names])
        rounds: dict[int, list[float]] = {count: [] for count in queue_counts}
        for _ in range(ROUNDS):
            for count, store in stores.items():
                batches = [messages(count, rng) for _ in range(BATCHES_A_ROUND)]
                rounds[count].append(sum(put(store, batch) for batch in batches))
        for store in stores.values():
            store.close()
    moved = BATCHES_A_ROUND * BATCH
    return {count: statistics.median(times) / moved * 1e6 for count, times in rounds.items()}


def many_queues() -> list[Result]:
    costs = append_costs((1, 1_000, 10_000))
    return [
        Result(
            f"store_append_{count}_queues",
            "us/message",
            costs[count],
            costs[1],
            costs[count] / costs[1],
            limit,
            f"{BATCH} x 1 KiB; baseline: one queue; the target is a limit",
        )
        for count, limit in ((1_000, 1.5), (10_000, 3.0))
    ]


def many_files() -> Result:
    """Batches into the first file against batches into the twentieth."""
    rng = random.Random(9)
    size = 16 * MIB
    with scratch() as path:
        store = opened(path, size)
        per_file: dict[int, list[float]] = {}
        while store.end_offset < MANY_FILES * size:
            number = store.end_offset // size
            per_file.setdefault(number, []).append(put(store, messages(8, rng)))
        store.close()
    # The first batches of the first file warm everything up.
    costs = {number: statistics.median(times) for number, times in per_file.items()}
    first, last = (costs[number] / BATCH * 1e6 for number in (1, MANY_FILES - 1))
    note = f"baseline: file 2 of {MANY_FILES}; the target is a limit"
    name = f"store_append_{MANY_FILES}_files"
    return Result(name, "us/message", last, first, last / first, 1.5, note)


async def results() -> list[Result]:
    recoveries = [
        recovery("store_recovery", 0.15, keyed=False),
        recovery("store_recovery_keyed", 0.13, keyed=True),
    ]
    return [*recoveries, clean_open(), *many_queues(), many_files()]
