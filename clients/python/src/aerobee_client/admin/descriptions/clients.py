"""Connected clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from aerobee.broker.v1 import client_pb2

from aerobee_client.admin.descriptions.like import like


@dataclass(frozen=True, slots=True)
class ClientDescription:
    client_id: str
    address: str
    language: str
    version: str
    last_update_timestamp_ms: int
    producer_groups: tuple[str, ...]
    consumer_groups: tuple[str, ...]
    # Topic → expression.
    subscriptions: Mapping[str, str]
    broker_name: str

    @classmethod
    def of(cls, broker_name: str, info: client_pb2.ClientInfo) -> Self:
        return like(
            cls,
            info,
            consumer_groups=tuple(consumer.consumer_group for consumer in info.consumers),
            subscriptions={
                subscription.topic: subscription.expression
                for consumer in info.consumers
                for subscription in consumer.subscriptions
            },
            broker_name=broker_name,
        )
