"""Topics and consumer groups as clients name them, and as they are stored: with their namespace.

A resource of namespace `ns` is stored as `ns%name`; of a retry or dead-letter topic the namespace
stands behind the prefix. What goes back to a client has its own namespace apart again.
"""

from __future__ import annotations

from apache.rocketmq.v2.definition_pb2 import Resource

from aerobee_wire import topics

SEPARATOR = "%"


def stored_name(resource: Resource) -> str:
    """The name under which brokers know the resource."""
    prefix, name = _split_prefix(resource.name)
    space = resource.resource_namespace
    if not space or not name or name.startswith(space + SEPARATOR):
        return resource.name
    return f"{prefix}{space}{SEPARATOR}{name}"


def resource_of(stored: str, namespace: str) -> Resource:
    """The resource that a client with this namespace knows a stored name as."""
    space, name = known_name(stored, namespace)
    return Resource(resource_namespace=space, name=name)


def known_name(stored: str, namespace: str) -> tuple[str, str]:
    """(namespace, name) of `resource_of`."""
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
