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
    prefix, name = _split_prefix(stored)
    if namespace and name.startswith(namespace + SEPARATOR):
        name = name[len(namespace) + len(SEPARATOR) :]
        return Resource(resource_namespace=namespace, name=prefix + name)
    return Resource(resource_namespace=namespace, name=stored)


def _split_prefix(name: str) -> tuple[str, str]:
    for prefix in (topics.RETRY_PREFIX, topics.DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
