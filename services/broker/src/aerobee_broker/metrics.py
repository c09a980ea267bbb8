"""Export the metrics of a broker, under RocketMQ's names.

Totals are kept beside the Prometheus counters, for GetBrokerStatus and tests.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily

from aerobee_wire import topics as names

M = TypeVar("M", Counter, Gauge)

_STATM = Path("/proc/self/statm")
_MEMORY_MAX = Path("/sys/fs/cgroup/memory.max")
NODE_TYPE = "broker"
_NODE = ("cluster", "node_type", "node_id")
_SIZES = (1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
_DELAY_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1, 5, 30, 300)
# Gauges without labels of their own.
_GAUGES = {
    "broker_permission": "6: readable and writable.",
    "topic_number": "Topics.",
    "consumer_group_number": "Consumer groups.",
    "producer_connections": "Clients that produce.",
    "consumer_connections": "Clients that consume.",
    "storage_size": "Bytes of commit log.",
    "storage_flush_behind_bytes": "Bytes appended and not flushed.",
    "parked_pulls": "Pulls that wait for a message.",
    "parked_pops": "Pops that wait for a message.",
    "pop_leased_messages": "Messages on lease.",
    "pop_waiting_messages": "Messages that come again, or wait for their turn.",
    "pop_blocked_message_groups": "FIFO groups that wait for a settlement.",
    "timing_messages": "Messages that wait for a time of their own.",
    "store_read_only": "1: the store does not accept writes.",
    "damaged_log_ranges": "Parts of the log that are known to be damaged and are not repaired.",
    "damaged_log_bytes": "Their bytes.",
    "scrub_completed_seconds": "When the whole log was last checked, since the epoch; 0: not yet.",
}


class Traffic:
    """Messages of one kind since the start of the process.

    Attributes:
        messages: The number of messages.
        size: Their bytes: of the bodies of stored messages, of the records of delivered ones.
        redelivered: The number of messages that were delivered to the group before.
        is_retry: Whether the messages are in a retry topic; then each is redelivered.
    """

    __slots__ = ("is_retry", "messages", "redelivered", "size")

    def __init__(self, *, is_retry: bool = False) -> None:
        self.is_retry = is_retry
        self.messages = 0
        self.size = 0
        self.redelivered = 0


class BrokerMetrics:
    def __init__(self, registry: CollectorRegistry, *, cluster: str, node_id: str) -> None:
        self.registry = registry
        self._node = (cluster, NODE_TYPE, node_id)
        self.labels = dict(zip(_NODE, self._node, strict=True))  # labels of every metric
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.redelivered = 0
        self.dead_letters = 0
        self.corrupted_records = 0
        self.scrubbed_ms = 0  # when the whole log was last checked, since the epoch; 0: not yet

        # By label: the metrics whose series belong to a topic or a group.
        self._labelled: dict[str, list[Counter | Gauge]] = {"topic": [], "consumer_group": []}

        def counter(name: str, text: str, *labels: str) -> Counter:
            made = Counter(f"rocketmq_{name}", text, [*_NODE, *labels], registry=registry)
            return self._with_series(made, labels)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            made = Gauge(f"rocketmq_{name}", text, [*_NODE, *labels], registry=registry)
            return self._with_series(made, labels)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"rocketmq_{name}", text, [*_NODE], registry=registry, buckets=buckets)

        # Plain numbers, because a Prometheus counter costs a look-up by labels and a lock for each
        # call. `_TrafficCollector` exports them.
        self.stored_by: dict[str, dict[str, Traffic]] = {}  # topic → message type → traffic
        self.delivered_by: dict[str, dict[str, Traffic]] = {}  # topic → consumer group → traffic
        self.dead_lettered_by: dict[str, int] = {}  # consumer group → messages
        registry.register(_TrafficCollector(self))
        self._commits = counter("commit_messages", "Half messages committed.", "topic")
        self._rollbacks = counter("rollback_messages", "Half messages rolled back.", "topic")
        self._checks = counter(
            "transaction_checks", "Times a producer was asked about a half message.", "topic"
        )
        self._given_up = counter(
            "given_up_half_messages", "Half messages given up after their checks.", "topic"
        )
        self._half = gauge("half_messages", "Half messages that wait for their end.", "topic")
        self._half_topics: set[str] = set()
        self._differing = counter(
            "subscription_conflicts",
            "Times that the members of a group came to subscribe differently.",
            "consumer_group",
        )
        self._lite_topics = counter(
            "lite_topics_expired", "Lite topics that their TTL has removed.", "topic"
        )
        self._lite_unsettled = counter(
            "lite_messages_expired_unsettled",
            "Messages that a group had not settled in lite topics that their TTL has removed.",
            "topic",
            "consumer_group",
        )
        self._corrupted = counter("corrupted_records", "Records that failed their check.")
        self._scrubbed = counter("scrubbed_bytes", "Bytes of the log that scrubs have checked.")
        self._repaired = counter("repaired_records", "Records repaired from other replicas.")
        self._size = histogram("message_size", "Bytes of a body, mean of a request.", _SIZES)
        self._mean_size = self._size.labels(*self._node)
        self.delay_latency = histogram(
            "delay_message_latency", "Seconds a delayed message came late.", _DELAY_SECONDS
        ).labels(*self._node)
        self._gauges = {
            name: gauge(name, text).labels(*self._node) for name, text in _GAUGES.items()
        }
        self._expired = gauge(
            "consumer_expired_messages",
            "Messages that retention removed before the group consumed them, until it continues.",
            *("topic", "consumer_group"),
        )
        self._lag = gauge(
            "consumer_lag_messages", "Messages behind.", "topic", "consumer_group", "is_retry"
        )

    def stored(self, topic: str, count: int, size: int, message_type: str = "NORMAL") -> None:
        """Count `count` messages from a producer; `size` is the bytes of their bodies."""
        self.messages_in += count
        self.bytes_in += size
        try:
            traffic = self.stored_by[topic][message_type]
        except KeyError:
            traffic = self.stored_by.setdefault(topic, {})[message_type] = Traffic()
        traffic.messages += count
        traffic.size += size
        self._mean_size.observe(size / count)

    def delivered(
        self, topic: str, consumer_group: str, count: int, size: int, redelivered: int = 0
    ) -> None:
        """Count `count` messages to a consumer.

        Args:
            topic: The topic of the messages.
            consumer_group: The group of the consumer.
            count: The number of messages.
            size: The bytes of their records.
            redelivered: The number of these messages that the group got before.
        """
        self.messages_out += count
        self.bytes_out += size
        try:
            traffic = self.delivered_by[topic][consumer_group]
        except KeyError:
            traffic = Traffic(is_retry=names.is_retry(topic))
            self.delivered_by.setdefault(topic, {})[consumer_group] = traffic
        if traffic.is_retry:
            redelivered = count
        traffic.messages += count
        traffic.size += size
        traffic.redelivered += redelivered
        self.redelivered += redelivered

    def forget_topic(self, topic: str) -> None:
        """Remove the series of a deleted topic. The totals of the broker stay."""
        self.stored_by.pop(topic, None)
        self.delivered_by.pop(topic, None)
        self._half_topics.discard(topic)
        self._remove("topic", topic)

    def forget_group(self, consumer_group: str) -> None:
        """Remove the series of a deleted group. The totals of the broker stay."""
        self.dead_lettered_by.pop(consumer_group, None)
        for groups in self.delivered_by.values():
            groups.pop(consumer_group, None)
        self._remove("consumer_group", consumer_group)

    def _remove(self, label: str, value: str) -> None:
        for metric in self._labelled[label]:
            metric.remove_by_labels({label: value})

    def _with_series(self, metric: M, labels: Collection[str]) -> M:
        """Remember the labels of a metric for `_remove`, and return the metric."""
        for label in self._labelled.keys() & labels:
            self._labelled[label].append(metric)
        return metric

    def subscriptions_differ(self, consumer_group: str) -> None:
        self._differing.labels(*self._node, consumer_group).inc()

    def dead_lettered(self, consumer_group: str, count: int) -> None:
        self.dead_letters += count
        self.dead_lettered_by[consumer_group] = self.dead_lettered_by.get(consumer_group, 0) + count

    def transaction_ended(self, topic: str, *, committed: bool) -> None:
        (self._commits if committed else self._rollbacks).labels(*self._node, topic).inc()

    def transaction_checked(self, topic: str) -> None:
        self._checks.labels(*self._node, topic).inc()

    def transaction_given_up(self, topic: str) -> None:
        self._given_up.labels(*self._node, topic).inc()

    def half_messages(self, by_topic: Mapping[str, int]) -> None:
        """Set the number of half messages with an open transaction, for each topic.

        Topics that `by_topic` does not contain get 0.
        """
        self._half_topics |= by_topic.keys()
        for topic in self._half_topics:
            self._half.labels(*self._node, topic).set(by_topic.get(topic, 0))

    def lite_topics_expired(self, parent: str, count: int, unsettled: Mapping[str, int]) -> None:
        """Count expired lite topics.

        `unsettled` maps each consumer group to the number of messages that it had not settled.
        """
        self._lite_topics.labels(*self._node, parent).inc(count)
        for consumer_group, messages in unsettled.items():
            self._lite_unsettled.labels(*self._node, parent, consumer_group).inc(messages)

    def corrupted(self) -> None:
        self.corrupted_records += 1
        self._corrupted.labels(*self._node).inc()

    def scrubbed(self, size: int) -> None:
        self._scrubbed.labels(*self._node).inc(size)

    def scrub_completed(self, now_ms: int) -> None:
        self.scrubbed_ms = now_ms
        self.set("scrub_completed_seconds", now_ms / 1_000)

    def damage(self, ranges: int, damaged_bytes: int, repaired: int) -> None:
        """Set the damage of the log, and count the records repaired since the last call."""
        self.set("damaged_log_ranges", ranges)
        self.set("damaged_log_bytes", damaged_bytes)
        self._repaired.labels(*self._node).inc(repaired)

    def set(self, name: str, value: float) -> None:
        """Set a gauge that has no labels of its own. `name` is its name without the prefix."""
        self._gauges[name].set(value)

    def expired(self, topic: str, consumer_group: str, messages: int) -> None:
        self._expired.labels(*self._node, topic, consumer_group).set(messages)

    def lag(self, topic: str, consumer_group: str, messages: int) -> None:
        retry = _flag(names.is_retry(topic))
        self._lag.labels(*self._node, topic, consumer_group, retry).set(messages)


class _TrafficCollector:
    """Collects the traffic of topics and groups for Prometheus.

    A scrape runs on another thread, so each dictionary is copied before it is read.
    """

    def __init__(self, metrics: BrokerMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[CounterMetricFamily]:
        by_topic = ("topic", "message_type", "is_system")
        stored = self._family("messages_in", "Messages stored for producers.", *by_topic)
        sizes = self._family("throughput_in", "Bytes of their bodies.", *by_topic)
        for topic, types in list(self._metrics.stored_by.items()):
            for message_type, traffic in list(types.items()):
                labels = self._labels(topic, message_type, _flag(names.is_system(topic)))
                stored.add_metric(labels, traffic.messages)
                sizes.add_metric(labels, traffic.size)
        yield from (stored, sizes)
        by_group = ("topic", "consumer_group", "is_retry", "is_system")
        delivered = self._family("messages_out", "Messages given to consumers.", *by_group)
        sizes = self._family("throughput_out", "Bytes of their records.", *by_group)
        for topic, groups in list(self._metrics.delivered_by.items()):
            for group, traffic in list(groups.items()):
                retry, system = names.is_retry(topic), names.is_system_group(group)
                labels = self._labels(topic, group, _flag(retry), _flag(system))
                delivered.add_metric(labels, traffic.messages)
                sizes.add_metric(labels, traffic.size)
        yield from (delivered, sizes)
        dead = self._family(
            "send_to_dlq_messages", "Messages dead-lettered.", "consumer_group", "is_system"
        )
        for group, count in list(self._metrics.dead_lettered_by.items()):
            dead.add_metric(self._labels(group, _flag(names.is_system_group(group))), count)
        yield dead

    def _family(self, name: str, text: str, *labels: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"rocketmq_{name}", text, labels=[*_NODE, *labels])

    def _labels(self, *values: str) -> list[str]:
        return [*self._metrics.labels.values(), *values]


def _flag(value: bool) -> str:
    return "true" if value else "false"


def memory_limit() -> int:
    """Return how many bytes of memory this process may use.

    This is the limit of its control group in a container, or the memory of the machine.
    """
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        given = _MEMORY_MAX.read_text(encoding="ascii").strip()
    except OSError:
        return limit
    return min(limit, int(given)) if given.isdecimal() else limit


def resident_memory() -> int:
    """Return how many bytes of memory this process uses, or 0 if that is unknown."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
