"""Keep the data that a store needs to check its coordinator: `config/enrollment.json`.

`generation` rises at each start, first in this file and then at the coordinator. So an older copy
of the disk has a lower generation than the coordinator. `seen` is the highest version of a state
that this replica has read. A coordinator with a lower version has lost changes.
"""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_wire.checked_json import decode, encode


class EnrollmentFile:
    """Read and write the file.

    `generation` and `seen` are the values on the disk, valid after `load`. They are 0 if there is
    no file.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.generation = 0
        self.seen = 0
        self._disk = disk
        self._path = path

    def load(self) -> None:
        """Load the file. Raises ConfigFileDamaged, OSError."""
        try:
            content = decode(read_file(self._disk, self._path))
            self.generation, self.seen = int(content["generation"]), int(content["seen"])
        except FileNotFoundError:
            self.generation = self.seen = 0
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigFileDamaged(self._path, f"{self._path}: {error!r}") from error

    def start(self, generation: int) -> None:
        """Save the generation of this start, durably. Raises OSError."""
        self._save(generation, self.seen)

    def see(self, version: int) -> None:
        """Save the version of a state that was read, durably. The value never falls.

        Raises OSError.
        """
        self._save(self.generation, max(self.seen, version))

    def _save(self, generation: int, seen: int) -> None:
        self._disk.make_directory(self._path.parent)
        replace_file(self._disk, self._path, encode({"generation": generation, "seen": seen}))
        self.generation, self.seen = generation, seen
