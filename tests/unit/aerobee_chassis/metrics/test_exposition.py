"""The text of metrics: what Prometheus' own parser reads of it."""

from __future__ import annotations

from math import inf, nan

from prometheus_client.parser import text_string_to_metric_families

from aerobee_chassis.metrics.endpoint import PAUSE_BYTES, with_pauses
from aerobee_chassis.metrics.exposition import LINES, Exposition
from aerobee_chassis.metrics.series import Distribution, Kind, Metric, Registry, Series
from support.observing.series import series_value

AGE = Metric("age", Kind.GAUGE, "Age.", ("topic",), "milliseconds")
SENT = Metric("sent_total", Kind.COUNTER, 'Sent:\n "all".', former="rocketmq_sent_total")
TIMES = Metric("times", Kind.HISTOGRAM, "Times.", ("topic",), buckets=(1, 10))


def parsed(registry: Registry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = b"".join(Exposition(registry).write()).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def key(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_a_name_ends_with_its_unit_and_a_former_name_has_the_same_series() -> None:
    registry = Registry({"cluster": "c", "node_id": ""})
    registry.series(AGE).set(5, 'a"b\\c\nd')
    registry.series(SENT).add(2)
    assert parsed(registry) == {
        key("age_milliseconds", cluster="c", topic='a"b\\c\nd'): 5,
        key("sent_total", cluster="c"): 2,
        key("rocketmq_sent_total", cluster="c"): 2,
    }


def test_buckets_are_cumulative() -> None:
    registry = Registry()
    times = registry.series(TIMES)
    for value in (1, 2, 100):
        times.observe(value, "t")
    times.observe(0.5, "t", count=2)
    found = parsed(registry)
    assert [found[key("times_bucket", topic="t", le=le)] for le in ("1", "10", "+Inf")] == [3, 4, 5]
    assert found[key("times_sum", topic="t")] == 104
    assert found[key("times_count", topic="t")] == 5


def test_numbers_that_are_not_finite_are_written() -> None:
    registry = Registry()
    age = registry.series(AGE)
    for value, topic in ((inf, "a"), (-inf, "b"), (nan, "c"), (True, "d"), (1 << 60, "e")):
        age.set(value, topic)
    text = b"".join(Exposition(registry).write()).decode()
    values = [line.rpartition(" ")[2] for line in text.splitlines() if not line.startswith("#")]
    assert values == ["+Inf", "-Inf", "NaN", "1", str(1 << 60)]


def test_a_series_that_is_removed_disappears() -> None:
    registry = Registry()
    age, exposition = registry.series(AGE), Exposition(registry)
    age.set(1, "t")
    age.set(2, "u")
    assert b'topic="t"' in b"".join(exposition.write())
    age.remove("topic", "t")
    text = b"".join(exposition.write())
    assert b'topic="t"' not in text and b'topic="u"' in text


def test_series_beyond_the_limit_are_one() -> None:
    registry = Registry(limit=2)
    sizes = Metric("sizes_total", Kind.COUNTER, "Sizes.", ("topic",))
    registry.register(
        lambda: (
            Series(sizes, {("a",): 1, ("b",): 2, ("c",): 3, ("d",): 4}),
            Series(AGE, {("a",): 1, ("b",): 2, ("c",): 3}),
        )
    )
    found = parsed(registry)
    assert found[key("sizes_total", otel_metric_overflow="true")] == 7
    assert len([each for each in found if each[0] == "sizes_total"]) == 3
    assert len([each for each in found if each[0] == "age_milliseconds"]) == 2


def test_the_sum_of_series_beyond_the_limit_never_falls() -> None:
    registry = Registry(limit=2)
    sizes = registry.series(
        Metric("sizes_total", Kind.COUNTER, "Sizes.", ("topic",), former="old_total")
    )
    times = registry.series(TIMES)
    for number, topic in enumerate("abcd", 1):
        sizes.add(number, topic)
        times.observe(number, topic)

    def sums() -> list[float]:
        found = parsed(registry)
        names = ("sizes_total", "old_total", "times_count", "times_sum")
        return [found[key(name, otel_metric_overflow="true")] for name in names]

    assert sums() == [7, 7, 2, 7]
    for series in (sizes, times):
        series.remove("topic", "a")
        series.remove("topic", "c")
    assert sums() == [7, 7, 2, 7]  # "d" does not move into the place of "a"
    sizes.set(1, "d")  # it began again
    assert sums() == [8, 8, 2, 7]
    sizes.add(5, "e")
    assert sums() == [8, 8, 2, 7]
    assert parsed(registry)[key("old_total", topic="e")] == 5


def test_a_histogram_beyond_the_limit_is_merged() -> None:
    registry = Registry(limit=1)
    times = registry.series(TIMES)
    for topic in "abc":
        times.observe(5, topic)
    found = parsed(registry)
    assert found[key("times_count", otel_metric_overflow="true")] == 2
    first = series_value(registry, "times", {"topic": "a", "otel_metric_overflow": ""})
    assert isinstance(first, Distribution)


def test_a_histogram_is_written_in_pieces_of_a_bounded_number_of_lines() -> None:
    registry = Registry()
    series = registry.series(Metric("sizes", Kind.HISTOGRAM, "S.", ("topic",), buckets=(1, 2, 3)))
    for number in range(1_000):
        series.observe(2, f"t{number}")
    exposition = Exposition(registry)
    pieces = list(exposition.write())
    assert max(piece.count(b"\n") for piece in pieces) <= LINES
    text = b"".join(pieces)
    assert text.count(b"sizes_count") == 1_000 and text.count(b"sizes_bucket") == 4_000
    assert b"".join(exposition.write()) == text, "kept labels give the same text"


def test_a_large_scrape_pauses_and_a_small_one_does_not() -> None:
    pauses: list[float] = []
    assert with_pauses([b"x" * 1_000] * 10, pauses.append) == [b"x" * 1_000] * 10
    assert not pauses
    piece = b"x" * (PAUSE_BYTES // 2)
    assert len(with_pauses([piece] * 5, pauses.append)) == 5
    assert len(pauses) == 2
