"""Record the preparation that a slave has begun and must finish: `config/unfinished.json`.

The file is on the disk before the first byte is deleted. So after a crash, no replica uses a log
and tables that come from different masters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_wire.checked_json import decode, encode


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The steps of a preparation that are still to do.

    - `copies`: True if the log is copied from the first byte of the master's log.
    - `wipes`: True if the log must be removed first.
    - `until`: the log position of the installed tables; the log must still reach it. None if the
      tables are not installed yet.
    - `since`: the physical offset where the log begins, if the master's log began before it;
      otherwise 0. This replica only reads until the begin of the master's log has reached that
      offset.
    """

    copies: bool = False
    wipes: bool = False
    until: int | None = None
    since: int = 0


class UnfinishedFile:
    """Read and write the file. `current` is valid after `load`."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.current: Unfinished | None = None
        self._disk = disk
        self._path = path

    def load(self) -> None:
        """Load the file. Raises ConfigFileDamaged, OSError."""
        try:
            found = decode(read_file(self._disk, self._path))
            until = found["until"]
            self.current = Unfinished(
                bool(found["copies"]),
                bool(found["wipes"]),
                None if until is None else int(until),
                int(found.get("since", 0)),
            )
        except FileNotFoundError:
            self.current = None
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigFileDamaged(self._path, f"{self._path}: {error!r}") from None

    def write(self, unfinished: Unfinished) -> None:
        """Write the file durably. Raises OSError."""
        replace_file(self._disk, self._path, encode(asdict(unfinished)))
        self.current = unfinished

    @property
    def since(self) -> int:
        """Return the physical offset below which this replica lacks data, or 0 if it lacks none."""
        return 0 if self.current is None else self.current.since

    def passed(self, lowest_of_master: int) -> None:
        """Record durably that the master's log now begins at `lowest_of_master`.

        Do nothing if that is below `since`. Raises OSError.
        """
        if self.current is not None and 0 < self.current.since <= lowest_of_master:
            self.write(replace(self.current, since=0))

    def is_due(self, end: int) -> bool:
        """Return whether a step is unfinished, for a log that ends at the physical offset `end`."""
        current = self.current
        return current is not None and (current.until is None or end < current.until)
