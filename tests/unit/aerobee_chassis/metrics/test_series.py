"""The series of a metric: removal by a label."""

from __future__ import annotations

import random
from collections.abc import ItemsView, Iterator

from aerobee_chassis.metrics.series import Kind, Labels, Metric, Series, Value

LAG = Metric("lag", Kind.GAUGE, "Lag.", ("group", "topic"))


class Watched(dict[Labels, Value]):
    """Counts how often all of it is examined."""

    def __init__(self, values: dict[Labels, Value]) -> None:
        super().__init__(values)
        self.examined = 0

    def __iter__(self) -> Iterator[Labels]:
        self.examined += 1
        return super().__iter__()

    def items(self) -> ItemsView[Labels, Value]:  # type: ignore[override]
        self.examined += 1
        return super().items()


def all_pairs() -> Watched:
    return Watched({(f"g{group}", f"t{topic}"): 1 for group in range(10) for topic in range(10)})


def test_only_the_first_removal_examines_all_series() -> None:
    series = Series(LAG)
    values = series.values = all_pairs()
    for number in range(9):
        series.remove("topic", f"t{number}")
    assert (values.examined, sorted(values)) == (1, [(f"g{group}", "t9") for group in range(10)])
    for number in range(9):
        series.remove("group", f"g{number}")
    assert dict(series.items()) == {("g9", "t9"): 1}


def test_removal_finds_what_came_and_went_in_the_meantime() -> None:
    rng, series, expected = random.Random(7), Series(LAG), dict[Labels, float]()
    for _ in range(2_000):
        group, topic = labels = (f"g{rng.randrange(5)}", f"t{rng.randrange(5)}")
        match rng.randrange(6):
            case 0 | 1:
                series.add(1, *labels)
                expected[labels] = expected.get(labels, 0) + 1
            case 2 | 3:
                series.set(3, *labels)
                expected[labels] = 3
            case 4:
                series.remove("group", group)
                expected = {each: value for each, value in expected.items() if each[0] != group}
            case _:
                series.remove("topic", topic)
                expected = {each: value for each, value in expected.items() if each[1] != topic}
        assert dict(series.items()) == expected
    series.replace({})
    series.remove("topic", "t0")
    assert series.items() == []


def test_hidden_series_are_left_out_until_they_are_replaced() -> None:
    series = Series(LAG)
    values = series.values = all_pairs()
    for number in range(9):
        series.hide("topic", f"t{number}")
    series.hide("group", "g0")
    assert values.examined == 0
    assert sorted(labels for labels, _ in series.items()) == [
        (f"g{group}", "t9") for group in range(1, 10)
    ]
    series.replace({})
    series.hide("topic", "t0")  # nothing is to be hidden
    series.replace({("g0", "t0"): 2})
    assert series.items() == [(("g0", "t0"), 2)]
