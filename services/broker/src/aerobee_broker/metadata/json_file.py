"""A JSON file that is replaced atomically, with its previous content in `.bak`.

Independent of the tables. Order of a write: temporary file, fsync, old file to `.bak`, rename,
fsync of the directory. After a power cut at any moment, one of the two files is whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_wire.checked_json import decode


class JsonFile:
    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self.problem = ""  # why `load` used the backup, until the next `write`
        self.is_backup = False  # whether `load` used the backup, until the next `write`
        self._disk = disk

    def load(self) -> dict[str, Any] | None:
        """Return the content of the file, else that of `.bak`, or None if neither file exists.

        Raises ConfigFileDamaged if files exist but none can be read.
        """
        backup = self.path.with_name(self.path.name + ".bak")
        problems = []
        for path in (self.path, backup):
            try:
                content = decode(read_file(self._disk, path))
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(f"{path}: {error}")
            else:
                self.problem, self.is_backup = "; ".join(problems), path == backup
                return content
        if problems:
            raise ConfigFileDamaged(self.path, "; ".join(problems))
        return None

    def write(self, data: bytes) -> None:
        """Replace the content with `data`. Raises OSError. Blocks for two or three disk flushes."""
        # A damaged file must not replace the intact backup.
        replace_file(self._disk, self.path, data, keep_backup=not self.problem)
        self.problem, self.is_backup = "", False
