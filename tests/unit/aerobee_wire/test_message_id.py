"""Offset message ids and unique ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aerobee_wire import message_id
from aerobee_wire.status import Code
from support.codes import raises_code

NOVEMBER_MS = 1_793_491_200_000  # 2026-11-01T00:00:00Z


@pytest.mark.parametrize(
    ("host", "offset", "expected"),
    [
        ("127.0.0.1:10911", 258, "7F00000100002A9F0000000000000102"),
        ("[::1]:1", 0, "0" * 31 + "1" + "00000001" + "0" * 16),
    ],
)
def test_offset_message_id_is_host_and_physical_offset_in_hex(
    host: str, offset: int, expected: str
) -> None:
    """32 digits for IPv4, 56 for IPv6."""
    made = message_id.offset_message_id(message_id.pack_host(host), offset)
    assert made == expected
    assert message_id.parse_offset_message_id(made) == (host, offset)


@pytest.mark.parametrize("bad", ["", "xyz", "7F", "0" * 33, "0" * 40])
def test_other_ids_are_refused(bad: str) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        message_id.parse_offset_message_id(bad)


def test_unique_id_has_its_parts_in_order() -> None:
    """IP, process id, number, milliseconds of the month, counter."""
    ids = message_id.UniqueIds("10.0.0.7", 0x12345, 0xCAFEBABE)
    assert ids.make(NOVEMBER_MS + 5) == "0A000007" + "2345" + "CAFEBABE" + "00000005" + "0001"
    assert ids.make(NOVEMBER_MS + 5)[-4:] == "0002"
    assert len(message_id.UniqueIds("::1", 1, 1).make(NOVEMBER_MS)) == 56


def test_milliseconds_count_from_the_month_and_follow_the_clock() -> None:
    ids = message_id.UniqueIds("10.0.0.7", 1, 1)
    assert ids.make(NOVEMBER_MS - 1)[20:28] == f"{31 * 86_400_000 - 1:08X}"
    assert ids.make(NOVEMBER_MS)[20:28] == "00000000"
    assert ids.make(NOVEMBER_MS - 1)[20:28] == f"{31 * 86_400_000 - 1:08X}"


def test_ids_of_one_millisecond_differ() -> None:
    ids = message_id.UniqueIds("10.0.0.7", 1, 1)
    assert len({ids.make(NOVEMBER_MS) for _ in range(65_536)}) == 65_536


@settings(deadline=None)
@given(st.lists(st.integers(0, 40_000), max_size=4))
def test_ids_of_a_batch_are_those_that_would_be_made_one_by_one(sizes: list[int]) -> None:
    together = message_id.UniqueIds("10.0.0.7", 1, 1)
    one_by_one = message_id.UniqueIds("10.0.0.7", 1, 1)
    for size in sizes:
        made = together.make_batch(NOVEMBER_MS + 7, size)
        assert made == [one_by_one.make(NOVEMBER_MS + 7) for _ in range(size)]
