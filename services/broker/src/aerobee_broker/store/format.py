"""The format of a store, `config/format.json`, which lists the features that a build needs.

A store has a format version, and *features* that it has used. A feature is content of its files
that builds before a certain version cannot read, or misread. The file names that version for each
feature, so a build without the feature can report which version of Aerobee is needed. A feature is
durable in this file before any other file uses it. A feature is never removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import NO_SPACE, DiskFull, StoreOpenError, StoreWriteError
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.version import VERSION

FILE_NAME = "format.json"
FORMAT_VERSION = 1
FORMAT_SINCE = "0.1.0"  # the first Aerobee that reads this format version

REPLICATED_LOG = "replicated-log"  # epochs, an unconfirmed tail, the metadata journal
LITE_TOPICS = "lite-topics"  # units with codes of lite topics, their journal
EXPONENTIAL_RETRY = "exponential-retry"  # a groupRetryPolicy of the type EXPONENTIAL
SHRUNK_TOPICS = "shrunk-topics"  # shrunkFrom: queues that must not be adopted again
TOPIC_TIMES = "topic-times"  # reserve.time, and expiredBefore: messages that stay expired
TABLE_CHANGES = "table-changes"  # tables whose last changes are in a file beside the JSON file

# Feature → the version of Aerobee that introduced it; the next version if it is unreleased.
FEATURES: Mapping[str, str] = {
    REPLICATED_LOG: "0.2.0",
    LITE_TOPICS: "0.2.0",
    EXPONENTIAL_RETRY: "0.2.0",
    SHRUNK_TOPICS: "0.2.0",
    TOPIC_TIMES: "0.2.0",
    TABLE_CHANGES: "0.2.0",
}
_OWNER = "broker"  # member: the cluster and the name of the broker that owns the store
# Features of files that each replica writes for itself: a master and its slave may differ in them.
NOT_REPLICATED = frozenset({TABLE_CHANGES})


class StoreTooNew(StoreOpenError):
    """The store needs a later version of Aerobee.

    `needed` is the lowest version that opens the store. `what` describes the feature or format
    version that this build does not know.
    """

    def __init__(self, path: Path, needed: str, what: str) -> None:
        super().__init__(
            f"the store in {path} needs Aerobee {needed} or later: {what}; nothing was changed, "
            "run that version on it",
            str(path),
        )
        self.needed = needed


@dataclass(frozen=True, slots=True)
class Build:
    """A version of Aerobee, and the features that it knows.

    `features` maps each feature to the version that introduced it.
    """

    version: str
    features: Mapping[str, str]

    def __str__(self) -> str:
        return f"Aerobee {self.version}" if self.version else "an early build of Aerobee"


THIS_BUILD = Build(VERSION, FEATURES)


@dataclass(frozen=True, slots=True)
class Format:
    """The content of `config/format.json`.

    `since` is the first version of Aerobee that reads the format version `version`. `required` maps
    each required feature to the version of Aerobee that introduced it. `others` has members that a
    later version of Aerobee has added, and that are not needed to open the store.
    """

    version: int = FORMAT_VERSION
    since: str = FORMAT_SINCE
    written_by: str = ""
    required: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owner(self) -> str:
        """The cluster and the name of the broker that owns the store, or "" if it is not known."""
        return str(self.others.get(_OWNER, ""))

    @property
    def needs(self) -> str:
        """The lowest version of Aerobee that opens the store."""
        return newest([self.since, *self.required.values()])

    def unknown_to(self, build: Build) -> list[str]:
        """Return the required features that a build does not know, sorted."""
        return sorted(self.required.keys() - build.features.keys())

    def to_json(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "since": self.since,
            "writtenBy": self.written_by,
            "required": dict(sorted(self.required.items())),
            **self.others,
        }


class FormatFile:
    """Reads and writes `config/format.json`.

    `current` is the present content of the file, or None if the file is missing. The event loop
    owns the object. The flusher thread may use it only while the store opens.
    """

    def __init__(self, disk: Disk, store: Path, build: Build = THIS_BUILD) -> None:
        """Create the object without reading the file. `store` is the directory of the store."""
        self.build = build
        self.path = store / "config" / FILE_NAME
        self.current: Format | None = None
        self._disk = disk
        self._store = store
        self._wanted: set[str] = set()  # features that must be in the file
        self._owner = ""  # owner that must be in the file, or ""
        # The process may have been killed between the rename of the file and its directory's sync.
        self._is_durable = False

    @property
    def required(self) -> frozenset[str]:
        """The features that the file lists as required."""
        return frozenset(self.current.required if self.current is not None else ())

    def load(self) -> None:
        """Read the file without changing it. Call this before using any other file of the store.

        Raises StoreTooNew if this build does not know a feature or the format version,
        StoreOpenError if the file is damaged, and OSError.
        """
        self._is_durable = False
        try:
            self.current = _format_of(decode(read_file(self._disk, self.path)))
        except FileNotFoundError:
            self.current = None
            return
        except ValueError as error:
            raise StoreOpenError(
                f"cannot read {self.path}: {error}; restore the file. Remove it only if no later "
                "version of Aerobee has written to this store",
                str(self.path),
            ) from None
        self._check(self.current)

    def _check(self, found: Format) -> None:
        """Check that this build can open the store. Raises StoreTooNew."""
        if found.version > FORMAT_VERSION:
            what = f"its format is {found.version}, {self.build} reads {FORMAT_VERSION}"
            raise StoreTooNew(self._store, found.needs, what)
        if unknown := found.unknown_to(self.build):
            what = f"{self.build} does not know {', '.join(unknown)}"
            raise StoreTooNew(self._store, newest(map(found.required.__getitem__, unknown)), what)

    def check_owner(self, owner: str) -> None:
        """Check that the store belongs to a broker. Raises StoreOpenError.

        `owner` is its cluster and name, or "" if it has no name of its own. With another broker's
        store, members of consumer groups would continue at offsets of the store that they know.
        """
        known = "" if self.current is None else self.current.owner
        if owner and known and owner != known:
            raise StoreOpenError(
                f"the store in {self._store} belongs to the broker {known}, and this one is "
                f"{owner}: mount the disk of this broker. To give the store to this broker, remove "
                f'"{_OWNER}" and the second line from {self.path}',
                str(self.path),
            )

    def note(self, features: Collection[str] = (), owner: str = "") -> str:
        """Record features of a store that was just opened, its owner, and this build as its writer.

        Return "" if the change is durable, or the reason of a failure. A failure is not raised,
        because a full disk must not prevent the opening of a store. `require` retries the write.
        """
        self._wanted.update(features)
        self._owner = owner or self._owner
        try:
            current = self.current
            is_owned = current is not None and self._owner in ("", current.owner)
            if current is None or current.written_by != self.build.version or not is_owned:
                self._write()
            self._record()
        except OSError as error:
            return str(error)
        return ""

    def require(self, features: Collection[str]) -> None:
        """Record features durably in the file. Call this before another file uses them.

        Raises DiskFull, StoreWriteError.
        """
        self._wanted.update(features)
        try:
            self._record()
        except OSError as error:
            what = f"config/{FILE_NAME} cannot be written: {error.strerror}"
            if error.errno in NO_SPACE:
                raise DiskFull(f"{what}; make room") from error
            raise StoreWriteError(f"{what}; repair the disk") from error

    def _record(self) -> None:
        if not self._wanted <= self.required:
            self._write()
        elif not self._is_durable:
            self._disk.sync_directory(self.path.parent)
            self._is_durable = True

    def _write(self) -> None:
        before = self.current or Format()
        known = {name: self.build.features[name] for name in self._wanted - before.required.keys()}
        written = Format(
            before.version,
            before.since,
            self.build.version,
            {**before.required, **known},
            {**before.others, **({_OWNER: self._owner} if self._owner else {})},
        )
        replace_file(self._disk, self.path, encode(written.to_json()))
        self.current, self._is_durable = written, True


def newest(versions: Iterable[str]) -> str:
    """Return the highest of some versions, or "" without any."""
    return max(versions, key=_parts, default="")


def _parts(version: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in version.split(".")]


def _format_of(content: dict[str, Any]) -> Format:
    """Check and convert the content of the file. Raises ValueError."""
    if missing := {"version", "since", "writtenBy", "required"} - content.keys():
        raise ValueError(f"{', '.join(sorted(missing))} is missing")
    members = dict(content)
    version, since = members.pop("version"), members.pop("since")
    written_by, required = members.pop("writtenBy"), members.pop("required")
    if not isinstance(version, int) or not isinstance(required, dict):
        raise ValueError("version is not a number, or required is not an object")
    if not all(isinstance(text, str) for text in (since, written_by, *required.values())):
        raise ValueError("a version of Aerobee is not a text")
    return Format(version, since, written_by, required, members)
