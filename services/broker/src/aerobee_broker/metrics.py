"""Count what a broker does, under RocketMQ's names where it has one.

`declared_metrics` declares the metrics. Totals are kept beside them, for GetBrokerStatus and tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from aerobee_broker import declared_metrics as declared
from aerobee_chassis.metrics.series import Distribution, Labels, Metric, Registry, Series
from aerobee_wire import topics as names

_STATM = Path("/proc/self/statm")
_MEMORY_MAX = Path("/sys/fs/cgroup/memory.max")
NODE_TYPE = "broker"
# The store's kind and medium, which RocketMQ's metrics of storage and timers have as labels.
STORAGE = ("local", "disk")
# The metrics whose series belong to a topic or a group, and that are counted or set one by one.
_COUNTED = (
    declared.COMMIT_MESSAGES,
    declared.ROLLBACK_MESSAGES,
    declared.FINISH_MESSAGE_LATENCY,
    declared.TRANSACTION_CHECKS,
    declared.GIVEN_UP_HALF_MESSAGES,
    declared.SUBSCRIPTION_CONFLICTS,
    declared.LITE_TOPICS_EXPIRED,
    declared.LITE_UNSETTLED,
    declared.DELAY_MESSAGE_LATENCY,
    declared.TIMER_ENQUEUE_TOTAL,
    declared.TIMER_DEQUEUE_TOTAL,
    declared.POP_REVIVE_RETRIES,
    declared.CORRUPTED_RECORDS,
    declared.SCRUBBED_BYTES,
    declared.REPAIRED_RECORDS,
    declared.LATENESS,
    declared.TOPIC_CREATE_TIME,
    declared.GROUP_CREATE_TIME,
)


class Traffic:
    """Messages of one kind since the start of the process.

    Attributes:
        messages: The number of messages.
        size: Their bytes: of the bodies of stored messages, of the records of delivered ones.
        sizes: Of stored messages, the mean bytes of a body in each request.
        redelivered: The number of messages that were delivered to the group before.
        is_retry: Whether the messages are in a retry topic; then each is redelivered.
    """

    __slots__ = ("is_retry", "messages", "redelivered", "size", "sizes")

    def __init__(self, *, is_retry: bool = False) -> None:
        self.is_retry = is_retry
        self.messages = 0
        self.size = 0
        self.sizes = Distribution(declared.MESSAGE_SIZE.buckets)
        self.redelivered = 0


class BrokerMetrics:
    """The metrics of a broker. Exporters read them from `registry`."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.messages_in = 0
        self.bytes_in = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.redelivered = 0
        self.dead_letters = 0
        self.corrupted_records = 0
        self.scrubbed_ms = 0  # when the whole log was last checked, since the epoch; 0: not yet

        # Counting a message adds to plain numbers. `_traffic` exports them.
        self.stored_by: dict[str, dict[str, Traffic]] = {}  # topic → message type → traffic
        self.delivered_by: dict[str, dict[str, Traffic]] = {}  # topic → consumer group → traffic
        self._delivered_to: dict[str, set[str]] = {}  # consumer group → topics of `delivered_by`
        self.dead_lettered_by: dict[str, int] = {}  # consumer group → messages
        registry.register(self._traffic)
        self._counted = {metric: registry.series(metric) for metric in _COUNTED}
        self._gauges: dict[Metric, Series] = {}
        # The lag of groups in parents of lite topics, which is measured separately.
        self._lite_lags = Series(declared.CONSUMER_LAG_MESSAGES)
        self._lags = Series(declared.CONSUMER_LAG_MESSAGES)
        registry.register(self._all_lags)
        self._half_topics: set[str] = set()

    # ---- messages ----

    def stored(self, topic: str, count: int, size: int, message_type: str = "normal") -> None:
        """Count `count` messages from a producer; `size` is the bytes of their bodies."""
        self.messages_in += count
        self.bytes_in += size
        try:
            traffic = self.stored_by[topic][message_type]
        except KeyError:
            traffic = self.stored_by.setdefault(topic, {})[message_type] = Traffic()
        traffic.messages += count
        traffic.size += size
        traffic.sizes.observe(size / count)

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
            self._delivered_to.setdefault(consumer_group, set()).add(topic)
        if traffic.is_retry:
            redelivered = count
        traffic.messages += count
        traffic.size += size
        traffic.redelivered += redelivered
        self.redelivered += redelivered

    def dead_lettered(self, consumer_group: str, count: int) -> None:
        self.dead_letters += count
        self.dead_lettered_by[consumer_group] = self.dead_lettered_by.get(consumer_group, 0) + count

    def timer_accepted(self, topic: str, delay_ms: int) -> None:
        """Count a message that waits for its delivery time, `delay_ms` from now on."""
        self._counted[declared.TIMER_ENQUEUE_TOTAL].add(1, topic, *STORAGE)
        latency = self._counted[declared.DELAY_MESSAGE_LATENCY]
        latency.observe(delay_ms / 1_000, topic, *STORAGE)

    def timer_delivered(self, topics: Iterable[str]) -> None:
        """Count messages whose delivery time came, by the topic of each."""
        for topic in topics:
            self._counted[declared.TIMER_DEQUEUE_TOTAL].add(1, topic, *STORAGE)

    def delivered_late(self, seconds: float) -> None:
        """Count a delayed message that was delivered `seconds` after its time."""
        self._counted[declared.LATENESS].observe(seconds)

    def lease_expired(self, consumer_group: str, topic: str) -> None:
        """Count a message whose lease expired and that is visible again."""
        self._counted[declared.POP_REVIVE_RETRIES].add(1, consumer_group, topic, "PUT_OK")

    # ---- transactions ----

    def transaction_ended(self, topic: str, *, committed: bool, age_ms: int) -> None:
        """Count a transaction that has ended, `age_ms` after its half message was stored."""
        metric = declared.COMMIT_MESSAGES if committed else declared.ROLLBACK_MESSAGES
        self._counted[metric].add(1, topic)
        if committed:
            self._counted[declared.FINISH_MESSAGE_LATENCY].observe(age_ms, topic)

    def transaction_checked(self, topic: str) -> None:
        self._counted[declared.TRANSACTION_CHECKS].add(1, topic)

    def transaction_given_up(self, topic: str) -> None:
        self._counted[declared.GIVEN_UP_HALF_MESSAGES].add(1, topic)

    def half_messages(self, by_topic: Mapping[str, int]) -> None:
        """Set the number of half messages with an open transaction, for each topic.

        Topics that `by_topic` does not contain get 0.
        """
        self._half_topics |= by_topic.keys()
        self.replace(
            declared.HALF_MESSAGES,
            {(topic,): by_topic.get(topic, 0) for topic in self._half_topics},
        )

    # ---- topics and groups ----

    def created(self, metric: Metric, duration_ms: float, *labels: str) -> None:
        """Count the time to create a topic or a group."""
        self._counted[metric].observe(duration_ms, *labels)

    def subscriptions_differ(self, consumer_group: str) -> None:
        self._counted[declared.SUBSCRIPTION_CONFLICTS].add(1, consumer_group)

    def lite_topics_expired(self, parent: str, count: int, unsettled: Mapping[str, int]) -> None:
        """Count expired lite topics.

        `unsettled` maps each consumer group to the number of messages that it had not settled.
        """
        self._counted[declared.LITE_TOPICS_EXPIRED].add(count, parent)
        for consumer_group, messages in unsettled.items():
            self._counted[declared.LITE_UNSETTLED].add(messages, parent, consumer_group)

    def forget_topic(self, topic: str) -> None:
        """Remove the series of a deleted topic. The totals of the broker stay."""
        self.stored_by.pop(topic, None)
        for consumer_group in self.delivered_by.pop(topic, ()):
            self._delivered_to[consumer_group].discard(topic)
        self._half_topics.discard(topic)
        self._forget("topic", topic)

    def forget_group(self, consumer_group: str) -> None:
        """Remove the series of a deleted group. The totals of the broker stay."""
        self.dead_lettered_by.pop(consumer_group, None)
        for topic in self._delivered_to.pop(consumer_group, ()):
            del self.delivered_by[topic][consumer_group]
        self._forget("consumer_group", consumer_group)

    def _forget(self, label: str, value: str) -> None:
        for series in self._counted.values():
            if label in series.metric.labels:
                series.remove(label, value)
        for series in (*self._gauges.values(), self._lags, self._lite_lags):
            if label in series.metric.labels:
                series.hide(label, value)  # the next measurement replaces them

    # ---- the store ----

    def corrupted(self) -> None:
        self.corrupted_records += 1
        self._counted[declared.CORRUPTED_RECORDS].add(1)

    def scrubbed(self, size: int) -> None:
        self._counted[declared.SCRUBBED_BYTES].add(size)

    def scrub_completed(self, now_ms: int) -> None:
        self.scrubbed_ms = now_ms
        self.set(declared.SCRUB_COMPLETED, now_ms / 1_000)

    def damage(self, ranges: int, damaged_bytes: int, repaired: int) -> None:
        """Set the damage of the log, and count the records repaired since the last call."""
        self.set(declared.DAMAGED_RANGES, ranges)
        self.set(declared.DAMAGED_BYTES, damaged_bytes)
        self._counted[declared.REPAIRED_RECORDS].add(repaired)

    # ---- gauges ----

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set one series of a gauge. It is missing until then."""
        self._gauge(metric).set(value, *labels)

    def replace(self, metric: Metric, values: Mapping[Labels, float]) -> None:
        """Replace all series of a gauge, so that those that `values` lacks disappear."""
        self._gauge(metric).replace(values)

    def _gauge(self, metric: Metric) -> Series:
        found = self._gauges.get(metric)
        if found is None:
            found = self._gauges[metric] = self.registry.series(metric)
        return found

    def lags(self, values: Mapping[Labels, float]) -> None:
        """Replace the lag of each group in each topic, except parents of lite topics."""
        self._lags.replace(values)

    def lite_lags(self, by_group: Mapping[tuple[str, str], int]) -> None:
        """Replace the lags in parents of lite topics: (group, parent) → lag."""
        self._lite_lags.replace({lag_labels(*key): lag for key, lag in by_group.items()})

    def _all_lags(self) -> Iterator[Series]:
        lags = [*self._lags.items(), *self._lite_lags.items()]
        yield Series(declared.CONSUMER_LAG_MESSAGES, dict(lags))

    # ---- traffic ----

    def _traffic(self) -> Iterator[Series]:
        """Yield the traffic. Another thread reads it, so each dictionary is copied first."""
        stored, sizes, bodies = (
            Series(metric)
            for metric in (declared.MESSAGES_IN, declared.THROUGHPUT_IN, declared.MESSAGE_SIZE)
        )
        for topic, types in list(self.stored_by.items()):
            system = flag(names.is_system(topic))
            for message_type, traffic in list(types.items()):
                labels: Labels = (topic, message_type, system)
                stored.values[labels] = traffic.messages
                sizes.values[labels] = traffic.size
                bodies.values[labels] = traffic.sizes
        yield from (stored, sizes, bodies)
        delivered, sizes = Series(declared.MESSAGES_OUT), Series(declared.THROUGHPUT_OUT)
        for topic, groups in list(self.delivered_by.items()):
            for group, traffic in list(groups.items()):
                labels = (topic, group, flag(traffic.is_retry), flag(names.is_system_group(group)))
                delivered.values[labels] = traffic.messages
                sizes.values[labels] = traffic.size
        yield from (delivered, sizes)
        dead = Series(declared.SEND_TO_DLQ)
        for group, count in list(self.dead_lettered_by.items()):
            dead.values[group, flag(names.is_system_group(group))] = count
        yield dead


def lag_labels(consumer_group: str, topic: str) -> Labels:
    """Return the labels of RocketMQ's metrics of a group's lag in a topic."""
    system = names.is_system(topic) or names.is_system_group(consumer_group)
    return consumer_group, topic, flag(names.is_retry(topic)), flag(system)


def flag(value: bool) -> str:
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
