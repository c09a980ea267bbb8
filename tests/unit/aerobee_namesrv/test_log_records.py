"""A name server remembers how far the logs of replicas went."""

from __future__ import annotations

from aerobee_namesrv.routing.log_records import MAX_STORES, LogRecord, LogRecords


def test_higher_record_counts_whatever_comes_later() -> None:
    records = LogRecords()
    records.record("c", "b", [("s", LogRecord(3, 100, 1))])
    records.record("c", "b", [("s", LogRecord(3, 90, 1)), ("s", LogRecord(2, 500, 9))])
    assert records.record("c", "b", []) == {"s": LogRecord(3, 100, 1)}
    assert records.record("c", "b", [("s", LogRecord(4, 0, 1))]) == {"s": LogRecord(4, 0, 1)}


def test_epoch_of_a_store_never_falls() -> None:
    """Its file of epochs is an older copy, and its log is not."""
    records = LogRecords()
    records.record("c", "b", [("s", LogRecord(3, 100, 7))])
    assert records.record("c", "b", [("s", LogRecord(3, 101, 1))]) == {"s": LogRecord(3, 101, 7)}
    assert records.record("c", "b", [("s", LogRecord(4, 101, 1))]) == {"s": LogRecord(4, 101, 7)}


def test_groups_are_apart() -> None:
    records = LogRecords()
    records.record("c", "b", [("s", LogRecord(3, 100, 1))])
    assert records.record("c", "other", []) == {}
    assert records.record("other", "b", []) == {}


def test_stores_that_were_sent_last_stay() -> None:
    records = LogRecords()
    for number in range(MAX_STORES):
        records.record("c", "b", [(f"{number}", LogRecord(1, number, 1))])
    records.record("c", "b", [("0", LogRecord(1, 0, 1))])
    known = records.record("c", "b", [("new", LogRecord(1, 0, 1))])
    assert len(known) == MAX_STORES
    assert {"0", "new"} <= known.keys() and "1" not in known
