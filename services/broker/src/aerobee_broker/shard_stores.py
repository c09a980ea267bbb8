"""The stores of shards: storePathRootDir itself for shard 0, and shard-1, shard-2, … in it.

The number of shards may change between two starts. A start must not leave out a store with
messages, because no broker would serve them.
"""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.disk import Disk
from aerobee_broker.store.derived.checkpoint import CheckpointFile
from aerobee_broker.store.log.commit_log import start_of
from aerobee_chassis.errors import StartError

PREFIX = "shard-"
TOPICS_SHOWN = 5


def store_of(root: Path, number: int) -> Path:
    """Return the directory of the store of one shard."""
    return root / f"{PREFIX}{number}" if number else root


def shards_in(disk: Disk, root: Path) -> list[int]:
    """Return the numbers of the shards that have a directory in `root`, without shard 0."""
    return sorted(filter(None, map(_number, disk.list(root))))


def check_stores(disk: Disk, root: Path, shards: int) -> None:
    """Check that a start with this number of shards leaves out no store with messages.

    Raises StartError with the topics of the stores that it would leave out.
    """
    try:
        left_out = [each for each in shards_in(disk, root) if each >= shards]
        unserved = [each for each in left_out if _has_messages(disk, store_of(root, each))]
        stores = [store_of(root, each) for each in unserved]
        lost = [f"{store} has {_messages(disk, store)}" for store in stores]
    except OSError as error:
        raise StartError(f"cannot read {error.filename or root}: {error.strerror}") from error
    if lost:
        raise StartError(
            f"with shards = {shards}, no broker would serve these messages: {'; '.join(lost)}; set "
            f"shards = {unserved[-1] + 1}, or first consume them ('aerobee broker drain') and move "
            "the directory away (docs/configuration.md)",
            "shards",
        )


def _number(name: str) -> int:
    """Return the number of a shard with a directory, from 1 on, or 0 for any other name."""
    digits = name.removeprefix(PREFIX)
    return int(digits) if digits != name and digits.isdecimal() else 0


def _has_messages(disk: Disk, path: Path) -> bool:
    """Return whether a store has messages, or may have some because its broker did not stop."""
    names = disk.list(path / "commitlog")
    starts = [start for start in map(start_of, names) if start is not None]
    if not starts:
        return False
    checkpoint = CheckpointFile(disk, path / "checkpoint").read()
    if checkpoint is None or disk.exists(path / "abort"):
        return True
    return checkpoint.flushed > starts[0]


def _messages(disk: Disk, path: Path) -> str:
    """Return what a store has, for an error."""
    topics = disk.list(path / "consumequeue")
    if not topics:  # they are in the log only
        return "messages, and its broker did not stop in order"
    more = len(topics) - TOPICS_SHOWN
    shown = ", ".join(topics[:TOPICS_SHOWN])
    return f"messages of {shown} and {more} topics more" if more > 0 else f"messages of {shown}"
