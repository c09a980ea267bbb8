"""Define the files that a replica gets besides the log: its master's tables, and lost data.

The lost data is data that no record of the log contains any more.

    topics.json subscriptionGroup.json consumerOffset.json   with their position in the journal
    delayOffset.json                                         may be out of date
    popLeases.json                                           with its queue offset in the journal
    deletedTopics.json                                       for a copy
    fronts.json                                              for a copy: next offsets of queues
                                                             without messages

All contents are confirmed. A replica that cut its log may have files with data of the part that was
cut. So it takes a snapshot before it applies anything. The module is pure, except for the stream of
pieces.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aerobee_broker.errors import StreamBroken
from aerobee_wire.checked_json import decode, encode

PIECE_BYTES = 256 * 1024
TABLES = {
    "topics": "topics.json",
    "groups": "subscriptionGroup.json",
    "offsets": "consumerOffset.json",
}
DELAY_OFFSETS = "delayOffset.json"
LEASES = "popLeases.json"
DELETED_TOPICS = "deletedTopics.json"
FRONTS = "fronts.json"
FILES = (*TABLES.values(), DELAY_OFFSETS, LEASES, DELETED_TOPICS, FRONTS)
Fronts = Mapping[tuple[str, int], int]  # topic and queue id → next queue offset


class SnapshotPiece(NamedTuple):
    name: str
    data: bytes


class SnapshotEnd(NamedTuple):
    position: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The files of a master: a map from name to content.

    `position` is the physical offset below which the files include everything from the log.
    """

    position: int
    files: Mapping[str, bytes]

    def content(self, name: str) -> dict[str, Any]:
        """Return the decoded content of a file. Raises StreamBroken."""
        try:
            return decode(self.files[name])
        except ValueError as error:
            raise StreamBroken(f"{name} of the master's snapshot cannot be read: {error}") from None

    @property
    def fronts(self) -> Fronts:
        """Return the next queue offsets of queues without messages. Raises StreamBroken."""
        try:
            return {
                (str(topic), int(queue_id)): int(offset)
                for topic, queue_id, offset in self.content(FRONTS)["fronts"]
            }
        except (KeyError, TypeError, ValueError) as error:
            raise StreamBroken(f"the fronts of the master's snapshot: {error!r}") from None

    @property
    def deleted_topics(self) -> Mapping[str, int]:
        """Return a map from topic to the physical offset of its deletion. Raises StreamBroken."""
        try:
            return {topic: int(at) for topic, at in self.content(DELETED_TOPICS).items()}
        except (TypeError, ValueError) as error:
            raise StreamBroken(f"the deletions of the master's snapshot: {error!r}") from None

    def pieces(self) -> Iterator[SnapshotPiece | SnapshotEnd]:
        for name, data in self.files.items():
            for at in range(0, max(len(data), 1), PIECE_BYTES):
                yield SnapshotPiece(name, data[at : at + PIECE_BYTES])
        yield SnapshotEnd(self.position)


def encode_fronts(fronts: Fronts) -> bytes:
    return encode({"fronts": [[topic, queue, at] for (topic, queue), at in fronts.items()]})


@dataclass(slots=True)
class SnapshotAssembly:
    """Assemble the pieces of one snapshot, in the order in which they arrive."""

    _parts: dict[str, list[bytes]] = field(default_factory=dict)

    async def assemble(self, pieces: AsyncIterator[SnapshotPiece | SnapshotEnd]) -> Snapshot:
        """Return the snapshot.

        Raises StreamBroken if a file is missing or unknown, and the errors of `pieces`.
        """
        async for piece in pieces:
            if isinstance(piece, SnapshotEnd):
                return self._ended(piece)
            if piece.name not in FILES:
                raise StreamBroken(f"a snapshot has no {piece.name!r}")
            self._parts.setdefault(piece.name, []).append(piece.data)
        raise StreamBroken("the master has ended its snapshot too early")

    def _ended(self, end: SnapshotEnd) -> Snapshot:
        missing = sorted(set(FILES) - self._parts.keys())
        if missing:
            raise StreamBroken(f"the master's snapshot lacks {', '.join(missing)}")
        files = {name: b"".join(parts) for name, parts in self._parts.items()}
        snapshot = Snapshot(end.position, files)
        for name in FILES:
            snapshot.content(name)  # a missing or repeated piece breaks its checksum
        return snapshot
