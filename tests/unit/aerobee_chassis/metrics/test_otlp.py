"""OTLP as protobuf reads it; changes in place of totals; what a receiver rejects."""

from __future__ import annotations

from aerobee_chassis.metrics.otlp import POINTS, Deltas, Snapshot, requests
from aerobee_chassis.metrics.series import Distribution, Kind, Labels, Metric, Registry, Value
from aerobee_chassis.otlp.encoding import rejection
from aerobee_chassis.otlp.receiver import otlp_target
from support.observing.otlp import CLASSES, attributes, decode, metrics_of

AGE = Metric("age", Kind.GAUGE, "Age.", ("topic",), "milliseconds")
SENT = Metric("sent_total", Kind.COUNTER, "Sent.", ("topic",))
TIMES = Metric("times", Kind.HISTOGRAM, "Times.", buckets=(1, 10))


def encoded(*snapshots: Snapshot) -> list[bytes]:
    labels = {"cluster": "c", "node_id": ""}
    resource = {"service.name": "aerobee-broker"}
    found = requests(snapshots, process=labels, resource=resource, now_ns=1 << 60)
    return [request for request, _ in found]


def registry_of(*items: tuple[Metric, Labels, float]) -> Registry:
    registry = Registry()
    for metric, labels, value in items:
        registry.series(metric).set(value, *labels)
    return registry


def test_each_kind_has_its_form_and_a_name_without_its_unit() -> None:
    times = Distribution(TIMES.buckets)
    times.observe(5, count=3)
    [request] = encoded(
        Snapshot(AGE, [(("t",), 2.5), (("",), 7)], 1),
        Snapshot(SENT, [(("t",), 1 << 40)], 1),
        Snapshot(TIMES, [((), times)], 1, delta=True),
    )
    found = metrics_of(request)
    assert (found["age"].unit, found["age"].description) == ("milliseconds", "Age.")
    double, whole = found["age"].gauge.data_points
    assert (double.as_double, attributes(double)) == (2.5, {"cluster": "c", "topic": "t"})
    assert (whole.as_int, attributes(whole)) == (7, {"cluster": "c"})
    assert (whole.start_time_unix_nano, whole.time_unix_nano) == (1, 1 << 60)
    total = found["sent_total"].sum
    assert (total.is_monotonic, total.aggregation_temporality) == (True, 2)
    assert total.data_points[0].as_int == 1 << 40
    buckets = found["times"].histogram.data_points[0]
    assert found["times"].histogram.aggregation_temporality == 1
    assert (buckets.count, buckets.sum) == (3, 15)
    assert (list(buckets.bucket_counts), list(buckets.explicit_bounds)) == ([0, 3, 0], [1, 10])
    [resource] = decode(request).resource_metrics
    assert attributes(resource.resource) == {"service.name": "aerobee-broker"}


def test_many_points_are_several_requests() -> None:
    items: list[tuple[Labels, Value]] = [((str(number),), number) for number in range(POINTS + 1)]
    found = encoded(Snapshot(AGE, items, 1), Snapshot(SENT, [(("t",), 1)], 1))
    points = [
        len(metric.gauge.data_points) + len(metric.sum.data_points)
        for request in found
        for metric in metrics_of(request).values()
    ]
    assert (len(found), sum(points)) == (2, POINTS + 2)
    assert all(len(request) < 4 << 20 for request in found)


def test_changes_are_those_since_the_last_export_that_arrived() -> None:
    deltas = Deltas(1)

    def change(to: float, now_ns: int) -> list[Snapshot]:
        return deltas.of(registry_of((SENT, ("t",), to)).collect(), now_ns)

    def is_change(found: list[Snapshot], value: float, begin_ns: int) -> bool:
        return found == [Snapshot(SENT, [(("t",), value)], begin_ns, delta=True)]

    assert is_change(change(5, 10), 5, 1)
    second = change(7, 20)
    assert is_change(second, 7, 1)  # the first one did not arrive
    deltas.exported(second)
    third = change(9, 30)
    assert is_change(third, 2, 20)
    deltas.exported(third)
    assert is_change(change(3, 40), 3, 30)  # it began again


def test_changes_of_histograms_are_subtracted_and_gauges_stay() -> None:
    registry, deltas = Registry(), Deltas(1)
    times, age = registry.series(TIMES), registry.series(AGE)
    times.observe(5)
    age.set(4, "t")
    deltas.exported(deltas.of(registry.collect(), 10))
    times.observe(100)
    found = {each.metric: each for each in deltas.of(registry.collect(), 20)}
    assert not found[AGE].delta and found[AGE].items == [(("t",), 4)]
    change = found[TIMES].items[0][1]
    assert isinstance(change, Distribution)
    assert (change.counts, change.sum) == ([0, 0, 1], 100)


def test_a_rejection_is_read() -> None:
    answer = CLASSES["Answer"]()
    assert rejection(answer.SerializeToString()) == ""
    answer.partial_success.rejected_data_points = 300
    answer.partial_success.error_message = "too old"
    assert rejection(answer.SerializeToString()) == "300 rejected: too old"


def test_a_target_without_http_is_called_with_tls() -> None:
    assert otlp_target("http://collector:4317/") == ("collector:4317", False)
    assert otlp_target("https://collector:4317") == ("collector:4317", True)
    assert otlp_target("collector:4317") == ("collector:4317", True)
