"""Keep the data that shows whether a store is the newest copy: `config/enrollment.json`.

`generation` rises at each start, first in this file and then at the coordinator. So an older copy
of the disk has a lower generation than the coordinator. `seen` is the highest version of a state
that this replica has read. A coordinator with a lower version has lost changes.

Without etcd, name servers keep the records. Then the generation also rises before each cut of the
log, so that the log only grows within a generation. `is_doubtful` is True if the store may lack
what was confirmed with its id: the disk is an older copy, or another process has a copy of it.
`epoch` is the highest epoch that the store knew at its last start. If `epochs.json` has a lower
one, only that file is an older copy. The store shows this by itself, without name servers.
"""

from __future__ import annotations

from pathlib import Path

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_wire.checked_json import decode, encode


class EnrollmentFile:
    """Read and write the file.

    `generation`, `seen`, `epoch` and `is_doubtful` are the values on the disk, valid after `load`.
    They are 0 and False if there is no file.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self.generation = 0
        self.seen = 0
        self.epoch = 0
        self.is_doubtful = False
        self._disk = disk
        self._path = path

    def load(self) -> None:
        """Load the file. Raises ConfigFileDamaged, OSError."""
        try:
            content = decode(read_file(self._disk, self._path))
            self.generation, self.seen = int(content["generation"]), int(content["seen"])
            self.epoch = int(content.get("epoch", 0))
            self.is_doubtful = bool(content.get("doubtful", False))
        except FileNotFoundError:
            self.generation = self.seen = self.epoch = 0
            self.is_doubtful = False
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigFileDamaged(self._path, f"{self._path}: {error!r}") from error

    def start(self, generation: int, epoch: int = 0) -> None:
        """Save the generation of this start, and the highest epoch, durably. Raises OSError."""
        epoch = max(self.epoch, epoch)
        self._save(generation, self.seen, is_doubtful=self.is_doubtful, epoch=epoch)

    def doubt(self) -> None:
        """Save that the store may lack what was confirmed with its id. Raises OSError."""
        self._save(self.generation, self.seen, is_doubtful=True)

    def trust(self, generation: int) -> None:
        """Save that the store has all that was confirmed. Raises OSError.

        `generation` is higher than that of each other copy of the store.
        """
        self._save(generation, self.seen, is_doubtful=False)

    def see(self, version: int) -> None:
        """Save the version of a state that was read, durably. The value never falls.

        Raises OSError.
        """
        self._save(self.generation, max(self.seen, version), is_doubtful=self.is_doubtful)

    def _save(
        self, generation: int, seen: int, *, is_doubtful: bool, epoch: int | None = None
    ) -> None:
        self._disk.make_directory(self._path.parent)
        epoch = self.epoch if epoch is None else epoch
        content = {
            "generation": generation,
            "seen": seen,
            "epoch": epoch,
            "doubtful": is_doubtful,
        }
        replace_file(self._disk, self._path, encode(content))
        self.generation, self.seen, self.is_doubtful = generation, seen, is_doubtful
        self.epoch = epoch
