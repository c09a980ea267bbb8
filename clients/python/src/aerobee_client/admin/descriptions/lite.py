"""Describe lite topics, and the clients that subscribe to them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

from aerobee.broker.v1 import lite_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteTopicDescription:
    """The part of a lite topic in one queue of its parent.

    `messages` counts stored messages. `lag` counts those that the group has not settled.
    `oldest_timestamp_ms` is the store time of the first unsettled message, or of the first message
    if all are settled; 0 if it cannot be read. `subscribers` counts the clients of the group, or of
    all groups if no group is given.
    """

    lite_topic: str
    broker_name: str
    queue_id: int
    messages: int
    lag: int
    oldest_timestamp_ms: int
    newest_timestamp_ms: int
    subscribers: int

    @classmethod
    def of(cls, broker_name: str, info: lite_pb2.LiteTopicInfo) -> Self:
        return cls(
            lite_topic=info.lite_topic,
            broker_name=broker_name,
            queue_id=info.queue_id,
            messages=info.messages,
            lag=info.lag,
            oldest_timestamp_ms=info.oldest_timestamp_ms,
            newest_timestamp_ms=info.newest_timestamp_ms,
            subscribers=info.subscribers,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteTopics:
    """Some lite topics of a parent, and the number of all of them."""

    topics: tuple[LiteTopicDescription, ...]
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LiteClientDescription:
    """A client that subscribes to lite topics of a parent, in one group.

    `lite_topics` counts its subscriptions; with `wildcard` it is 0, and the client gets all lite
    topics. `ready` counts lite topics with a message for it. `silent_ms` is the time since its last
    contact with a broker. After 180,000 ms the client is dropped.
    """

    consumer_group: str
    client_id: str
    brokers: tuple[str, ...]
    lite_topics: int
    wildcard: bool
    ready: int
    silent_ms: int

    @classmethod
    def of(cls, broker_name: str, info: lite_pb2.LiteClientInfo) -> Self:
        return cls(
            consumer_group=info.consumer_group,
            client_id=info.client_id,
            brokers=(broker_name,),
            lite_topics=info.lite_topics,
            wildcard=info.wildcard,
            ready=info.ready,
            silent_ms=info.silent_ms,
        )

    def merged(self, other: LiteClientDescription) -> LiteClientDescription:
        """Merge two brokers' descriptions. Each broker knows all subscriptions."""
        return replace(
            self,
            brokers=self.brokers + other.brokers,
            lite_topics=max(self.lite_topics, other.lite_topics),
            ready=self.ready + other.ready,
            silent_ms=min(self.silent_ms, other.silent_ms),
        )


def merged(clients: Iterable[LiteClientDescription]) -> list[LiteClientDescription]:
    """Return each client once, sorted by group and id."""
    found: dict[tuple[str, str], LiteClientDescription] = {}
    for client in clients:
        key = client.consumer_group, client.client_id
        known = found.get(key)
        found[key] = known.merged(client) if known else client
    return [found[key] for key in sorted(found)]
