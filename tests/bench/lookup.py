"""Where is my message, and who consumed it: the commands among ten million messages.

The store is written by itself, without a broker: messages of 8 queues with an id and a key each,
and the lease journal of two groups that pop. One of them keeps up. The other one was away, and
consumed all messages afterwards, so that its leases of a message are far from the message in the
journal. Then a name server and a broker serve the store, and `aerobee` runs as a user runs it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from aerobee_broker.delivery.pop.lease_journal_format import (
    LeasedQueue,
    LeasedRun,
    LeaseRecord,
    ResetRecord,
    SettledQueue,
    SettledRun,
    SettleRecord,
    encode,
)
from aerobee_broker.disk import RealDisk
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewBatch, NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_chassis.clock import SystemClock
from aerobee_wire import properties as props
from aerobee_wire.topics import pop_journal_topic
from bench.measure import Result
from support.processes.service import ServiceProcess, namesrv_process

MESSAGES = int(os.environ.get("LOOKUP_MESSAGES", "10_000_000"))
TOPIC, QUEUES = "orders", 8
PROMPT, LATE = "billing", "audit"  # the group that keeps up, and the one that was away
BATCH = 512  # messages of one append
POPPED = 32  # messages of one pop
BODY = bytes(range(100))
JOURNAL = pop_journal_topic("DefaultCluster")
LIMIT_S = 2.0
READY_S = 1_800.0  # a broker without a snapshot reads the whole journal
ROUNDS = 5
FILE_SIZE = 1 << 30


def unique_id(number: int) -> str:
    return f"{number:032X}"


def key(number: int) -> str:
    return f"order-{number}"


class Filler:
    """Appends to a store, and flushes from time to time."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._lease_id = 0

    def flush(self) -> None:
        flush = self._store.flush
        flush.write()
        flush.confirm(flush.sync())

    def messages(self, first: int, queue_id: int) -> None:
        """Store a batch, whose first message has the number `first`, in one queue."""
        numbers = range(first, first + BATCH)
        named = [
            props.encode({props.UNIQUE_KEY: unique_id(each), props.KEYS: key(each)})
            for each in numbers
        ]
        self._store.append_batch(NewBatch(TOPIC, queue_id, [BODY] * BATCH, named))

    def begin(self, group: str) -> None:
        """Write the first offset of a group in each queue."""
        self._append([ResetRecord(group, TOPIC, each, 0) for each in range(QUEUES)])

    def consume(self, group: str, queue_id: int, first_offset: int) -> None:
        """Write the leases and the acknowledgements of the messages of a batch."""
        records: list[LeaseRecord | SettleRecord] = []
        now_ms = time.time_ns() // 1_000_000
        for offset in range(first_offset, first_offset + BATCH, POPPED):
            self._lease_id += 1
            leased = LeasedQueue(
                queue_id, offset, offset + POPPED, [LeasedRun(offset, 1, POPPED)], ()
            )
            client = f"10.0.3.17@{group}"
            records.append(
                LeaseRecord(
                    group, TOPIC, self._lease_id, now_ms, 60_000, False, "", [leased], client
                )
            )
            settled = [SettledRun(offset, POPPED)]
            records.append(SettleRecord([SettledQueue(group, TOPIC, queue_id, settled, ())]))
        self._append(records)

    def _append(self, records: list[LeaseRecord | SettleRecord] | list[ResetRecord]) -> None:
        now_ms = time.time_ns() // 1_000_000
        made: list[NewMessage] = [encode(each, JOURNAL, now_ms) for each in records]
        self._store.append(made)


def fill(path: Path) -> int:
    """Write the store. Return the number of its messages."""
    options = StoreOptions(commit_log_file_size=FILE_SIZE)
    store = MessageStore(
        path, options, clock=SystemClock(), disk=RealDisk(), store_host="127.0.0.1:10911"
    ).open()
    filler = Filler(store)
    filler.begin(PROMPT)
    batches = MESSAGES // BATCH
    for number in range(batches):
        queue_id, round_ = number % QUEUES, number // QUEUES
        filler.messages(number * BATCH, queue_id)
        filler.consume(PROMPT, queue_id, round_ * BATCH)
        if number % 64 == 63:
            filler.flush()
    filler.flush()
    filler.begin(LATE)
    for number in range(batches):
        filler.consume(LATE, number % QUEUES, number // QUEUES * BATCH)
        if number % 64 == 63:
            filler.flush()
    filler.flush()
    store.close()
    return batches * BATCH


def timed(namesrv: str, *arguments: str, check: Callable[[str], None]) -> list[float]:
    """Return the seconds of each run of a command. Raises RuntimeError if it fails."""
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "aerobee_cli", *arguments],
            env={**os.environ, "NAMESRV_ADDR": namesrv},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds.append(time.perf_counter() - start)
        if done.returncode:
            raise RuntimeError(f"{arguments}: {done.stderr}")
        check(done.stdout)
    return seconds


def result(name: str, seconds: list[float], note: str) -> Result:
    median = statistics.median(seconds)
    note = f"{note}; worst {max(seconds):.2f} s; baseline: the limit"
    return Result(name, "s", median, LIMIT_S, median / LIMIT_S, 1.0, note)


async def results() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="aerobee-bench-") as folder:
        start = time.perf_counter()
        number = fill(Path(folder) / "store")
        print(f"{number:,} messages stored in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        with namesrv_process(Path(folder)) as namesrv:
            broker = ServiceProcess(
                *("aerobee_broker", "--port", "0", "--namesrv", namesrv.address),
                *("--set", f"storePathRootDir={folder}/store", "--set", "brokerName=broker-a"),
            )
            start = time.perf_counter()
            broker.start(READY_S)
            print(f"the broker is ready in {time.perf_counter() - start:.0f} s", file=sys.stderr)
            with broker:
                return measured(namesrv.address, number)


def measured(namesrv: str, messages: int) -> list[Result]:
    middle = messages // 2 + 17
    wanted = unique_id(middle)

    def has_message(text: str) -> None:
        if wanted not in text:
            raise RuntimeError(f"not found: {text}")

    def is_consumed(text: str) -> None:
        [found] = json.loads(text)
        states = {each["consumer_group"]: each["state"] for each in found["groups"]}
        if states != {PROMPT: "CONSUMED", LATE: "CONSUMED"}:
            raise RuntimeError(f"states {states}")

    search = timed(
        namesrv, "message", "search", TOPIC, "--key", key(middle), "--json", check=has_message
    )
    show = timed(namesrv, "message", "show", wanted, "--json", check=has_message)
    by_id = timed(namesrv, "message", "track", wanted, "--json", check=is_consumed)
    by_key = timed(
        namesrv, "message", "track", "--topic", TOPIC, "--key", key(middle), "--json",
        check=is_consumed,
    )  # fmt: skip
    size = f"{messages:,} messages, two groups that pop"
    return [
        result("message_search_key_s", search, f"`aerobee message search --key`; {size}"),
        result("message_show_s", show, f"`aerobee message show ID`; {size}"),
        result("message_track_id_s", by_id, f"`aerobee message track ID`; {size}"),
        result("message_track_key_s", by_key, f"`aerobee message track --key`; {size}"),
    ]
