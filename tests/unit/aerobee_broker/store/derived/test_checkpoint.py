"""The checkpoint page: RocketMQ's fields in front, ours behind, one sector."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from aerobee_broker.store.derived.checkpoint import (
    Checkpoint,
    CheckpointFile,
    IndexState,
    decode,
    encode,
)
from aerobee_broker.store.derived.time_steps import ALL_ORDERED, Step
from support.disk.simulated_disk import SimulatedDisk
from support.disk.stores import PATH

FULL = Checkpoint(
    file_size=1 << 30,
    dispatched=5_000,
    digest=(1 << 64) - 3,
    index=IndexState(3, 20231114221320123, 777, 4_900),
    flushed=6_000,
    confirmed=5_500,
    log_timestamp_ms=11,
    queue_timestamp_ms=12,
    index_timestamp_ms=13,
    steps=(Step(4_000, 9), Step(4_500, 10)),
    unordered=Step(3_000, 8),
)


def test_first_40_bytes_are_rocketmqs() -> None:
    """Three timestamps, flushed and confirmed offset."""
    assert struct.unpack(">5q", encode(FULL)[:40]) == (11, 12, 13, 6_000, 5_500)


def test_decode_returns_what_was_encoded() -> None:
    assert decode(encode(FULL)) == FULL
    assert len(encode(FULL)) <= 512


@pytest.mark.parametrize("size", [0, 39, 64, 100])
def test_short_page_is_no_checkpoint(size: int) -> None:
    assert decode(encode(FULL)[:size]) is None
    assert decode(bytes(4_096)) is None


def test_every_flipped_bit_is_found() -> None:
    """Where one of the two offsets is damaged both become the lowest possible."""
    lowest = replace(FULL, flushed=FULL.dispatched, confirmed=FULL.dispatched)
    derived_again = Checkpoint(FULL.file_size, flushed=FULL.flushed, confirmed=FULL.confirmed)
    page = encode(FULL)
    for bit in range(24 * 8, len(page) * 8):
        damaged = bytearray(page)
        damaged[bit // 8] ^= 1 << bit % 8
        found = decode(bytes(damaged))
        assert found in (None, FULL, lowest, derived_again), f"bit {bit}"
        assert bit < 128 * 8 or found == derived_again, f"bit {bit}: steps are lost"


def test_a_version_without_steps_makes_the_next_one_derive_them_again() -> None:
    older = bytearray(encode(FULL))
    older[:124] = encode(replace(FULL, dispatched=FULL.dispatched + 1))[:124]
    found = decode(bytes(older))
    assert found is not None
    assert (found.dispatched, found.steps, found.flushed) == (0, (), FULL.flushed)
    assert decode(bytes(older[:124]) + bytes(388)) == replace(
        FULL, dispatched=FULL.dispatched + 1, steps=(), unordered=ALL_ORDERED
    )


def test_noted_offset_changes_nothing_else() -> None:
    disk = SimulatedDisk()
    disk.make_directory(PATH)
    file = CheckpointFile(disk, PATH / "checkpoint")
    assert file.read() is None
    file.write(FULL)
    file.note_flushed(9_999, 9_000)
    assert file.read() == replace(FULL, flushed=9_999, confirmed=9_000)
    file.close()
    assert len(disk.files()[PATH / "checkpoint"]) == 4_096


def test_power_cut_leaves_the_old_or_the_new_checkpoint() -> None:
    for seed in range(100):
        disk = SimulatedDisk(seed)
        disk.make_directory(PATH)
        file = CheckpointFile(disk, PATH / "checkpoint")
        file.write(FULL)
        for number in range(3):
            file.note_flushed(7_000 + number, 7_000)
        after = disk.after_power_cut(seed)
        found = CheckpointFile(after, PATH / "checkpoint").read()
        assert found in [
            FULL,
            *(replace(FULL, flushed=7_000 + number, confirmed=7_000) for number in range(3)),
        ]


def test_offsets_of_a_version_without_replicas_are_read() -> None:
    """It writes the flushed offset twice."""
    page = encode(replace(FULL, confirmed=FULL.flushed))
    assert page[24:32] == page[32:40]
    assert decode(page) == replace(FULL, confirmed=FULL.flushed)
