"""The table of docs/compatibility.md says what the SDKs' data say, and those name what there is."""

from __future__ import annotations

from conformance import catalogue
from support.proxy.official_sdk import official_sdks

catalogue.load()


def test_the_page_has_the_table_of_the_data() -> None:
    """Else: `PYTHONPATH=tests .venv/bin/python -m conformance.catalogue`."""
    page = catalogue.PAGE.read_text("utf-8")
    assert catalogue.written(catalogue.date_of_page()) == page


def test_every_scenario_belongs_to_a_row_and_every_row_has_one() -> None:
    elsewhere = {catalogue.RESTARTS, *catalogue.BY_HAND, catalogue.LATENCY, catalogue.LITE_KILLS}
    assert {
        catalogue.row_of(name) for name, _ in catalogue.asked_for()
    } == catalogue.ROWS.keys() - elsewhere


def test_what_an_sdk_cannot_do_is_a_scenario_with_a_cause() -> None:
    names = {name for name, _ in catalogue.asked_for()}
    needs = {needed for _, needed in catalogue.asked_for()}
    for sdk in official_sdks():
        for cannot in sdk.inabilities:
            assert set(cannot.cases) <= names and set(cannot.needing) <= needs
            assert cannot.fault in ("SDK", "Aerobee") and cannot.cause
