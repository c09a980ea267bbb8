"""What a slave has begun and must finish before it is a replica: `config/unfinished.json`.

It is on the disk before the first byte goes, so that a crash at any point leaves no replica whose
log and tables are of two masters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_wire.checked_json import decode, encode


@dataclass(frozen=True, slots=True)
class Unfinished:
    """The tables of a master are to be taken. `until`: they were, with the position of the
    snapshot; the log is still to reach it. `copies`: the log is copied from its master's
    first byte. `wipes`: it is to be removed first. `since`: the log begins at this physical offset,
    and its master's began before: until that has passed it, this replica only reads."""

    copies: bool = False
    wipes: bool = False
    until: int | None = None
    since: int = 0


class UnfinishedFile:
    """`current`: since `load`."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.current: Unfinished | None = None
        self._disk = disk
        self._path = path

    def load(self) -> None:
        """Raises ConfigFileDamaged, OSError."""
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
        """Durably. Raises OSError."""
        replace_file(self._disk, self._path, encode(asdict(unfinished)))
        self.current = unfinished

    @property
    def since(self) -> int:
        """Below this physical offset it lacks what its master has; 0: it lacks nothing."""
        return 0 if self.current is None else self.current.since

    def passed(self, lowest_of_master: int) -> None:
        """Its master's log begins there now. Durably; nothing where that does not matter. Raises
        OSError."""
        if self.current is not None and 0 < self.current.since <= lowest_of_master:
            self.write(replace(self.current, since=0))

    def is_due(self, end: int) -> bool:
        """Whether something is still to be done; `end`: physical, of the log."""
        current = self.current
        return current is not None and (current.until is None or end < current.until)
