"""A master's store and that of a replica, each on a disk of its own; the test ships the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.store.message_store import Clock, MessageStore
from aerobee_broker.store.messages import Arrival
from aerobee_broker.store.options import StoreOptions
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import LOG, PATH, SMALL, claim, open_store

REPLICATED = replace(SMALL, replicated=True)
DIVERGED = PATH / "diverged"


def open_replica(
    disk: Disk,
    options: StoreOptions = REPLICATED,
    clock: Clock | None = None,
    *,
    path: Path = PATH,
) -> MessageStore:
    """A store that follows."""
    store = open_store(disk, options, clock, path=path)
    store.flush.close_to_appends("this broker is a slave")
    return store


def sync(store: MessageStore) -> int:
    """Everything that was appended is durable, and no more visible than before."""
    store.flush.seal()
    return store.flush.write_and_sync()


def ship(master: MessageStore, replica: MessageStore, max_bytes: int = 1 << 20) -> bool:
    """One chunk, durable on the replica. False: it has all that the master has written."""
    shipper = master.shipper()
    try:
        chunk = shipper.read(replica.end_offset, max_bytes)
    finally:
        shipper.close()
    if chunk is None:
        return False
    end = replica.follower.append(chunk.physical_offset, chunk.data)
    claim(end == chunk.end, "the replica ends elsewhere than the chunk")
    claim(sync(replica) == end, "the replica is durable up to elsewhere")
    return True


def ship_all(master: MessageStore, replica: MessageStore, max_bytes: int = 1 << 20) -> None:
    while ship(master, replica, max_bytes):
        pass


def derive_all(replica: MessageStore) -> list[Arrival]:
    """Derive all confirmed records up to the next halt, or up to damage."""
    follower, before = replica.follower, -1
    arrivals: list[Arrival] = []
    while not follower.halted and replica.confirmed_offset > before:
        before = replica.confirmed_offset
        arrivals += follower.derive(0, at_once=True)
    return arrivals


def confirm(replica: MessageStore, confirmed: int) -> None:
    """And derived."""
    replica.follower.confirm(confirmed, 0)
    derive_all(replica)


def promote(replica: MessageStore) -> None:
    confirm(replica, replica.end_offset)
    replica.flush.open_to_appends()


def log_bytes(disk: SimulatedDisk) -> dict[str, bytes]:
    """Content of each log file, whole; none of one that a failed write has made, and left empty."""
    files: Mapping[Path, bytes] = disk.files()
    return {
        path.name: bytes(data)
        for path, data in files.items()
        if path.parent == LOG and path.name.isdigit() and any(data)
    }


def log_range(disk: SimulatedDisk, begin: int, end: int) -> bytes:
    """The bytes of the log between two physical offsets."""
    whole = b"".join(data for _, data in sorted(log_bytes(disk).items()))
    low = min(map(int, log_bytes(disk)), default=0)
    return whole[begin - low : end - low]
