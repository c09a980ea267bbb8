"""The records of the lease journal: what is written on the disk, and what it means."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.delivery.pop import lease_journal_format
from aerobee_broker.delivery.pop.in_flight import State
from aerobee_broker.delivery.pop.lease_journal_format import (
    ChangedLease,
    ChangeRecord,
    DeleteRecord,
    JournalRecord,
    LeasedQueue,
    LeasedRun,
    LeaseRecord,
    ResetRecord,
    SettledQueue,
    SettledRun,
    SettleRecord,
    rejections_of,
)
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.retry.policy import Failure
from support.clock.manual_clock import ManualClock

OFFSETS = st.lists(st.integers(0, 30), unique=True)
KEY = ("g", "t", 0)

LEASED = LeasedQueue(0, 4, 10, [LeasedRun(4, 1, 2), LeasedRun(6, 2, 1), LeasedRun(8, 1, 1)], [9])
SETTLED = SettledQueue(*KEY, [SettledRun(4, 2), SettledRun(8, 1)], [6])
RECORDS: list[tuple[JournalRecord, str]] = [
    (
        LeaseRecord("g", "t", 9, 100, 50, False, "a", [LEASED]),
        '{"kind":"lease","group":"g","topic":"t","id":9,"at":100,"for":50,"fifo":false,'
        '"attempt":"a","queues":[[0,4,10,[[4,1,2],[6,2,1],[8,1,1]],[9]]]}',
    ),
    (SettleRecord([SETTLED]), '{"kind":"settle","queues":[["g","t",0,[[4,2],[8,1]],[6]]]}'),
    (
        ChangeRecord([ChangedLease(*KEY, 6, 9, 120, 70, 2, 1)]),
        '{"kind":"show","leases":[["g","t",0,6,9,120,70,2,1]]}',
    ),
    (
        ChangeRecord(
            [ChangedLease(*KEY, n, 9, 120, 70, 2, 0) for n in (6, 7, 8)],
            rejections_of([None, Failure(), Failure("a", "b", consumer="c")]),
        ),
        '{"kind":"show","leases":[["g","t",0,6,9,120,70,2,0],["g","t",0,7,9,120,70,2,0],'
        '["g","t",0,8,9,120,70,2,0]],"rejections":[null,[],["a","b","","","c"]]}',
    ),
    (ResetRecord(*KEY, 7), '{"kind":"move","group":"g","topic":"t","queue":0,"offset":7}'),
    (
        LeaseRecord("g", "t", 9, 100, 50, True, "", [LEASED], "client-1"),
        '{"kind":"lease","group":"g","topic":"t","id":9,"at":100,"for":50,"fifo":true,'
        '"attempt":"","queues":[[0,4,10,[[4,1,2],[6,2,1],[8,1,1]],[9]]],"client":"client-1"}',
    ),
    (
        ResetRecord(*KEY, 7, "ops@host"),
        '{"kind":"move","group":"g","topic":"t","queue":0,"offset":7,"by":"ops@host"}',
    ),
    (DeleteRecord("", "t"), '{"kind":"forget","group":"","topic":"t"}'),
]


@pytest.mark.parametrize(("record", "body"), RECORDS)
def test_the_bytes_of_each_record_stay_as_they_are(record: JournalRecord, body: str) -> None:
    message = lease_journal_format.encode(record, "log", 7)
    assert (message.body.decode(), message.topic, message.born_timestamp_ms) == (body, "log", 7)
    assert lease_journal_format.decode(message.body) == record


@given(offsets=OFFSETS)
def test_settled_runs_are_their_offsets_in_order(offsets: list[int]) -> None:
    assert (
        list(lease_journal_format.settled_offsets(lease_journal_format.settled_runs(offsets)))
        == offsets
    )


@given(messages=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), unique=True))
def test_leased_runs_are_their_messages_in_order(messages: list[tuple[int, int]]) -> None:
    assert (
        list(lease_journal_format.leased_messages(lease_journal_format.leased_runs(messages)))
        == messages
    )


def test_messages_one_after_the_other_are_one_run() -> None:
    leased_runs, settled_runs = lease_journal_format.leased_runs, lease_journal_format.settled_runs
    assert leased_runs((offset, 1) for offset in range(5, 37)) == [LeasedRun(5, 1, 32)]
    assert leased_runs([(5, 1), (6, 2), (7, 2), (9, 2)]) == [(5, 1, 1), (6, 2, 2), (9, 2, 1)]
    assert settled_runs([5, 6, 7, 9, 8]) == [(5, 3), (9, 1), (8, 1)]


LEASE = {"kind": "lease", "group": "g", "topic": "t", "id": 9, "at": 100, "for": 50, "fifo": False}
LEASED_RUNS = [[0, 4, 10, [[4, 1, 2], [6, 2, 1], [8, 1, 1]], [9]]]
SETTLED_RUNS = [[*KEY, [[4, 2], [8, 1]], [6]]]


def apply(table: LeaseTable, content: dict[str, Any]) -> None:
    table.apply(lease_journal_format.decode(json.dumps(content).encode()))


def leased_table(queues: list[Any]) -> LeaseTable:
    table = LeaseTable(ManualClock(), lambda: 0)
    apply(table, {**LEASE, "attempt": "a", "queues": queues})
    return table


def test_a_run_is_each_of_its_messages() -> None:
    table = leased_table(LEASED_RUNS)
    queue = table.find(*KEY)
    assert queue is not None
    leased = {message.offset: message.attempt for message in queue if message.lease_id}
    assert leased == {4: 1, 5: 1, 6: 2, 8: 1}
    assert table.group("g", "t").attempts["a"].messages == ((0, 4), (0, 5), (0, 6), (0, 8))
    assert (queue.cursor, sorted(queue.in_flight)) == (10, [4, 5, 6, 8, 9])
    apply(table, {"kind": "settle", "queues": SETTLED_RUNS})
    assert {message.offset: message.state for message in queue} == {
        6: State.ACKED,
        9: State.VISIBLE,
    }


@pytest.mark.parametrize("entry", [[1, 2, 3], ["5"], None, "x", [1], 4])
def test_a_run_of_unknown_form_is_refused(entry: object) -> None:
    table = leased_table(LEASED_RUNS)
    with pytest.raises((TypeError, ValueError)):
        apply(table, {"kind": "settle", "queues": [[*KEY, [entry], []]]})


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"kind":"new"}', b'{"kind":"move"}', b"{"])
def test_a_record_of_unknown_form_is_refused(body: bytes) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        lease_journal_format.decode(body)


def test_the_client_of_a_lease_is_in_the_snapshot_and_older_brokers_can_read_it() -> None:
    table = LeaseTable(ManualClock(), lambda: 0)
    table.apply(LeaseRecord("g", "t", 9, 100, 50, False, "", [LEASED], "client-1"))
    content = json.loads(json.dumps(table.to_json()))
    restored = LeaseTable(ManualClock(), lambda: 0)
    restored.load(content)
    queue = restored.find(*KEY)
    assert queue is not None and queue.in_flight[4].client_id == "client-1"
    [group] = content["groups"]
    assert {len(message) for _, _, _, messages in group["queues"] for message in messages} == {8}
    del group["clients"]  # as an older broker writes it
    restored.load(content)
    queue = restored.find(*KEY)
    assert queue is not None and queue.in_flight[4].client_id == ""


def test_a_settlement_says_which_messages_are_dead_letters() -> None:
    record = SettleRecord([SETTLED], [(*KEY, 5)])
    message = lease_journal_format.encode(record, "log", 7)
    assert message.body.decode().endswith('[6]]],"dead":[["g","t",0,5]]}')
    assert lease_journal_format.decode(message.body) == SettleRecord([SETTLED], [[*KEY, 5]])
