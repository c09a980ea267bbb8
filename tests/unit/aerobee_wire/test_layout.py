"""Layouts: every reading of a format agrees with its one declaration."""

from __future__ import annotations

import numpy as np
import pytest

from aerobee_wire import record
from aerobee_wire.layout import Layout

LAYOUT = Layout(("kind", "B"), ("size", "i"), ("host", "4s"), ("offset", "q"))
DATA = LAYOUT.struct.pack(1, -2, b"host", 1 << 40)


def test_view_reads_the_named_fields_alone() -> None:
    assert LAYOUT.view("size").unpack_from(DATA) == (-2,)
    assert LAYOUT.view("kind", "offset").unpack_from(DATA) == (1, 1 << 40)


def test_view_refuses_another_order() -> None:
    with pytest.raises(AssertionError):
        LAYOUT.view("offset", "size")


def test_part_packs_consecutive_fields() -> None:
    packed = LAYOUT.part("size", "host").pack(-2, b"host")
    assert DATA[LAYOUT.offset_of("size") : LAYOUT.offset_of("offset")] == packed


def test_merged_fields_are_the_same_bytes() -> None:
    packed = LAYOUT.part("size", "host").pack(-2, b"host")
    assert LAYOUT.merged("size", "host").struct.pack(1, packed, 1 << 40) == DATA


def test_array_type_reads_what_the_struct_wrote() -> None:
    kind = np.dtype(LAYOUT.array_fields())
    assert kind.itemsize == LAYOUT.size
    (row,) = np.frombuffer(DATA, dtype=kind)
    assert [row["kind"], row["size"], row["offset"]] == [1, -2, 1 << 40]
    assert row["host"].tobytes() == b"host"


@pytest.mark.parametrize(
    ("host_bits", "size"),
    [(0, 88), (record.BORN_HOST_V6, 100), (record.STORE_HOST_V6, 100), (record.HOST_BITS, 112)],
)
def test_ipv6_hosts_move_the_fields_behind_them(host_bits: int, size: int) -> None:
    layout = record.HEADER_LAYOUTS[host_bits]
    assert layout.size == size
    moved = 12 if host_bits & record.BORN_HOST_V6 else 0
    assert layout.offset_of("store_timestamp_ms") == 56 + moved
    assert layout.offset_of("body_length") == size - 4
