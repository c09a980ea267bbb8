"""Export the metrics of a broker, under RocketMQ's names.

Totals are kept beside the Prometheus counters, for GetBrokerStatus and tests.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from aerobee_wire import topics as names

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


class BrokerMetrics:
    def __init__(self, registry: CollectorRegistry, *, cluster: str, node_id: str) -> None:
        self.registry = registry
        self._node = (cluster, NODE_TYPE, node_id)
        self.labels = dict(zip(_NODE, self._node, strict=True))  # labels of every metric
        self.messages_in = 0
        self.messages_out = 0
        self.dead_letters = 0
        self.corrupted_records = 0
        self.scrubbed_ms = 0  # when the whole log was last checked, since the epoch; 0: not yet

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"rocketmq_{name}", text, [*_NODE, *labels], registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"rocketmq_{name}", text, [*_NODE, *labels], registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"rocketmq_{name}", text, [*_NODE], registry=registry, buckets=buckets)

        by_topic = ("topic", "message_type", "is_system")
        by_group = ("topic", "consumer_group", "is_retry", "is_system")
        self._in = counter("messages_in", "Messages stored for producers.", *by_topic)
        self._bytes_in = counter("throughput_in", "Bytes of their bodies.", *by_topic)
        self._out = counter("messages_out", "Messages given to consumers.", *by_group)
        self._bytes_out = counter("throughput_out", "Bytes of their records.", *by_group)
        self._dlq = counter(
            "send_to_dlq_messages", "Messages dead-lettered.", "consumer_group", "is_system"
        )
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
        # Cached for each topic and group, because finding a counter by its labels takes 3 µs.
        self._stored: dict[tuple[str, str], tuple[Counter, Counter]] = {}
        self._delivered: dict[tuple[str, str], tuple[Counter, Counter]] = {}
        self._mean_size = self._size.labels(*self._node)
        self.delay_latency = histogram(
            "delay_message_latency", "Seconds a delayed message came late.", _DELAY_SECONDS
        ).labels(*self._node)
        self._gauges = {
            name: gauge(name, text).labels(*self._node) for name, text in _GAUGES.items()
        }
        self._lag = gauge(
            "consumer_lag_messages", "Messages behind.", "topic", "consumer_group", "is_retry"
        )

    def stored(self, topic: str, count: int, size: int, message_type: str = "NORMAL") -> None:
        """Count `count` messages from a producer; `size` is the bytes of their bodies."""
        self.messages_in += count
        messages, sizes = self._stored.get((topic, message_type)) or self._stored_counters(
            topic, message_type
        )
        messages.inc(count)
        sizes.inc(size)
        self._mean_size.observe(size / count)

    def delivered(self, topic: str, consumer_group: str, count: int, size: int) -> None:
        """Count `count` messages to a consumer; `size` is the bytes of their records."""
        self.messages_out += count
        messages, sizes = self._delivered.get((topic, consumer_group)) or self._delivered_counters(
            topic, consumer_group
        )
        messages.inc(count)
        sizes.inc(size)

    def _stored_counters(self, topic: str, message_type: str) -> tuple[Counter, Counter]:
        labels = (*self._node, topic, message_type, _flag(names.is_system(topic)))
        found = self._in.labels(*labels), self._bytes_in.labels(*labels)
        self._stored[topic, message_type] = found
        return found

    def _delivered_counters(self, topic: str, consumer_group: str) -> tuple[Counter, Counter]:
        retry, system = names.is_retry(topic), names.is_system_group(consumer_group)
        labels = (*self._node, topic, consumer_group, _flag(retry), _flag(system))
        found = self._out.labels(*labels), self._bytes_out.labels(*labels)
        self._delivered[topic, consumer_group] = found
        return found

    def subscriptions_differ(self, consumer_group: str) -> None:
        self._differing.labels(*self._node, consumer_group).inc()

    def dead_lettered(self, consumer_group: str, count: int) -> None:
        self.dead_letters += count
        system = _flag(names.is_system_group(consumer_group))
        self._dlq.labels(*self._node, consumer_group, system).inc(count)

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

    def lag(self, topic: str, consumer_group: str, messages: int) -> None:
        retry = _flag(names.is_retry(topic))
        self._lag.labels(*self._node, topic, consumer_group, retry).set(messages)


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
