"""The stores of shards: the directories shard-0, shard-1, … below storePathRootDir.

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
    return root / f"{PREFIX}{number}"


def check_stores(disk: Disk, root: Path, shards: int) -> None:
    """Check that a start with this number of shards leaves out no store with messages.

    Raises StartError with the topics of the stores that it would leave out.
    """
    try:
        found = sorted(filter(None, map(_number, disk.list(root))))
        left_out = [store_of(root, each - 1) for each in found if shards == 1 or each > shards]
        if shards > 1:
            left_out.insert(0, root)
        unserved = [path for path in left_out if _has_messages(disk, path)]
        if not unserved:
            return
        lines = "; ".join(f"{path} has {_messages(disk, path)}" for path in unserved)
    except OSError as error:
        raise StartError(f"cannot read {error.filename or root}: {error.strerror}") from error
    if unserved[0] == root:
        advice = f"set shards = 1, or move the store to {store_of(root, 0)}"
    else:
        advice = f"set shards = {max(found)}, or consume them and then move the directory away"
    raise StartError(
        f"with shards = {shards}, no broker would serve these messages: {lines}; {advice} "
        "(docs/configuration.md)",
        "shards",
    )


def _number(name: str) -> int | None:
    """Return the number of a shard, from 1 on, or None for any other name."""
    digits = name.removeprefix(PREFIX)
    return int(digits) + 1 if digits != name and digits.isdecimal() else None


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
