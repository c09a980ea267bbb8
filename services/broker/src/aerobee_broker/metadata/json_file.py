"""A JSON file that is replaced at once, with the content before it in `.bak`. Knows no table.

Order of a write: temporary file, fsync, old file to `.bak`, rename, fsync of the directory. After
a power cut at any moment one of the two files is whole.
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
        self.problem = ""  # why `load` took the backup, until the next `write`
        self.is_backup = False  # whether `load` took the backup, until the next `write`
        self._disk = disk

    def load(self) -> dict[str, Any] | None:
        """The content, else that of `.bak`, or None when there is neither file.

        Raises ConfigFileDamaged when what is there cannot be read.
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
        """Puts `data` in place. Raises OSError. Blocks for two or three disk flushes."""
        # A damaged file must not replace the whole backup.
        replace_file(self._disk, self.path, data, keep_backup=not self.problem)
        self.problem, self.is_backup = "", False
