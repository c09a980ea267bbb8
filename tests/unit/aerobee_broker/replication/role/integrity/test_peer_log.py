"""What a replica may read of another one's log, and what it gets."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.log.epochs import EpochEntry, EpochHistory
from aerobee_broker.replication.log.handshake import LogDescription
from aerobee_broker.replication.role.integrity.peer_log import read_ranges, readable_ranges
from aerobee_broker.store.damage import DamagedRange
from aerobee_wire.status import Code
from support.codes import raises_code
from support.disk.damage import flip, master_of, record_at

HISTORY = EpochHistory((EpochEntry(0, "a", 0), EpochEntry(1, "a", 100), EpochEntry(2, "b", 500)), 2)


def described(number: int, history: EpochHistory = HISTORY, end: int = 1_000) -> LogDescription:
    return LogDescription(
        cluster="c",
        broker_name="b",
        replica=Replica(number, f"store-{number}"),
        history=history,
        epoch=history.highest,
        lowest=0,
        end=end,
        confirmed=end,
        file_size=8_192,
    )


def test_only_what_both_logs_have_alike_is_read() -> None:
    ranges = [DamagedRange(50, 80), DamagedRange(450, 600), DamagedRange(700, 720)]
    other = EpochHistory(
        (EpochEntry(0, "a", 0), EpochEntry(1, "a", 100), EpochEntry(3, "c", 520)), 3
    )
    assert readable_ranges(described(1), described(2), ranges) == ranges
    assert readable_ranges(described(1), described(2, other), ranges) == [(50, 80), (450, 500)]
    assert readable_ranges(described(1), described(2, end=460), ranges) == [(50, 80), (450, 460)]
    behind = replace(described(2), lowest=100)
    assert readable_ranges(described(1), behind, ranges) == ranges[1:]


def test_what_is_not_alike_is_refused() -> None:
    stranger = EpochHistory((EpochEntry(0, "x", 0), EpochEntry(1, "x", 100)), 1)
    asked = [DamagedRange(50, 80)]
    with raises_code(Code.ILLEGAL_OPERATION):
        readable_ranges(described(1), described(2, stranger), asked)
    with raises_code(Code.ILLEGAL_OPERATION):
        readable_ranges(replace(described(1), broker_name="other"), described(2), asked)
    with raises_code(Code.QUERY_NOT_FOUND):
        readable_ranges(described(1), described(2, end=40), asked)


@pytest.mark.parametrize("damaged", [False, True])
def test_ranges_that_are_damaged_here_too_are_left_out(*, damaged: bool) -> None:
    master, disk = master_of(100)
    first, second = record_at(master, 5), record_at(master, 20)
    flip(disk, first.begin + 100)
    if damaged:
        flip(disk, second.begin + 100)
        with raises_code(Code.MESSAGE_CORRUPTED):
            read_ranges(master.shipper(), [first, second])
    else:
        [chunk] = read_ranges(master.shipper(), [first, second])
        assert (chunk.physical_offset, chunk.end) == second
    assert first.begin in master.damage.suspects
