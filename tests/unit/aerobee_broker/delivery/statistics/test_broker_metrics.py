"""Removal of the series of deleted topics and groups."""

from __future__ import annotations

import sys
from types import FrameType

from aerobee_broker import declared_metrics as declared
from aerobee_broker.metrics import BrokerMetrics, lag_labels
from aerobee_chassis.metrics.series import Labels, Registry
from support.observing.series import series_value


def filled(topics: int) -> BrokerMetrics:
    metrics = BrokerMetrics(Registry())
    lags, gauges = dict[Labels, float](), dict[Labels, float]()
    for number in range(topics):
        topic, group = f"t{number}", f"g{number}"
        metrics.stored(topic, 1, 10)
        metrics.delivered(topic, group, 1, 10)
        metrics.transaction_checked(topic)
        metrics.lease_expired(group, topic)
        metrics.subscriptions_differ(group)
        lags[lag_labels(group, topic)] = 1
        gauges[group, topic] = 1
    metrics.lags(lags)
    metrics.replace(declared.EXPIRED_UNCONSUMED, gauges)
    return metrics


def left(metrics: BrokerMetrics) -> set[str]:
    """Return the topics and groups that a scrape shows."""
    labels = {
        label for _, items in metrics.registry.collect() for each, _ in items for label in each
    }
    return {label for label in labels if label[:1] in {"t", "g"} and label[1:].isdecimal()}


def steps_of_deletion(metrics: BrokerMetrics) -> int:
    """Return how many lines a deletion runs, once the first one has been."""
    metrics.forget_topic("t0")
    metrics.forget_group("g0")
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> object:
        nonlocal count
        count += event == "line"
        return note

    earlier = sys.gettrace()
    sys.settrace(note)  # type: ignore[arg-type]
    try:
        metrics.forget_topic("t1")
        metrics.forget_group("g1")
    finally:
        sys.settrace(earlier)
    return count


def test_a_deletion_costs_the_same_for_any_number_of_topics_and_groups() -> None:
    few, many = filled(4), filled(400)
    assert steps_of_deletion(few) == steps_of_deletion(many)
    assert left(few) == {"t2", "g2", "t3", "g3"}
    assert len(left(many)) == 2 * 398


def test_a_topic_of_a_deleted_name_counts_from_the_beginning() -> None:
    metrics = filled(2)
    metrics.forget_group("g1")
    metrics.forget_topic("t1")
    assert left(metrics) == {"t0", "g0"}
    metrics.delivered("t1", "g1", 3, 30)
    metrics.transaction_checked("t1")
    labels = {"topic": "t1"}
    assert series_value(metrics.registry, declared.TRANSACTION_CHECKS.exposed, labels) == 1
    assert metrics.delivered_by["t1"]["g1"].messages == 3
    metrics.forget_topic("t1")
    metrics.forget_group("g1")
    assert left(metrics) == {"t0", "g0"}
