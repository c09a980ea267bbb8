"""Topics that were deleted: their records below a physical offset are no more.

The records stay in the log until their files expire. Without this list a rebuild would bring them
back, and a topic that was made again would have two first messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_wire.checked_json import decode, encode


class DeletedTopics:
    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._disk = disk
        self._places: dict[str, int] = {}

    @property
    def places(self) -> Mapping[str, int]:
        """Topic → physical offset."""
        return self._places

    def place(self, topic: str) -> int:
        """The physical offset below which records of a topic are no more; 0 for all others."""
        return self._places.get(topic, 0)

    def load(self) -> bool:
        """False when there is a list and it cannot be understood. Raises OSError."""
        try:
            found = decode(read_file(self._disk, self.path))
            self._places = {str(topic): int(place) for topic, place in found.items()}
        except FileNotFoundError:
            return True
        except (ValueError, TypeError):
            return False
        # A kill may have come before this: what is appended from now on builds on it.
        self._disk.sync_directory(self.path.parent)
        return True

    def add(self, topic: str, place: int, log_start: int) -> None:
        """Durably. Forgets those whose records have all expired. Raises OSError."""
        kept = {name: at for name, at in self._places.items() if at > log_start}
        self._write(kept | {topic: place})

    def end_at(self, log_end: int) -> None:
        """The log ends there now, maybe before where it did: what follows is not deleted. Durably,
        so before anything is appended. Raises OSError."""
        if any(place > log_end for place in self._places.values()):
            self._write({name: min(place, log_end) for name, place in self._places.items()})

    def _write(self, places: dict[str, int]) -> None:
        replace_file(self._disk, self.path, encode(places))
        self._places = places  # not before: what failed is not to be written with the next one
