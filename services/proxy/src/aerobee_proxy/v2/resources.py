"""Convert names of topics and consumer groups between clients and brokers.

Brokers store a resource of namespace `ns` as `ns%name`. In the name of a retry or dead-letter
topic, the namespace follows the prefix. In responses to clients, the namespace is a separate field.
"""

from __future__ import annotations

from functools import lru_cache

from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, Resource

from aerobee_proxy.v2.status import Refused
from aerobee_wire import topics
from aerobee_wire.status import MqError

SEPARATOR = "%"
FURTHER_SYSTEM_TOPICS = frozenset({"CHECKPOINT_TOPIC"})


def stored_name(resource: Resource) -> str:
    """Return the name under which brokers store the resource, with its namespace."""
    space = resource.resource_namespace
    return _stored_name(resource.name, space) if space else resource.name


def _stored_name(given: str, space: str) -> str:
    prefix, name = _split_prefix(given)
    if not name or name.startswith(space + SEPARATOR):
        return given
    return f"{prefix}{space}{SEPARATOR}{name}"


def topic_name(topic: Resource) -> str:
    """Return the stored name of a topic.

    Raises Refused with the code ILLEGAL_TOPIC if the name is invalid, or belongs to a system topic.
    """
    return _topic_name(topic.name, topic.resource_namespace)


@lru_cache(maxsize=1_024)  # called by every RPC
def _topic_name(name: str, namespace: str) -> str:
    stored = stored_name(Resource(name=name, resource_namespace=namespace))
    try:
        topics.check_topic(stored)
    except MqError as error:
        raise Refused(Code.ILLEGAL_TOPIC, error.message) from None
    if len(stored) > topics.MAX_TOPIC_CHARACTERS:
        raise Refused(
            Code.ILLEGAL_TOPIC,
            f"topic {stored[:32]}… has over {topics.MAX_TOPIC_CHARACTERS} characters: shorten it",
        )
    if topics.is_system(name) or topics.is_system(stored) or name in FURTHER_SYSTEM_TOPICS:
        raise Refused(Code.ILLEGAL_TOPIC, f"{name} belongs to the system: use another topic")
    return stored


def group_name(group: Resource) -> str:
    """Return the stored name of a consumer group.

    Raises Refused with the code ILLEGAL_CONSUMER_GROUP if the name is invalid, or belongs to a
    system group.
    """
    return _group_name(group.name, group.resource_namespace)


@lru_cache(maxsize=1_024)
def _group_name(name: str, namespace: str) -> str:
    stored = stored_name(Resource(name=name, resource_namespace=namespace))
    try:
        topics.check_group(stored)
    except MqError as error:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, error.message) from None
    if topics.is_system_group(name) or topics.is_system_group(stored):
        raise Refused(
            Code.ILLEGAL_CONSUMER_GROUP, f"{name} belongs to the system: use another group"
        )
    return stored


def known_name(stored: str, namespace: str) -> tuple[str, str]:
    """Split a stored name into (namespace, name) for a client that uses this namespace."""
    if namespace:
        prefix, name = _split_prefix(stored)
        if name.startswith(namespace + SEPARATOR):
            return namespace, prefix + name[len(namespace) + len(SEPARATOR) :]
    return namespace, stored


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (topics.RETRY_PREFIX, topics.DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
