"""Describe the results of creating or changing topics and groups, including refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ATTRIBUTES = "attributes"
# The defaults of attributes that a topic does not have.
_DEFAULT_ATTRIBUTES = {"message.type": "NORMAL"}


@dataclass(frozen=True, slots=True)
class Created:
    """A topic or group on one broker. `created`: False if it existed already."""

    broker_name: str
    address: str
    created: bool
    # Name servers that get the topic with the next registration of the broker.
    unreachable_namesrvs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """A setting of a topic or group that differs.

    An update changes it on a broker, or a creation found it different there. In the latter case,
    `after` is the requested value. None: the attribute does not exist.
    """

    name: str
    broker_name: str
    # A field of TopicOnBroker or GroupDescription, or "attributes.NAME".
    setting: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class UnreadableQueue:
    """A queue that loses its readers.

    If `messages` is 0, it is empty, but its future messages would be unreadable.
    """

    name: str
    broker_name: str
    queue_id: int
    messages: int


@dataclass(frozen=True, slots=True)
class Update:
    """The changes of an update, or with `dry_run` the changes that it would make.

    Empty if all settings were already so.
    """

    changes: tuple[Change, ...]
    unreadable: tuple[UnreadableQueue, ...] = ()


def differences(
    name: str, broker_name: str, before: DataclassInstance, after: DataclassInstance
) -> list[Change]:
    """Return the settings in which two descriptions of a topic or group differ.

    Both descriptions are of the same broker.
    """
    found = []
    for setting in [each.name for each in fields(before)]:
        old, new = getattr(before, setting), getattr(after, setting)
        if setting == ATTRIBUTES:
            found += [
                Change(name, broker_name, f"{ATTRIBUTES}.{key}", was, will_be)
                for key in sorted({*old, *new})
                if (was := _attribute(old, key)) != (will_be := _attribute(new, key))
            ]
        elif old != new:
            found.append(Change(name, broker_name, setting, _plain(old), _plain(new)))
    return found


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _attribute(attributes: Mapping[str, str], key: str) -> str | None:
    return attributes.get(key, _DEFAULT_ATTRIBUTES.get(key))


class AlreadyExists(MqError):
    """A topic or group exists with other settings. Nothing was changed.

    Attributes:
        differences: The settings that differ, with their broker.
    """

    def __init__(self, code: Code, kind: str, name: str, differences: Sequence[Change]) -> None:
        listed = ", ".join(
            f"on {change.broker_name} {change.setting} is {change.before}, not {change.after}"
            for change in differences
        )
        super().__init__(
            code,
            f"{kind} {name} exists with other settings, and nothing was changed: {listed}; "
            f"use it as it is, or change it: aerobee {kind} update {name}",
        )
        self.differences = tuple(differences)
