"""Pieces of a byte string, against slices of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from aerobee_broker.store.derived.record_columns import items, joined, rows, slices, stride_of

DATA = random.Random(1).randbytes(2_000)
APART = {
    "equally far": np.arange(5, 1_900, 40),
    "anyhow": np.array([3, 4, 90, 700, 1_950]),
    "overlapping": np.arange(0, 100, 7),
    "one": np.array([17]),
    "none": np.array([], dtype=np.int64),
}


@pytest.mark.parametrize("starts", APART.values(), ids=APART)
def test_items_and_rows_match_the_bytes(starts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    wanted = [DATA[at : at + 30] for at in starts.tolist()]
    assert [bytes(row) for row in rows(DATA, starts, 30)] == wanted
    assert list(slices(DATA, starts, starts + 30)) == wanted
    assert joined(DATA, starts, starts + 30) == b"".join(wanted)
    numbers = items(DATA, starts, np.dtype(">i8")).tolist()
    assert numbers == [int.from_bytes(piece[:8], "big", signed=True) for piece in wanted]


def test_pieces_of_several_lengths_are_joined_in_order() -> None:
    starts, ends = np.array([9, 100, 3, 50]), np.array([12, 100, 90, 51])
    assert joined(DATA, starts, ends) == DATA[9:12] + DATA[3:90] + DATA[50:51]


def test_an_item_that_does_not_fit_in_is_read_from_within() -> None:
    assert len(items(DATA, np.array([0, 1_999]), np.dtype(">i8"))) == 2


def test_stride_is_the_constant_distance() -> None:
    assert stride_of(np.array([1, 4, 7])) == 3
    assert stride_of(np.array([1, 4, 8])) == 0
    assert stride_of(np.array([1])) == 0
