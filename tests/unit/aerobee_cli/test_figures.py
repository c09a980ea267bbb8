"""The figures that the demo must find."""

from __future__ import annotations

from collections import Counter

from aerobee_cli.demo import flights
from support.processes.flight_figures import expected


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
