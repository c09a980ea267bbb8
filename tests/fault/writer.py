"""A process that stores messages as fast as it can and says which are acknowledged, until it is
killed: python writer.py DIRECTORY FIRST_NUMBER. For test_kill.py.

One line of JSON a batch on stdout: [[topic, queue id, queue offset, number], …], written after the
batch is confirmed.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

from aerobee_broker.disk import RealDisk
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_chassis.clock import SystemClock

TOPICS = ("orders", "payments")
OPTIONS = StoreOptions(
    commit_log_file_size=1 << 20,
    index_slot_count=10_000,
    index_entry_count=50_000,
    checkpoint_bytes=2 << 20,
    checkpoint_interval_ms=200,
)


def body_of(number: int) -> bytes:
    """Tells its number, and whether it is whole."""
    return f"{number}|".encode() + random.Random(number).randbytes(number * 37 % 1_500)


def open_store(directory: Path) -> MessageStore:
    return MessageStore(
        directory, OPTIONS, clock=SystemClock(), disk=RealDisk(), store_host="127.0.0.1:10911"
    ).open()


def main() -> None:
    directory, number = Path(sys.argv[1]), int(sys.argv[2])
    clock = SystemClock()
    store = open_store(directory)
    rng = random.Random(number)
    while True:
        numbers = range(number, number + rng.randint(1, 40))
        number = numbers.stop
        batch = [
            NewMessage(TOPICS[n % 2], n % 3, body_of(n), b"UNIQ_KEY\x01ID%d\x02" % n)
            for n in numbers
        ]
        places = store.append(batch)
        store.flush.write()
        store.flush.confirm(store.flush.sync())
        said = [
            [message.topic, place.queue_id, place.queue_offset, n]
            for message, place, n in zip(batch, places, numbers, strict=True)
        ]
        os.write(1, json.dumps(said).encode() + b"\n")
        store.maintain(clock.now_ms())
        store.maintain_files()


if __name__ == "__main__":
    main()
