"""Keep the epochs of a log: they say which master wrote which part of the log.

A master takes a new epoch at each start: the next number. A promotion by an operator takes the next
multiple of PROMOTION_STEP. No master reaches that number by its own starts. So a master that was
isolated meanwhile stays below its successor, however often it starts.

An entry says where the part of an epoch begins in the log. The part ends where the next entry
begins, or at the end of the log. If two logs have an equal entry, they are equal up to the lower of
the two ends of that part. So the entries show where logs diverge, without reading the logs
(`handshake.py`).

Epoch 0 is the log as its first master found it, usually empty. Its entry is never dropped, because
two logs of one origin may share no bytes and no other entry.

The history is immutable. `EpochFile` keeps it in `config/epochs.json`, and syncs that file before
anything of a new epoch is written or confirmed. The file has no backup copy, because with an older
history a replica might confirm an epoch that it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.epochs import PROMOTION_STEP


def promotion_epoch(highest: int) -> int:
    """Return the epoch of a promotion by an operator; `highest` is the highest known epoch."""
    return (highest // PROMOTION_STEP + 1) * PROMOTION_STEP


class Reach(NamedTuple):
    """How far a log goes: the newest epoch whose begin it has reached, and its end.

    `end` is a physical offset. Of two logs of one group, the log with the greater reach has all
    that was confirmed in the other.
    """

    epoch: int
    end: int


NOTHING = Reach(0, 0)


class EpochEntry(NamedTuple):
    """One epoch of a log.

    `store_id` is the store of the epoch's master; for epoch 0 the store of the first master.
    `start` is the physical offset at which the log ended when that master began; for epoch 0 it is
    0.
    """

    epoch: int
    store_id: str
    start: int


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The epochs of one log, and the highest epoch that its replica knows.

    `entries` is empty, or begins with epoch 0. Epochs ascend. Starts ascend too, but the second
    entry may start at 0, like epoch 0. If other entries have the same start, only the last is kept,
    because the earlier epochs have no bytes. A slave copies entries from its master, so an entry
    may begin after the end of the slave's log.

    The replica takes part in no epoch below `highest`. Raises ValueError for invalid entries.
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
        """Return the newest epoch, or 0 if this log has had no master."""
        return self.entries[-1].epoch if self.entries else 0

    def begin(self, epoch: int, store_id: str, end: int) -> EpochHistory:
        """Return the history after this replica begins `epoch` as master.

        `end` is the end of its log. Raises ValueError if the replica already knows that epoch or a
        higher one.
        """
        if epoch <= self.highest:
            raise ValueError(f"epoch {epoch} is not above {self.highest}")
        before = self._before(end) or (EpochEntry(0, store_id, 0),)
        return EpochHistory((*before, EpochEntry(epoch, store_id, end)), epoch)

    def adopt(self, entries: Iterable[EpochEntry]) -> EpochHistory:
        """Return the history of a replica that follows a master with those entries.

        The replica must first cut its log to the part that equals the master's log. The entries of
        a master are valid for every log that is a prefix of the master's log.
        """
        adopted = tuple(entries)
        newest = adopted[-1].epoch if adopted else 0
        return EpochHistory(adopted, max(self.highest, newest))

    def note(self, epoch: int) -> EpochHistory:
        """Return the history after the replica has learned of `epoch`."""
        return EpochHistory(self.entries, max(self.highest, epoch))

    def end_of(self, epoch: int, log_end: int) -> int:
        """Return where an epoch ends in a log that ends at `log_end`. Raises KeyError."""
        for entry, following in zip(self.entries, [*self.entries[1:], None], strict=True):
            if entry.epoch == epoch:
                return log_end if following is None else min(following.start, log_end)
        raise KeyError(epoch)

    def reach(self, end: int) -> Reach:
        """Return how far a log with these epochs goes if it ends at `end`.

        A slave adopts the epochs of its master before it has the log up to their begin. Such an
        epoch does not count, because the log may lack confirmed data of earlier epochs.
        """
        begun = (entry.epoch for entry in self.entries if entry.start <= end)
        return Reach(max(begun, default=0), end)

    def newest_common(self, other: EpochHistory) -> EpochEntry | None:
        """Return the newest entry that both histories contain, or None.

        Equal entries have the same epoch, store id and start.
        """
        known = frozenset(other.entries)
        return next((entry for entry in reversed(self.entries) if entry in known), None)

    def _before(self, end: int) -> tuple[EpochEntry, ...]:
        return tuple(entry for entry in self.entries if entry.epoch == 0 or entry.start < end)


class EpochFile:
    """Keep the history on disk. Raises OSError if the disk fails.

    `history` is the history on the disk, valid after `load`.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.history = EpochHistory()
        self._disk = disk
        self._path = path

    def load(self) -> EpochHistory:
        """Load the history. Raises ConfigFileDamaged.

        The history is empty if there is no file, because the log was never replicated.
        """
        try:
            self.history = _history(decode(read_file(self._disk, self._path)))
        except FileNotFoundError:
            self.history = EpochHistory()
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigFileDamaged(self._path, f"{self._path}: {error}") from error
        return self.history

    def change(self, change: Callable[[EpochHistory], EpochHistory]) -> None:
        """Apply `change` to the history, and make the result durable.

        Call it on one thread only, so that concurrent changes do not overwrite each other. Raises
        the errors of `change`.
        """
        changed = change(self.history)
        if changed != self.history:
            self.save(changed)

    def save(self, history: EpochHistory) -> None:
        """Write the history to the file durably."""
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
