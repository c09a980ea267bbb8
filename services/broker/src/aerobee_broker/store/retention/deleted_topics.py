"""The list of deleted topics, whose records below a physical offset are ignored.

The records stay in the log until their files expire. Without this list, a rebuild would restore
them. So there are two copies, and no start without one of them.

An older copy of the list lacks deletions. A rebuild then finds some of them in the log, because the
queues of a topic that was created again begin at offset 0 again (`recovery/derive.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged, is_unreadable
from aerobee_broker.store.damage import EventListener
from aerobee_wire.checked_json import decode, encode

_ADVICE = (
    "restore the file from a copy of the store; or remove it and its .bak, and messages of deleted "
    "topics may return"
)


class DeletedTopics:
    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._backup = path.with_name(path.name + ".bak")
        self._disk = disk
        self.offsets: dict[str, int] = {}  # topic → physical offset

    def deleted_below(self, topic: str) -> int:
        """Return the physical offset of the topic's last deletion, or 0 if it was not deleted.

        A delayed message below it must not be delivered to a new topic of this name.
        """
        return self.offsets.get(topic, 0)

    def load(self) -> bool:
        """Load the file, or its backup if the file is missing or damaged.

        Returns False if the backup was loaded. Raises ConfigFileDamaged if both are damaged, or
        OSError.
        """
        if not self._disk.exists(self.path) and not self._disk.exists(self._backup):
            return True
        problems = []
        for path in (self.path, self._backup):
            try:
                found = decode(read_file(self._disk, path))
                self.offsets = {str(topic): int(offset) for topic, offset in found.items()}
            except FileNotFoundError:
                problems.append(f"{path}: it is missing")
            except (ValueError, TypeError, AttributeError) as error:
                problems.append(f"{path}: {error}")
            except OSError as error:
                if not is_unreadable(error):
                    raise
                problems.append(f"{path}: {error.strerror}")
            else:
                break
        else:
            raise ConfigFileDamaged(self.path, " and ".join(problems), _ADVICE)
        if problems:
            self._write(self.offsets)
        else:
            # The process may have been killed before the sync in `add`, and new appends rely on the
            # list.
            self._disk.sync_directory(self.path.parent)
        return not problems

    def add(self, topic: str, physical_offset: int, log_start: int) -> None:
        """Add a deletion durably, and drop deletions whose records have all expired.

        `log_start` is the physical offset at which the log begins. Raises OSError.
        """
        kept = {name: offset for name, offset in self.offsets.items() if offset > log_start}
        self._write(kept | {topic: physical_offset})

    def found(
        self, on_event: EventListener, log_start: int, topic: str, physical_offset: int
    ) -> None:
        """Add a deletion that the log proves and that the list lacks. Report it.

        If the disk fails, the next rebuild finds the deletion again.
        """
        reason = "the list of deleted topics is an older copy"
        try:
            self.add(topic, physical_offset, log_start)
        except OSError as error:
            reason = f"{reason}, and it cannot be written: {error}"
        fields = {"file": str(self.path), "topic": topic, "below": physical_offset}
        on_event("deletion_found_in_log", {**fields, "reason": reason})

    def end_at(self, log_end: int) -> None:
        """Lower the offsets of deletions that are after the new end of the log. Raises OSError.

        Otherwise the next appended messages would count as deleted. The change is durable when the
        method returns, so that it precedes the next append.
        """
        if any(offset > log_end for offset in self.offsets.values()):
            self._write({name: min(offset, log_end) for name, offset in self.offsets.items()})

    def from_on(self, physical_offset: int) -> list[str]:
        """Return the topics whose last deletion is at or after this physical offset."""
        return [topic for topic, offset in self.offsets.items() if offset >= physical_offset]

    def undo(self, topics: Collection[str]) -> None:
        """Undo the deletion of topics, durably. Raises OSError."""
        self._write({name: at for name, at in self.offsets.items() if name not in topics})

    def take(self, offsets: Mapping[str, int]) -> None:
        """Replace the list with that of the store that this store copies, durably.

        Raises OSError.
        """
        if offsets != self.offsets:
            self._write(dict(offsets))

    def _write(self, offsets: dict[str, int]) -> None:
        data = encode(offsets)
        if not self._disk.exists(self.path):
            # Otherwise, a start would take the backup of a write that fails after it.
            replace_file(self._disk, self.path, encode(self.offsets))
        replace_file(self._disk, self._backup, data)  # first: the file decides if it is not damaged
        replace_file(self._disk, self.path, data)
        self.offsets = offsets  # only after the write: a failed write must not count
