"""Pictures of the curves of `make bench ARGS='--only growth'`."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any

from bench.run import SUITES
from support.repository.tree import docs_script

curves = docs_script("curves")
SVG = "{http://www.w3.org/2000/svg}"


def result(name: str, ratio: float) -> dict[str, Any]:
    return {"name": name, "ours": 20 * ratio, "ratio": ratio, "unit": "us/message"}


def test_a_curve_is_the_rows_of_one_name_in_the_order_of_their_numbers() -> None:
    report = {
        "results": [
            result("growth_queues_100", 6.0),
            result("growth_queues_1", 4.0),
            result("growth_stored_append_1000", 1.0),
            result("growth_queues", 9.0),
            result("ingest_batch_1k", 9.0),
        ]
    }
    assert dict(curves.curves(report)) == {
        "growth_queues": curves.Curve({1: 4.0, 100: 6.0}, "us/message"),
        "growth_stored_append": curves.Curve({1_000: 1.0}, "us/message"),
    }


def test_a_picture_has_a_point_for_each_value_and_higher_values_above() -> None:
    curve = curves.Curve({1: 4.0, 100: 8.0, 10_000: 2.0}, "us/message")
    picture = ET.fromstring(curves.drawn("growth_queues", curve))
    heights = [float(each.attrib["cy"]) for each in picture.iter(f"{SVG}circle")]
    assert len(heights) == 3 and heights[1] < heights[0] < heights[2]
    shown = [each.text for each in picture.iter(f"{SVG}text")]
    assert {"4", "8", "2", "1", "100", "10,000", "queues"} <= set(shown)
    # The axis begins at 0, so the heights are in proportion to the values.
    bottom = curves.HEIGHT - curves.BOTTOM
    assert bottom - heights[0] == (bottom - heights[1]) / 2


def test_the_axis_ends_at_a_round_number() -> None:
    assert [curves.nice(value) for value in (0.7, 1.0, 4.2, 34.0, 61.0, 99.0)] == [
        0.8, 1, 5, 40, 80, 100,
    ]  # fmt: skip


def test_each_curve_that_the_bench_measures_is_drawn() -> None:
    measured = {
        name.rpartition("_")[0]
        for module, names in SUITES.items()
        if module.startswith("growth.")
        for name in names
        if re.search(r"_\d+$", name)
    }
    assert measured == set(curves.AXES)
