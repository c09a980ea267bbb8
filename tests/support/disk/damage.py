"""Damage of a log on a simulated disk, and a replica that has its master's messages."""

from __future__ import annotations

import random

from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.ship import Chunk
from support.disk.replicated import REPLICATED, confirm, open_replica, ship_all, sync
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import LOG, numbered_messages, open_store

SIZE = REPLICATED.commit_log_file_size


def master_of(count: int) -> tuple[MessageStore, SimulatedDisk]:
    """With so many messages of the topic a, durable and confirmed."""
    disk = SimulatedDisk()
    master = open_store(disk, REPLICATED)
    add(master, 0, count)
    return master, disk


def add(master: MessageStore, first: int, count: int) -> None:
    for at in range(first, first + count, 10):
        master.append(numbered_messages(at, 10))
        master.flush.confirm(sync(master))


def replica_of(master: MessageStore) -> tuple[MessageStore, SimulatedDisk]:
    """A slave that has all of it, confirmed."""
    disk = SimulatedDisk()
    replica = open_replica(disk)
    ship_all(master, replica)
    confirm(replica, master.end_offset)
    return replica, disk


def reopened(
    replica: MessageStore, disk: SimulatedDisk, *, clean: bool = False
) -> tuple[MessageStore, SimulatedDisk]:
    """The disk that the replica left, stopped in order or killed. Damage it, then open it."""
    replica.close() if clean else replica.abandon()
    return replica, disk.after_kill()


def overwrite(disk: SimulatedDisk, begin: int, data: bytes) -> None:
    """Bytes of the log, within one file."""
    path = LOG / f"{begin // SIZE * SIZE:020d}"
    content = bytearray(disk.files()[path])
    content[begin % SIZE : begin % SIZE + len(data)] = data
    disk.put(path, bytes(content))


def flip(disk: SimulatedDisk, physical_offset: int) -> None:
    """One bit of the log."""
    path = LOG / f"{physical_offset // SIZE * SIZE:020d}"
    disk.flip(path, physical_offset % SIZE * 8)


def cut_short(disk: SimulatedDisk, physical_offset: int) -> None:
    """The last file of the log ends there."""
    path = LOG / f"{physical_offset // SIZE * SIZE:020d}"
    disk.put(path, disk.files()[path][: physical_offset % SIZE])


def record_at(store: MessageStore, number: int, queue_id: int = 0) -> DamagedRange:
    """Where the record of a message of the topic a lies."""
    at, size, _ = store.units("a", queue_id, number, 1)[0]
    return DamagedRange(at, at + size)


def chunks_of(master: MessageStore, damaged: DamagedRange, max_bytes: int = 1 << 20) -> list[Chunk]:
    """What another replica has there."""
    shipper = master.shipper()
    chunks = []
    at = damaged.begin
    try:
        while (chunk := shipper.read(at, max_bytes, damaged.end)) is not None:
            chunks.append(chunk)
            at = chunk.end
    finally:
        shipper.close()
    return chunks


# ---- derived files ----
#
# What a broker derives from its log, lost.


def lose_derived_files(disk: SimulatedDisk, rng: random.Random, *, checkpoint: bool = True) -> None:
    """Some of what only spares a start its time: of lite topics gone, or with a bit that has
    flipped; of all queues, now and then, gone or cut short. `checkpoint`: that too, without which a
    start takes a hole that a power cut has left in the end of the log for damage."""
    files = {path: data for path, data in sorted(disk.files().items()) if data}
    lite = [path for path in files if "lite" in path.parts or path.name == "liteOffsets"]
    for path in rng.sample(lite, rng.randrange(len(lite) + 1)):
        if rng.random() < 0.5:
            disk.remove(path)
        else:
            disk.flip(path, rng.randrange(8 * len(files[path])))
    if rng.random() < 0.5:
        return
    queues = [
        path
        for path in files
        if "consumequeue" in path.parts or (path.name == "checkpoint" and checkpoint)
    ]
    for path in rng.sample(queues, rng.randrange(len(queues) + 1)):
        if rng.random() < 0.5:
            disk.remove(path)
        else:
            disk.put(path, files[path][: rng.randrange(len(files[path]))])
