"""The queries of the local engine, over a table of dead letters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import duckdb
import pytest

from aerobee_spark.report.data.figures import Figures, compute
from aerobee_spark.report.data.sql_dialect import DUCKDB
from aerobee_spark.report.request import DLQ


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
