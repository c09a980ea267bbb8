"""The epochs of a log: which master wrote which part of it.

A master takes a new epoch at each start: the next number. A promotion by a person takes the next
multiple of PROMOTION_STEP, which no master reaches by its own starts: one that was cut off
meanwhile stays below its successor, however often it starts.

An entry says where its part of the log begins; it ends where the next entry begins, or with the
log. Two logs that have one entry alike are alike up to the lower of its two ends, so the entries
say where logs part, without reading them (`handshake.py`).

Epoch 0 is the log as its first master found it, mostly empty. Its entry is never dropped: two logs
of one origin may have no byte in common, and no other entry.

The history is a value, `EpochFile` keeps it: `config/epochs.json`, synced before anything of a
new epoch is written or confirmed. The file has no backup beside it: an older history would let a
replica confirm an epoch that it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_wire.checked_json import decode, encode

PROMOTION_STEP = 1_000_000


def promotion_epoch(highest: int) -> int:
    """That of a promotion by a person, where `highest` is the highest that anybody knows of."""
    return (highest // PROMOTION_STEP + 1) * PROMOTION_STEP


class EpochEntry(NamedTuple):
    """`store_id`: of the epoch's master; of epoch 0 that of the first. `start`: the log's end, a
    physical offset, when that master began; of epoch 0 it is 0."""

    epoch: int
    store_id: str
    start: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """`entries`: none, or epoch 0 and others behind it. Epochs ascend, and so do starts but for
    that of epoch 0: of other entries with one start only the last counts, for the epochs before it
    have no byte. Entries of a master that a slave copies may begin behind the slave's end.

    `highest`: the highest epoch that this replica has heard of. It takes part in no lower one.
    Raises ValueError for entries that are no history.
    """

    entries: tuple[EpochEntry, ...] = ()
    highest: int = 0

    def __post_init__(self) -> None:
        if self.entries and (self.entries[0].epoch, self.entries[0].start) != (0, 0):
            raise ValueError("the first entry is not of epoch 0, or does not begin at 0")
        least = 0
        for before, entry in zip(self.entries, self.entries[1:], strict=False):
            if entry.epoch <= before.epoch or entry.start < least:
                raise ValueError(f"epoch {entry.epoch} does not follow epoch {before.epoch}")
            least = entry.start + 1
        if self.highest < self.newest_epoch:
            raise ValueError(f"{self.highest} is below the newest epoch, {self.newest_epoch}")

    @property
    def newest_epoch(self) -> int:
        """0: this log has had no master."""
        return self.entries[-1].epoch if self.entries else 0

    def begin(self, epoch: int, store_id: str, end: int) -> EpochHistory:
        """This replica becomes master of `epoch` with a log that ends at `end`. Raises ValueError
        when it knows of that epoch already."""
        if epoch <= self.highest:
            raise ValueError(f"epoch {epoch} is not above {self.highest}")
        before = self._before(end) or (EpochEntry(0, store_id, 0),)
        return EpochHistory((*before, EpochEntry(epoch, store_id, end)), epoch)

    def adopt(self, entries: Iterable[EpochEntry]) -> EpochHistory:
        """This replica follows a master with those entries, once its log is cut to where both are
        alike: a master's entries hold for every log that is the beginning of its own."""
        adopted = tuple(entries)
        newest = adopted[-1].epoch if adopted else 0
        return EpochHistory(adopted, max(self.highest, newest))

    def note(self, epoch: int) -> EpochHistory:
        """This replica has heard of `epoch`."""
        return EpochHistory(self.entries, max(self.highest, epoch))

    def end_of(self, epoch: int, log_end: int) -> int:
        """Where the part of an epoch ends in a log that ends at `log_end`. Raises KeyError."""
        for entry, following in zip(self.entries, [*self.entries[1:], None], strict=True):
            if entry.epoch == epoch:
                return log_end if following is None else min(following.start, log_end)
        raise KeyError(epoch)

    def newest_common(self, other: EpochHistory) -> EpochEntry | None:
        """The newest entry that both have alike: the same epoch, of one store, from one start."""
        known = frozenset(other.entries)
        return next((entry for entry in reversed(self.entries) if entry in known), None)

    def _before(self, end: int) -> tuple[EpochEntry, ...]:
        return tuple(entry for entry in self.entries if entry.epoch == 0 or entry.start < end)


class EpochFile:
    """`history`: as it is on the disk, since `load`. Raises OSError when the disk fails."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.history = EpochHistory()
        self._disk = disk
        self._path = path

    def load(self) -> EpochHistory:
        """Empty where there is no file: this log was never replicated. Raises ConfigFileDamaged."""
        try:
            self.history = _history(decode(read_file(self._disk, self._path)))
        except FileNotFoundError:
            self.history = EpochHistory()
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigFileDamaged(self._path, f"{self._path}: {error}") from error
        return self.history

    def change(self, change: Callable[[EpochHistory], EpochHistory]) -> None:
        """Returns once what `change` makes of the history is durable. On one thread alone: then no
        change is lost to another. Raises what `change` raises."""
        changed = change(self.history)
        if changed != self.history:
            self.save(changed)

    def save(self, history: EpochHistory) -> None:
        """Returns once the history is durable."""
        entries = [
            {"epoch": entry.epoch, "storeId": entry.store_id, "start": entry.start}
            for entry in history.entries
        ]
        self._disk.make_directory(self._path.parent)
        content = {"highestEpoch": history.highest, "epochs": entries}
        replace_file(self._disk, self._path, encode(content))
        self.history = history


def _history(content: Mapping[str, Any]) -> EpochHistory:
    entries = tuple(
        EpochEntry(int(entry["epoch"]), str(entry["storeId"]), int(entry["start"]))
        for entry in content["epochs"]
    )
    return EpochHistory(entries, int(content["highestEpoch"]))
