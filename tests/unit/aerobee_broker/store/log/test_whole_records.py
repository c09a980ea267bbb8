"""Whole records are found alike, one by one and many of one size at once."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import example, given
from hypothesis import strategies as st

from aerobee_broker.store.log.whole_records import IDENTITY, WholeRecords, whole_records
from aerobee_wire.record import BLANK, FIXED_V1, MAGIC_BLANK, MAGIC_V1, MAGIC_V2
from support.records import encode

BEGIN = 1 << 40
ROOM = 1 << 30
RUNS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 150)), min_size=1, max_size=6)


def records(sizes: Iterable[int]) -> list[bytes]:
    """One behind the other from BEGIN on, with bodies of these sizes."""
    found, at = [], BEGIN
    for size in sizes:
        found.append(encode(topic="t", body=b"b" * size, physical_offset=at))
        at += len(found[-1])
    return found


def bodies(runs: list[tuple[int, int]]) -> list[int]:
    """Of runs of one size each."""
    return [size for size, count in runs for _ in range(count)]


def ends_at(data: bytes) -> int:
    """Where the records end that lie at BEGIN, looked at one by one."""
    at = 0
    while len(data) - at >= IDENTITY.size:
        size, magic, own = IDENTITY.unpack_from(data, at)
        if magic not in (MAGIC_V1, MAGIC_V2) or own != BEGIN + at:
            break
        if not FIXED_V1 <= size <= len(data) - at:
            break
        at += size
    return at


@given(RUNS, st.integers(0, FIXED_V1 - BLANK.size))
@example([(1, 150)], 0)
@example([(1, 50)], 1)
def test_all_whole_records_are_found_and_the_size_of_one_that_is_cut_off(
    runs: list[tuple[int, int]], missing: int
) -> None:
    found = records(bodies(runs))
    data = b"".join(found)
    whole = len(data) - (len(found[-1]) if missing else 0)
    expected = WholeRecords(whole, BEGIN + whole, len(found[-1]) if missing else 0)
    assert whole_records(data[: len(data) - missing], BEGIN, ROOM) == expected


@given(RUNS, st.data())
def test_records_end_before_one_that_is_damaged_or_lies_elsewhere(
    runs: list[tuple[int, int]], draw: st.DataObject
) -> None:
    found = records(bodies(runs))
    bad = draw.draw(st.integers(0, len(found) - 1))
    place = draw.draw(st.sampled_from([*range(8), *range(28, 36)]))  # size, magic code, offset
    before = sum(map(len, found[:bad]))
    data = bytearray(b"".join(found))
    data[before + place] ^= 1 << draw.draw(st.integers(0, 7))
    found_length = whole_records(bytes(data), BEGIN, ROOM).length
    assert found_length == ends_at(bytes(data))
    assert found_length == before or place < 4, "only another size may still fit"


@given(RUNS)
def test_the_blank_at_the_end_of_a_file_is_whole_too(runs: list[tuple[int, int]]) -> None:
    data = b"".join(records(bodies(runs)))
    room = len(data) + 100
    ended = data + BLANK.pack(100, MAGIC_BLANK) + bytes(100 - BLANK.size)
    found = whole_records(ended, BEGIN, room)
    assert found == WholeRecords(len(data) + BLANK.size, BEGIN + room)
    assert whole_records(data, BEGIN, len(data)).length < len(data), "there is no room for a blank"
