"""Test message ids of rows: equal for a repeated task, different otherwise."""

from __future__ import annotations

import re

from aerobee_spark.writing.message_ids import MessageIds


def ids(job: str, partition: int, first_row: int, count: int) -> list[str]:
    found = MessageIds(job, partition).of(first_row, count)
    return [row.tobytes().decode() for row in found]


def test_a_row_has_the_same_id_however_rows_come_in_batches() -> None:
    whole = ids("job", 2, 0, 300)
    assert [*ids("job", 2, 0, 1), *ids("job", 2, 1, 255), *ids("job", 2, 256, 44)] == whole


def test_ids_are_hexadecimal_and_different_in_jobs_partitions_and_rows() -> None:
    found = [
        each
        for job in ("a", "b", "a 1", "query 1", "query 11")
        for partition in (0, 1, 11)
        for first in (0, 65_536, 2**40)
        for each in ids(job, partition, first, 100)
    ]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch("[0-9A-F]{32}", each) for each in found)
