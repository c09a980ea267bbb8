"""Read the route of a topic: its message queues, and the message types that it accepts.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from aerobee.namesrv.v1.namesrv_pb2 import QueueData, TopicRoute

from aerobee_wire import topics
from aerobee_wire.queues.group_queues import writable_counts
from aerobee_wire.route import READ
from aerobee_wire.status import Code, MqError

MESSAGE_TYPE_ATTRIBUTE = "message.type"

# Message types, by RocketMQ's names.
NORMAL, FIFO, DELAY = "NORMAL", "FIFO", "DELAY"
TRANSACTION, PRIORITY, LITE = "TRANSACTION", "PRIORITY", "LITE"
# Topics have these types, but messages do not. An UNSPECIFIED topic gets the type of its first
# message.
MIXED, UNSPECIFIED = "MIXED", "UNSPECIFIED"

_ACCEPTED = {
    **{message_type: (message_type,) for message_type in (NORMAL, FIFO, DELAY, TRANSACTION)},
    PRIORITY: (PRIORITY,),
    LITE: (LITE,),
    MIXED: (NORMAL, FIFO, DELAY, TRANSACTION),
    UNSPECIFIED: (NORMAL, FIFO, DELAY, TRANSACTION),
}


class MessageTypeConflict(MqError):
    """The error of a message whose type its topic does not accept."""


@dataclass(frozen=True, slots=True, order=True)
class BrokerQueue:
    """A message queue of a topic. Instances sort by broker name, then by queue id."""

    broker_name: str
    queue_id: int


def with_master(route: TopicRoute) -> Sequence[QueueData]:
    """Return the queue data of each broker that has a master."""
    masters = {broker.broker_name for broker in route.brokers if 0 in broker.addresses}
    return [data for data in route.queues if data.broker_name in masters]


def with_members(route: TopicRoute) -> Sequence[QueueData]:
    """Return the queue data of each broker with a master, or with replicas that elect a master."""
    members = {broker.broker_name for broker in route.brokers if broker.addresses}
    return [data for data in route.queues if data.broker_name in members]


def readable_brokers(route: TopicRoute) -> list[QueueData]:
    """Return the queue data of each readable broker, sorted by broker name."""
    found = [
        data for data in with_members(route) if data.permission & READ and data.read_queue_count > 0
    ]
    return sorted(found, key=lambda data: data.broker_name)


def writable_queues(route: TopicRoute) -> list[BrokerQueue]:
    """Return the queues that accept messages, sorted; empty if no broker accepts messages."""
    return [
        BrokerQueue(broker_name, queue_id)
        for broker_name, count in writable_counts(route).items()
        for queue_id in range(count)
    ]


def message_type(route: TopicRoute) -> str:
    """Return the message type of the topic.

    Return NORMAL if no broker declares a type, and UNSPECIFIED if brokers declare only this type.
    """
    declared = {data.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "") for data in route.queues} - {""}
    specified = sorted(declared - {UNSPECIFIED})
    return specified[0] if specified else UNSPECIFIED if declared else NORMAL


def untyped_brokers(route: TopicRoute) -> Sequence[str]:
    """Return the names of the brokers where the topic has no type yet, sorted."""
    return sorted(
        data.broker_name
        for data in with_master(route)
        if data.attributes.get(MESSAGE_TYPE_ATTRIBUTE) == UNSPECIFIED
    )


def accepted_types(route: TopicRoute) -> tuple[str, ...]:
    """Return the message types that the topic accepts."""
    return _ACCEPTED.get(message_type(route), (NORMAL,))


def check_type(message_type: str, accepted: Collection[str], topic: str) -> None:
    """Check that a topic accepts messages of this type.

    Retry and dead-letter topics accept every type. Raises MessageTypeConflict if the topic does not
    accept the type.
    """
    if message_type in accepted or topics.group_of(topic) is not None:
        return
    raise MessageTypeConflict(
        Code.MESSAGE_ILLEGAL,
        f"the message has the type {message_type}: topic {topic} accepts {' or '.join(accepted)}, "
        "so send it to another topic",
    )
