"""Keep the topicQueueTable: a map from topic to broker name to QueueData.

This module does not know clusters or heartbeats.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from aerobee_namesrv.routing.rows import FLAG_UNIT, FLAG_UNIT_SUBSCRIPTION, QueueData
from aerobee_wire.route import READ, WRITE


class TopicQueueTable:
    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def queues_of(self, topic: str) -> Mapping[str, QueueData]:
        """Return a map from broker name to queues, which is empty for an unknown topic."""
        return self._topics.get(topic, {})

    def is_writable(self, broker_name: str) -> bool:
        """Return whether a broker has a topic that accepts messages."""
        return any(
            broker_name in brokers and brokers[broker_name].permission & WRITE
            for brokers in self._topics.values()
        )

    # ---- from registrations ----

    def update(
        self,
        topics: Mapping[str, QueueData],
        *,
        overwrite: bool,
        read_only: bool = False,
    ) -> None:
        """Store topics of a broker.

        Without `overwrite`, keep the topics that are stored for the broker already. `read_only`
        removes the write permission from the stored topics.
        """
        for topic, queue in topics.items():
            brokers = self._topics.setdefault(topic, {})
            if overwrite or queue.broker_name not in brokers:
                kept = queue.permission & ~WRITE if read_only else queue.permission
                brokers[queue.broker_name] = replace(queue, permission=kept)

    def keep_only(self, broker_name: str, topics: Collection[str]) -> None:
        """Remove the queues of a broker from all topics except `topics`."""
        self._drop(lambda topic, queue: queue.broker_name == broker_name and topic not in topics)

    def drop_brokers(self, broker_names: Collection[str]) -> dict[str, set[str]]:
        """Remove the queues of brokers from every topic, and the topics that have no queues left.

        Return a map from broker name to its topics.
        """
        dropped: dict[str, set[str]] = {name: set() for name in broker_names}
        for topic, brokers in self._topics.items():
            for name in brokers.keys() & dropped.keys():
                dropped[name].add(topic)
        self._drop(lambda _, queue: queue.broker_name in dropped)
        return dropped

    # ---- edits ----

    def wipe_write(self, broker_names: Collection[str]) -> int:
        """Remove the write permission from all topics of these brokers; return how many changed."""
        return self._set_permission(broker_names, lambda old: old & ~WRITE)

    def add_write(self, broker_names: Collection[str]) -> int:
        """Make every topic of these brokers readable and writable; return how many changed."""
        return self._set_permission(broker_names, lambda _: READ | WRITE)

    def put(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Store queues without changes, beside the queues of other brokers."""
        for queue in queues:
            self._topics.setdefault(topic, {})[queue.broker_name] = queue

    def delete(self, topic: str, broker_names: Collection[str] | None = None) -> None:
        """Delete a topic, or only its queues on some brokers."""
        kept = {
            name: queue
            for name, queue in self._topics.pop(topic, {}).items()
            if broker_names is not None and name not in broker_names
        }
        if kept:
            self._topics[topic] = kept

    # ---- lists, sorted ----

    def names(self) -> list[str]:
        return sorted(self._topics)

    def names_on(self, broker_names: Collection[str]) -> list[str]:
        return self._where(lambda queue: queue.broker_name in broker_names)

    def unit_names(self) -> list[str]:
        return self._where(lambda queue: bool(queue.topic_sys_flag & FLAG_UNIT))

    def unit_subscription_names(self, *, include_unit: bool) -> list[str]:
        """Return the topics with a unit subscription.

        Without `include_unit`, leave out the topics that belong to a unit.
        """
        refused = 0 if include_unit else FLAG_UNIT
        return self._where(
            lambda queue: bool(
                queue.topic_sys_flag & FLAG_UNIT_SUBSCRIPTION and not queue.topic_sys_flag & refused
            )
        )

    def _where(self, wanted: Callable[[QueueData], bool]) -> list[str]:
        return sorted(
            topic for topic, brokers in self._topics.items() if any(map(wanted, brokers.values()))
        )

    def _set_permission(
        self, broker_names: Collection[str], permission_of: Callable[[int], int]
    ) -> int:
        changed = 0
        for brokers in self._topics.values():
            for name in brokers.keys() & broker_names:
                permission = permission_of(brokers[name].permission)
                changed += permission != brokers[name].permission
                brokers[name] = replace(brokers[name], permission=permission)
        return changed

    def _drop(self, unwanted: Callable[[str, QueueData], bool]) -> None:
        for topic, brokers in list(self._topics.items()):
            for name in [n for n, queue in brokers.items() if unwanted(topic, queue)]:
                del brokers[name]
            if not brokers:
                del self._topics[topic]
