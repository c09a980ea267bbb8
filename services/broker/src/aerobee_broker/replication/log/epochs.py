"""Keep the epochs of a log: they say which master wrote which part of the log.

A master takes a new epoch at each start: the next number. A promotion by an operator takes a
multiple of PROMOTION_STEP, and each replica has its own multiples. No master reaches that number by
its own starts. So a master that was isolated meanwhile stays below its successor, however often it
starts.

An entry says where the part of an epoch begins in the log. The part ends where the next entry
begins, or at the end of the log. If two logs have an equal entry, they are equal up to the lower of
the two ends of that part. So the entries show where logs diverge, without reading the logs
(`handshake.py`).

Epoch 0 is the log as its first master found it, usually empty. Its entry is never dropped, because
two logs of one origin may share no bytes and no other entry.

An entry of a group without etcd also has the *quorum* of its master: how many copies the messages
have that it acknowledges. The options of a master may change at each start, so each epoch has its
own quorum. A slave has the entry on its disk before it confirms anything of that epoch. An epoch is
*settled* when the master has met the quorum of its predecessors once: from then on, enough replicas
know its own quorum.

The history is immutable. `EpochFile` keeps it in `config/epochs.json`, and syncs that file before
anything of a new epoch is written or confirmed. The file has no backup copy, because with an older
history a replica might confirm an epoch that it has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.epochs import PROMOTION_STEP

NUMBERS = 64  # a brokerId above 63 shares its epochs with another one


def promotion_epoch(highest: int, number: int) -> int:
    """Return the epoch of a promotion of replica `number` by an operator.

    `highest` is the highest known epoch. Two replicas never take the same epoch, also if two
    promotions take place at once and neither knows of the other: replicas would follow one master
    and then the other one, and cut what the first one has acknowledged.
    """
    step = highest // PROMOTION_STEP + 1
    return (step + (number - step) % NUMBERS) * PROMOTION_STEP


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
    0. `quorum` is None if it is unknown: in epoch 0, with etcd, and from an older version.
    """

    epoch: int
    store_id: str
    start: int
    quorum: Quorum | None = None

    @property
    def key(self) -> tuple[int, str, int]:
        """Return the part that is equal in all logs with this epoch."""
        return self[:3]


@dataclass(frozen=True, slots=True)
class EpochHistory:
    """The epochs of one log, and the highest epoch that its replica knows.

    `entries` is empty, or begins with epoch 0. Epochs ascend. Starts ascend too, but the second
    entry may start at 0, like epoch 0. If other entries have the same start, only the last is kept,
    because the earlier epochs have no bytes. A slave copies entries from its master, so an entry
    may begin after the end of the slave's log.

    The replica takes part in no epoch below `highest`. `settled` is the highest epoch that is known
    to be settled, or 0. `dropped` has the quorums of entries that were dropped since, because no
    byte was written: other replicas may still rely on them. Raises ValueError for invalid entries.
    """

    entries: tuple[EpochEntry, ...] = ()
    highest: int = 0
    settled: int = 0
    dropped: tuple[Quorum, ...] = ()

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

    @property
    def quorums(self) -> tuple[Quorum, ...]:
        """Return the known quorums with which masters may have acknowledged unsettled messages.

        These are the quorums of the newest settled epoch and of all later ones. Replicas that have
        met the quorum of a settled epoch also have the acknowledged messages of earlier ones.
        """
        settled = max(
            (each.epoch for each in self.entries if each.epoch <= self.settled), default=0
        )
        later = (each.quorum for each in self.entries if each.epoch >= settled)
        return (*self.dropped, *(quorum for quorum in later if quorum is not None))

    def begin(
        self, epoch: int, store_id: str, end: int, quorum: Quorum | None = None
    ) -> EpochHistory:
        """Return the history after this replica begins `epoch` as master.

        `end` is the end of its log. Raises ValueError if the replica already knows that epoch or a
        higher one.
        """
        if epoch <= self.highest:
            raise ValueError(f"epoch {epoch} is not above {self.highest}")
        before = self._before(end) or (EpochEntry(0, store_id, 0),)
        begun = EpochEntry(epoch, store_id, end, quorum)
        return self._keep_quorums(EpochHistory((*before, begun), epoch, self.settled))

    def adopt(self, entries: Iterable[EpochEntry]) -> EpochHistory:
        """Return the history of a replica that follows a master with those entries.

        The replica must first cut its log to the part that equals the master's log. The entries of
        a master are valid for every log that is a prefix of the master's log. A master of an older
        version does not know the quorums, so those that this replica knows stay.
        """
        known = {each.key: each.quorum for each in self.entries}
        adopted = tuple(
            each._replace(quorum=each.quorum or known.get(each.key)) for each in entries
        )
        newest = adopted[-1].epoch if adopted else 0
        after = replace(self, entries=adopted, highest=max(self.highest, newest))
        return self._keep_quorums(after)

    def can_settle(self, epoch: int, confirmed: int) -> bool:
        """Return whether `confirmed` shows that `epoch`, the newest one, is settled.

        `confirmed` is the physical offset below which its master shows the log. A master shows
        nothing of its epoch before its set has met the quorums of its predecessors.
        """
        newest = self.entries[-1] if self.entries else None
        if newest is None or newest.epoch != epoch or newest.quorum is None:
            return False
        return confirmed > newest.start

    def settle(self, epoch: int) -> EpochHistory:
        """Return the history after `epoch` is known to be settled."""
        if epoch <= self.settled:
            return self
        return replace(self, settled=epoch, dropped=())

    def note(self, epoch: int) -> EpochHistory:
        """Return the history after the replica has learned of `epoch`."""
        return replace(self, highest=max(self.highest, epoch))

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
        known = {entry.key for entry in other.entries}
        return next((entry for entry in reversed(self.entries) if entry.key in known), None)

    def _keep_quorums(self, after: EpochHistory) -> EpochHistory:
        """Return `after` with the quorums that count here and would be lost with their entries."""
        known = replace(after, dropped=()).quorums
        lost = {each for each in self.quorums if each not in known}
        return replace(after, dropped=tuple(sorted(lost)))

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
            {
                "epoch": entry.epoch,
                "storeId": entry.store_id,
                "start": entry.start,
                **({} if entry.quorum is None else entry.quorum._asdict()),
            }
            for entry in history.entries
        ]
        self._disk.make_directory(self._path.parent)
        content = {
            "highestEpoch": history.highest,
            "settledEpoch": history.settled,
            "epochs": entries,
            "droppedQuorums": [each._asdict() for each in history.dropped],
        }
        replace_file(self._disk, self._path, encode(content))
        self.history = history


def _history(content: Mapping[str, Any]) -> EpochHistory:
    entries = tuple(
        EpochEntry(
            int(entry["epoch"]),
            str(entry["storeId"]),
            int(entry["start"]),
            Quorum(int(entry["copies"]), int(entry["required"])) if "required" in entry else None,
        )
        for entry in content["epochs"]
    )
    dropped = tuple(
        Quorum(int(each["copies"]), int(each["required"]))
        for each in content.get("droppedQuorums", ())
    )
    settled = int(content.get("settledEpoch", 0))
    return EpochHistory(entries, int(content["highestEpoch"]), settled, dropped)
