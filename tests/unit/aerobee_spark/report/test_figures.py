"""The queries of the local engine, over a table of dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import duckdb
import pytest

from aerobee_client import AdminClient
from aerobee_client.admin.letters import LetterState, LetterStatus
from aerobee_spark.reading.offsets import Bounds, OffsetRange, Queue
from aerobee_spark.report.data.coverage import Coverage, QueueCoverage, with_rows
from aerobee_spark.report.data.figures import Figures, compute
from aerobee_spark.report.data.sql_dialect import DUCKDB
from aerobee_spark.report.data.states import PAGE, BrokerStates, LetterStates
from aerobee_spark.report.request import DLQ
from aerobee_wire import topics
from aerobee_wire.status import Code, MqError


class Letter(NamedTuple):
    keys: str
    reason: str | None
    tags: str | None = "UA"


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


def figures(
    connection: duckdb.DuckDBPyConnection, letters: Sequence[Letter], top: int = 20
) -> Figures:
    connection.execute(
        """
        CREATE TABLE facts (
          kind VARCHAR, topic VARCHAR, brokerName VARCHAR, queueId INT, queueOffset BIGINT,
          msgId VARCHAR, originMsgId VARCHAR, originTopic VARCHAR, tags VARCHAR, keys VARCHAR,
          reason VARCHAR, reasonDescription VARCHAR, reconsumeTimes INT, producerHost VARCHAR,
          bornTimestamp TIMESTAMP, storeTimestamp TIMESTAMP, properties MAP(VARCHAR, VARCHAR),
          bodySize BIGINT, body BLOB, sysFlag INT
        )
        """
    )
    for number, letter in enumerate(letters):
        connection.execute(
            f"""
            INSERT INTO facts VALUES (
              '{DLQ}', '%DLQ%g', 'broker-a', 0, ?, ?, '', 't', ?, ?, ?, '', 3, 'h',
              make_timestamp_ms(?), make_timestamp_ms(?), map(), 1, 'x'::BLOB, 0
            )
            """,
            [number, f"M{number}", letter.tags, letter.keys, letter.reason, number, number + 9],
        )

    def query(sql: str) -> list[dict[str, Any]]:
        cursor = connection.cursor().execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    return compute(query, DUCKDB, bucket_ms=1000, top=top)


def test_a_poison_key_names_its_most_frequent_reasons_and_tags(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    letters = [Letter("k", f"A{number}", f"tag{number}") for number in range(6)]
    letters += [Letter("k other", "Z", None)] * 3 + [Letter("k", "Y", None)] * 2
    (key,) = (row for row in figures(connection, letters).poison_keys if row["key"] == "k")
    assert key["reasons"] == ["Z", "Y", "A0", "A1", "A2"]
    assert key["tags"] == ["", "tag0", "tag1", "tag2", "tag3"]
    assert (key["number_of_reasons"], key["number_of_tags"]) == (8, 7)
    assert (key["messages"], key["dead_letters"]) == (11, 11)


def test_the_number_of_poison_keys_is_known_beyond_the_first(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    letters = [Letter(f"k{number} k{number}", "R") for number in range(37)] * 2
    rows = figures(connection, [*letters, Letter("once", "R")]).poison_keys
    assert len(rows) == 20
    assert {row["poison_keys"] for row in rows} == {37}


def test_every_reason_has_a_sample(connection: duckdb.DuckDBPyConnection) -> None:
    letters = [Letter("", f"R{number % 30}", f"T{number % 5}") for number in range(150)]
    letters += [Letter("", None)]
    newest = [row for row in figures(connection, letters).samples if row["chosen"] == "newest"]
    assert sorted(row["reason"] for row in newest) == sorted(
        ["", *(f"R{number}" for number in range(30))]
    )
    assert {row["queue_offset"] for row in newest} == {*range(120, 151)}


def test_few_reasons_leave_samples_for_each_tag(connection: duckdb.DuckDBPyConnection) -> None:
    letters = [Letter("", f"R{number % 2}", f"T{number % 5}") for number in range(100)]
    newest = [row for row in figures(connection, letters).samples if row["chosen"] == "newest"]
    assert len(newest) == 20
    assert [row["queue_offset"] for row in newest[:2]] == [99, 98]
    assert len({(row["reason"], row["tag"]) for row in newest}) == 10


# ---- test coverage ----
#
# Test whether a report is complete, and its problems if it is not.


DEAD = topics.dead_letter_topic("g")
Q0, Q1 = Queue(DEAD, "broker-a", 0), Queue(DEAD, "broker-b", 0)


def planned(queue: Queue, start: int, end: int) -> QueueCoverage:
    return QueueCoverage(queue, Bounds(0, 100), OffsetRange(queue, start, end))


def test_complete_is_one_row_for_each_offset_of_every_range() -> None:
    coverage = with_rows([planned(Q0, 0, 10), planned(Q1, 5, 5)], {Q0: 10}, {})
    assert coverage.complete
    assert (coverage.rows, coverage.expected, coverage.problems) == (10, 10, [])


def test_nothing_to_read_is_complete() -> None:
    assert Coverage(()).complete
    assert Coverage(()).expected == 0


def test_too_few_rows_are_a_problem_with_its_reason() -> None:
    coverage = with_rows([planned(Q0, 0, 10), planned(Q1, 0, 5)], {Q0: 7, Q1: 5}, {Q0: "gone"})
    assert not coverage.complete
    assert coverage.problems == [f"{Q0}: 7 of 10 messages were read: gone"]
    assert [each.complete for each in coverage.queues] == [False, True]


def test_too_many_rows_are_a_problem_too() -> None:
    assert with_rows([planned(Q0, 0, 10)], {Q0: 11}, {}).problems


def test_a_silent_broker_makes_completeness_unknown() -> None:
    down = QueueCoverage(Q1, None, None, problem="broker-b is down")
    coverage = with_rows([planned(Q0, 0, 10), down], {Q0: 10}, {})
    assert not coverage.complete
    assert (coverage.rows, coverage.expected) == (10, None)
    assert coverage.problems == [f"{Q1}: broker-b is down"]
    assert coverage.to_read == [OffsetRange(Q0, 0, 10)]
    assert coverage.queues[1].as_json() == {
        "kind": "dlq",
        "topic": DEAD,
        "broker_name": "broker-b",
        "queue_id": 0,
        "min_offset": None,
        "max_offset": None,
        "start_offset": None,
        "end_offset": None,
        "expected": None,
        "rows": 0,
        "complete": False,
        "problem": "broker-b is down",
        "upto_ms": None,
    }


def test_an_empty_range_is_item_by_its_offsets() -> None:
    item = planned(Q0, 5, 5).as_json()
    assert (item["start_offset"], item["end_offset"], item["expected"]) == (5, 5, 0)
    assert (item["min_offset"], item["max_offset"]) == (0, 100)


# ---- test states ----
#
# States of dead letters in a report: a page at a time, and unknown if a broker does not answer.


TOPIC = "%DLQ%billing"
SENT = LetterStatus(LetterState.REDRIVEN, 5, "job")


class Brokers:
    """Letter 1 of each broker was redriven; broker-b does not answer."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def letter_states(self, group: str, broker: str, *place: int) -> dict[int, LetterStatus]:
        self.calls.append((group, broker, *place))
        if broker == "broker-b":
            raise MqError(Code.BROKER_UNREACHABLE, "broker-b does not answer")
        return {1: SENT}


def test_states_are_fetched_by_pages_and_counted() -> None:
    brokers = Brokers()
    states = LetterStates(BrokerStates(cast(AdminClient, brokers)))
    found = [states.look_up(TOPIC, "broker-a", 0, n) for n in (0, 1, 2, PAGE)]
    assert [status and status.state.value for status in found] == [
        *("open", "redriven", "open", "open")
    ]
    assert brokers.calls == [
        ("billing", "broker-a", 0, 0, PAGE),
        ("billing", "broker-a", 0, PAGE, 2 * PAGE),
    ]
    assert states.counts == {"open": 3, "redriven": 1} and not states.problems


def test_states_of_a_silent_broker_are_unknown_and_asked_for_once() -> None:
    brokers = Brokers()
    states = LetterStates(BrokerStates(cast(AdminClient, brokers)))
    assert [states.look_up(TOPIC, "broker-b", 0, n) for n in (1, PAGE)] == [None, None]
    assert len(brokers.calls) == 1
    assert states.counts == {"unknown": 2}
    assert states.problems == {"broker-b": "broker-b does not answer"}


def test_states_are_unknown_without_brokers() -> None:
    states = LetterStates(None)
    assert states.look_up(TOPIC, "broker-a", 0, 1) is None
    assert states.counts == {"unknown": 1} and not states.problems
