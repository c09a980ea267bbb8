"""A snapshot in pieces: whole when it arrives, or refused."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from aerobee_broker.errors import StreamBroken
from aerobee_broker.replication.log import snapshot
from aerobee_broker.replication.log.snapshot import (
    FILES,
    FRONTS,
    Snapshot,
    SnapshotAssembly,
    SnapshotEnd,
    SnapshotPiece,
)
from aerobee_broker.replication.rpc.stream import snapshot_piece, snapshot_response
from aerobee_wire.checked_json import encode

Pieces = list[SnapshotPiece | SnapshotEnd]
FRONT = {("t", 0): 5, ("%RETRY%g", 3): 1 << 40}


def taken() -> Snapshot:
    files = {name: encode({"of": name, "rows": ["x" * 50] * 20}) for name in FILES}
    files[FRONTS] = snapshot.encode_fronts(FRONT)
    files[snapshot.DELETED_TOPICS] = encode({"gone": 900})
    return Snapshot(1_234, files)


@pytest.fixture
def pieces(monkeypatch: pytest.MonkeyPatch) -> Pieces:
    monkeypatch.setattr(snapshot, "PIECE_BYTES", 300)
    return list(taken().pieces())


async def assembled(pieces: Sequence[SnapshotPiece | SnapshotEnd]) -> Snapshot:
    async def arriving() -> AsyncIterator[SnapshotPiece | SnapshotEnd]:
        for piece in pieces:
            yield snapshot_piece(snapshot_response(piece))

    return await SnapshotAssembly().assemble(arriving())


async def test_a_snapshot_arrives_as_it_was_taken(pieces: Pieces) -> None:
    assert len(pieces) > 2 * len(FILES)
    found = await assembled(pieces)
    assert found == taken()
    assert found.fronts == FRONT
    assert found.deleted_topics == {"gone": 900}


async def test_a_snapshot_with_a_piece_too_few_or_too_many_is_refused(pieces: Pieces) -> None:
    for number in range(len(pieces)):
        with pytest.raises(StreamBroken):
            await assembled(pieces[:number] + pieces[number + 1 :])
    for number in range(len(pieces) - 1):
        with pytest.raises(StreamBroken):
            await assembled([*pieces[:number], pieces[number], *pieces[number:]])


async def test_a_file_that_no_snapshot_has_is_refused(pieces: Pieces) -> None:
    with pytest.raises(StreamBroken):
        await assembled([SnapshotPiece("../epochs.json", b"{}"), *pieces])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (FRONTS, {}),
        (FRONTS, {"fronts": [["t", 0]]}),
        (FRONTS, {"fronts": 5}),
        (snapshot.DELETED_TOPICS, {"t": "x"}),
    ],
)
def test_what_is_no_table_is_reported(name: str, content: dict[str, Any]) -> None:
    found = Snapshot(0, {**taken().files, name: encode(content)})
    with pytest.raises(StreamBroken):
        assert found.fronts and found.deleted_topics
