"""Deleted topics: their records below a physical offset are ignored.

The records stay in the log until their files expire. Without this list, a rebuild would restore
them, and a topic that was created again would have two first messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_wire.checked_json import decode, encode


class DeletedTopics:
    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self.offsets: dict[str, int] = {}  # topic → physical offset

    def deleted_below(self, topic: str) -> int:
        """Return the physical offset of the topic's last deletion; 0 if it was not deleted.

        A record below it that waits for a topic of this name was meant for the deleted one.
        """
        return self.offsets.get(topic, 0)

    def load(self) -> bool:
        """Load the file. Return False if it exists and cannot be parsed. Raises OSError."""
        try:
            found = decode(read_file(self._disk, self.path))
            self.offsets = {str(topic): int(offset) for topic, offset in found.items()}
        except FileNotFoundError:
            return True
        except (ValueError, TypeError):
            return False
        # The process may have been killed before the sync of `add`, and new appends rely on the
        # list.
        self._disk.sync_directory(self.path.parent)
        return True

    def add(self, topic: str, physical_offset: int, log_start: int) -> None:
        """Add a topic durably. Drop topics whose records have all expired. Raises OSError."""
        kept = {name: offset for name, offset in self.offsets.items() if offset > log_start}
        self._write(kept | {topic: physical_offset})

    def end_at(self, log_end: int) -> None:
        """Lower the offsets of deletions after the new end of the log. Raises OSError.

        Without that, messages appended next would count as deleted. Durable before anything is
        appended.
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
        """Take the deletions of the store that this one is a copy of, durably. Raises OSError."""
        if offsets != self.offsets:
            self._write(dict(offsets))

    def _write(self, offsets: dict[str, int]) -> None:
        replace_file(self._disk, self.path, encode(offsets))
        self.offsets = offsets  # only after the write: a failed write must not count
