"""Define the names of lite topics, and the attributes of their parents and groups.

This module does no I/O.

A lite topic is a named sequence of messages under a topic of the type LITE, its parent. Its first
message creates it. A consumer group is bound to one parent. The names of attributes are RocketMQ's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from aerobee_wire.properties import whole_number
from aerobee_wire.status import MqError, invalid_parameter

LITE = "LITE"  # the message type of a parent
MAX_NAME_BYTES = 64
DEFAULT_QUOTA = 2_000
MAX_TTL_MINUTES = 43_200  # 30 days
NO_TTL = -1

# An attribute of a parent.
TTL_ATTRIBUTE = "lite.topic.expiration"
# Attributes of a group.
BIND_ATTRIBUTE = "lite.bind.topic"
MODEL_ATTRIBUTE = "lite.sub.model"
QUOTA_ATTRIBUTE = "lite.sub.client.quota"
EVENTS_ATTRIBUTE = "lite.sub.client.max.event.cnt"  # accepted, without effect
WILDCARD_ATTRIBUTE = "lite.sub.wildcard"
RESET_EVICTED_ATTRIBUTE = "lite.sub.reset.offset.exclusive"
RESET_UNSUBSCRIBED_ATTRIBUTE = "lite.sub.reset.offset.unsubscribe"
GROUP_ATTRIBUTES = frozenset(
    {
        BIND_ATTRIBUTE,
        MODEL_ATTRIBUTE,
        QUOTA_ATTRIBUTE,
        EVENTS_ATTRIBUTE,
        WILDCARD_ATTRIBUTE,
        RESET_EVICTED_ATTRIBUTE,
        RESET_UNSUBSCRIBED_ATTRIBUTE,
    }
)

Model = Literal["Shared", "Exclusive"]

_LEGAL = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_PREFIX = "%LMQ%$"
_SEPARATOR = "$"
_BOOLEANS = ("true", "false")


class LiteGroup(NamedTuple):
    """The lite settings of a group that is bound to a parent.

    - `quota` is the number of lite topics to which one client may subscribe; it is negative for any
      number.
    - `wildcard` is True if every client gets all lite topics of the parent.
    - `resets_evicted` is True if the group starts again from the beginning in a lite topic that a
      client lost to another client.
    - `resets_unsubscribed` is True if the group starts again from the beginning in a lite topic
      from which a client unsubscribed.
    """

    parent: str
    model: Model = "Shared"
    quota: int = DEFAULT_QUOTA
    wildcard: bool = False
    resets_evicted: bool = False
    resets_unsubscribed: bool = False

    @property
    def exclusive(self) -> bool:
        return self.model == "Exclusive"


class LiteTopic(NamedTuple):
    parent: str
    name: str


def is_legal_name(name: str) -> bool:
    return len(name) <= MAX_NAME_BYTES and _LEGAL.fullmatch(name) is not None


def check_name(name: str) -> None:
    """Check the name of a lite topic. Raises MqError with the code INVALID_PARAMETER."""
    if not is_legal_name(name):
        raise invalid_parameter(
            f"the lite topic {name[:MAX_NAME_BYTES]!r} is illegal: it has 1 to {MAX_NAME_BYTES} "
            "letters, digits, _ and -",
            about="lite_topic",
        )


def lease_topic_of(parent: str, name: str) -> str:
    """Return the topic name that the leases of a lite topic use.

    It is RocketMQ's name of a light queue.
    """
    return f"{_PREFIX}{parent}{_SEPARATOR}{name}"


def is_line(topic: str) -> bool:
    return topic.startswith(_PREFIX)


def lite_topic_of(line: str) -> LiteTopic | None:
    """Return the lite topic of a name that `lease_topic_of` made, or None for another name."""
    if not line.startswith(_PREFIX):
        return None
    parent, separator, name = line[len(_PREFIX) :].rpartition(_SEPARATOR)
    return LiteTopic(parent, name) if separator and parent and name else None


def ttl_minutes(attributes: Mapping[str, str]) -> int | None:
    """Return for how many minutes after its last message a lite topic of this parent exists.

    Return None for no limit. Raises MqError with the code INVALID_PARAMETER.
    """
    value = attributes.get(TTL_ATTRIBUTE)
    if value is None:
        return None
    minutes = whole_number(value)
    if minutes is None or not NO_TTL <= minutes <= MAX_TTL_MINUTES:
        raise _refused(TTL_ATTRIBUTE, value, f"{NO_TTL} (for ever) to {MAX_TTL_MINUTES} minutes")
    return minutes if minutes > 0 else None


def group_of(attributes: Mapping[str, str]) -> LiteGroup | None:
    """Return the lite settings of a group, or None if it is not bound to a parent.

    Raises MqError with the code INVALID_PARAMETER for an invalid attribute, and for lite attributes
    of a group that is not bound.
    """
    parent = attributes.get(BIND_ATTRIBUTE, "")
    if not parent:
        for name in GROUP_ATTRIBUTES & attributes.keys():
            raise _refused(name, attributes[name], f"set together with {BIND_ATTRIBUTE}")
        return None
    quota = _number(attributes, QUOTA_ATTRIBUTE, DEFAULT_QUOTA, NO_TTL)
    _number(attributes, EVENTS_ATTRIBUTE, 400, 10)
    model = attributes.get(MODEL_ATTRIBUTE, "Shared")
    if model not in ("Shared", "Exclusive"):
        raise _refused(MODEL_ATTRIBUTE, model, "Shared or Exclusive")
    return LiteGroup(
        parent,
        "Exclusive" if model == "Exclusive" else "Shared",
        quota,
        # Any value means true, as in RocketMQ.
        WILDCARD_ATTRIBUTE in attributes,
        _boolean(attributes, RESET_EVICTED_ATTRIBUTE),
        _boolean(attributes, RESET_UNSUBSCRIBED_ATTRIBUTE),
    )


def _number(attributes: Mapping[str, str], name: str, default: int, lowest: int) -> int:
    value = attributes.get(name)
    if value is None:
        return default
    number = whole_number(value)
    if number is None or number < lowest:
        raise _refused(name, value, f"a number from {lowest} on")
    return number


def _boolean(attributes: Mapping[str, str], name: str) -> bool:
    value = attributes.get(name, "false")
    if value not in _BOOLEANS:
        raise _refused(name, value, "true or false")
    return value == "true"


def _refused(name: str, value: str, allowed: str) -> MqError:
    return invalid_parameter(f"attribute {name}={value} is illegal: it is {allowed}", about=name)
