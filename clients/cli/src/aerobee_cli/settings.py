"""Parse settings of topics and groups from options of a command or entries of a YAML file.

A file for `--from` has a list `topics`, a list `groups`, or both. The keys of an entry are the
names of the options:

    topics:
      - topic: orders
        queues: 8
        type: fifo
    groups:
      - group: billing
        max_attempts: 5
        retry_delays: 1s,5s,30s

In place of such a file, the output of `topic list --json` or `group list --json` is accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from aerobee_cli.manifest import PERMISSIONS, entries_of_listing
from aerobee_cli.options import BadOption, pairs_of
from aerobee_cli.times import parse_duration
from aerobee_wire.consume_order import ConsumeOrder
from aerobee_wire.queues import lite
from aerobee_wire.retry_policy import ExponentialRetryPolicy

# Keyword arguments of AdminClient's create_topic and update_topic, or create_group and
# update_group.
Arguments: TypeAlias = dict[str, Any]

NEVER = "never"  # as a TTL


class MessageType(StrEnum):
    NORMAL = "normal"
    FIFO = "fifo"
    DELAY = "delay"
    TRANSACTION = "transaction"
    PRIORITY = "priority"
    LITE = "lite"
    MIXED = "mixed"


class Permission(StrEnum):
    R = "r"
    W = "w"
    RW = "rw"


class Order(StrEnum):
    AUTO = "auto"
    ON = "on"
    OFF = "off"


class LiteModel(StrEnum):
    SHARED = "shared"
    EXCLUSIVE = "exclusive"


# ---- settings ----


def topic_arguments(settings: Mapping[str, Any]) -> Arguments:
    """Convert the settings of a topic to arguments of `create_topic` or `update_topic`.

    The settings are `queues`, `read_queues`, `write_queues`, `permission`, `type` and `attributes`.
    Raises BadOption if one is unknown or invalid.
    """
    return _arguments(settings, _TOPIC)


def group_arguments(settings: Mapping[str, Any]) -> Arguments:
    """Convert the settings of a group to arguments of `create_group` or `update_group`.

    The settings are `max_attempts`, `retry_delays`, `retry`, `order`, `consume`, `consume_from_min`
    and `attributes`. Raises BadOption if one is unknown or invalid.
    """
    arguments = _arguments(settings, _GROUP)
    if arguments.keys() >= {"retry_delays", "exponential_retry"}:
        raise BadOption("retry and retry_delays exclude each other")
    return arguments


def _arguments(settings: Mapping[str, Any], known: Mapping[str, Setting]) -> Arguments:
    arguments: Arguments = {}
    for name, value in settings.items():
        if name not in known:
            raise BadOption(f"{name}: there is no such setting; known are {', '.join(known)}")
        try:
            arguments |= known[name](value)
        except ValueError as error:
            raise BadOption(f"{name} {value!r}: {error}") from None
    return arguments


# Converts the text of a setting to arguments. Raises ValueError.
Setting: TypeAlias = Callable[[Any], Arguments]


def _count(argument: str) -> Setting:
    def read(value: Any) -> Arguments:
        if not str(value).isdecimal() or not int(value):
            raise ValueError("give a number from 1 on")
        return {argument: int(value)}

    return read


def _permission(value: str) -> Arguments:
    bits = PERMISSIONS.get(value)
    if bits is None:
        raise ValueError("give r, w or rw")
    return {"permission": bits}


def _type(value: str) -> Arguments:
    kind = MessageType(value.lower())
    return {"message_type": kind.name, "order": kind is MessageType.FIFO}


def _order(value: str) -> Arguments:
    return {"order": ConsumeOrder[Order(value.lower()).name]}


def _switch(argument: str) -> Setting:
    def read(value: Any) -> Arguments:
        if str(value).lower() not in ("true", "false"):
            raise ValueError("give true or false")
        return {argument: str(value).lower() == "true"}

    return read


def _attributes(value: Any) -> Arguments:
    if not isinstance(value, Mapping):
        raise ValueError("give names with values")
    return {"attributes": {str(name): str(each) for name, each in value.items()}}


def retry_delays(value: str | Sequence[str]) -> list[timedelta]:
    """Parse retry delays from text like "1s,5s", or from a list. Raises ValueError."""
    if not value:
        return []
    parts = value.split(",") if isinstance(value, str) else value
    return [parse_duration(str(part)) for part in parts]


def retry_policy(text: str) -> ExponentialRetryPolicy:
    """Parse text like "exponential:initial=5s,max=2h,multiplier=2". Raises ValueError."""
    kind, _, listed = text.partition(":")
    pairs = [part.partition("=")[::2] for part in listed.split(",")] if listed else []
    given = dict(pairs)
    if len(given) < len(pairs):
        raise ValueError("give initial, max and multiplier once each")
    if kind != "exponential" or given.keys() - {"initial", "max", "multiplier"}:
        raise ValueError("write it like exponential:initial=5s,max=2h,multiplier=2")
    default = ExponentialRetryPolicy()
    return ExponentialRetryPolicy(
        _milliseconds(given["initial"]) if "initial" in given else default.initial_ms,
        _milliseconds(given["max"]) if "max" in given else default.max_ms,
        int(given.get("multiplier", default.multiplier)),
    )


def _milliseconds(text: str) -> int:
    return round(parse_duration(text) / timedelta(milliseconds=1))


_TOPIC: Mapping[str, Setting] = {
    "queues": _count("queues"),
    "read_queues": _count("read_queues"),
    "write_queues": _count("write_queues"),
    "permission": _permission,
    "type": _type,
    "attributes": _attributes,
}
_GROUP: Mapping[str, Setting] = {
    "max_attempts": _count("max_attempts"),
    "retry_delays": lambda value: {"retry_delays": retry_delays(value)},
    "retry": lambda value: {"exponential_retry": retry_policy(value)},
    "order": _order,
    "consume": _switch("consume_enable"),
    "consume_from_min": _switch("consume_from_min_enable"),
    "attributes": _attributes,
}


_READERS = {"topic": topic_arguments, "group": group_arguments}


def attributes_of(options: Sequence[str] | None) -> dict[str, str] | None:
    """Parse options "NAME=VALUE" of attributes. An empty value removes an attribute.

    Return None if no option is given. Raises BadOption for an invalid option.
    """
    example = "NAME=VALUE, or NAME= to remove it"
    return pairs_of("--attribute", options or (), example=example) or None


def with_attributes(
    options: Sequence[str] | None, by_option: Mapping[str, tuple[str, str]]
) -> dict[str, str] | None:
    """Join the attributes of `--attribute` and the attributes that other options set.

    `by_option` has the name and value that each other option sets. Raises BadOption for an
    attribute that is set twice.
    """
    attributes = attributes_of(options) or {}
    for option, (name, value) in by_option.items():
        if name in attributes:
            raise BadOption(f"--attribute {name}: {option} sets it too; give one of them")
        attributes[name] = value
    return attributes or None


def lite_ttl_attributes(ttl: str | None) -> dict[str, tuple[str, str]]:
    """Return the topic attribute (name and value) that the option --lite-ttl sets.

    The result is keyed by the option. Raises BadOption for an invalid duration.
    """
    option = "--lite-ttl"
    if ttl is None:
        return {}
    if ttl == NEVER:
        return {option: (lite.TTL_ATTRIBUTE, str(lite.NO_TTL))}
    try:
        minutes = parse_duration(ttl) / timedelta(minutes=1)
    except ValueError as error:
        raise BadOption(f"{option}: {error}, or {NEVER}") from None
    if not minutes.is_integer() or not 1 <= minutes <= lite.MAX_TTL_MINUTES:
        raise BadOption(f"{option} {ttl}: give 1m to 30d, in whole minutes, or {NEVER}")
    return {option: (lite.TTL_ATTRIBUTE, str(int(minutes)))}


def lite_attributes(
    parent: str | None, model: LiteModel | None, quota: int | None
) -> dict[str, tuple[str, str]]:
    """Return the group attributes (name and value) that options for lite topics set, by option."""
    given = {
        "--lite-topic": (lite.BIND_ATTRIBUTE, parent),
        "--lite-model": (lite.MODEL_ATTRIBUTE, model.value.capitalize() if model else None),
        "--lite-quota": (lite.QUOTA_ATTRIBUTE, str(quota) if quota is not None else None),
    }
    return {option: (name, value) for option, (name, value) in given.items() if value is not None}


# ---- names and their settings ----


def wanted(
    kind: str, name: str | None, given: Mapping[str, Any], path: Path | None
) -> dict[str, Arguments]:
    """Return the wanted settings of the topics or groups (`kind`) of a command, by name.

    They are the topic or group `name` with the options `given`, or the entries of the file `path`.
    Raises BadOption or OSError.
    """
    options = {option: value for option, value in given.items() if value is not None}
    if (name is None) == (path is None):
        raise BadOption(f"give the {kind}, or a list in --from FILE.yaml")
    if name is not None:
        return {name: _READERS[kind](options)}
    if path is not None and not options:
        return _entries(path, kind)
    raise BadOption(f"--from says the settings: leave out {', '.join(options)}")


def parent_of(arguments: Arguments) -> str:
    """Return the topic to whose lite topics the arguments bind a group, or ""."""
    return str((arguments.get("attributes") or {}).get(lite.BIND_ATTRIBUTE, ""))


# ---- files ----


def file_entries(path: Path, kind: str) -> dict[str, Arguments]:
    """Return the settings of the topics or groups (`kind`) in a file, by name.

    A file without a section of that kind has none. Raises BadOption or OSError.
    """
    content = _load(path)
    if isinstance(content, dict) and content.keys() < _SECTIONS:
        return _entries(path, kind) if f"{kind}s" in content else {}
    return _entries(path, kind)


_SECTIONS = frozenset(f"{each}s" for each in _READERS)


def _listed(path: Path, kind: str) -> list[Any]:
    """Return the entries of the topics or groups (`kind`) in a file."""
    content, section = _load(path), f"{kind}s"
    if isinstance(content, list):
        try:
            return entries_of_listing(kind, json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise BadOption(f"{path}: {error}") from None
    listed = content.get(section) if isinstance(content, dict) else None
    if not isinstance(listed, list) or content.keys() - _SECTIONS:
        raise BadOption(
            f"{path}: give a list `{section}:` (topics and groups may stand in one file), "
            f"or what `aerobee {kind} list --json` prints"
        )
    return listed


def _entries(path: Path, kind: str) -> dict[str, Arguments]:
    """Return the settings in a file by name, in the order of the file."""
    listed, section = _listed(path, kind), f"{kind}s"
    entries: dict[str, Arguments] = {}
    for number, entry in enumerate(listed, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get(kind), str):
            raise BadOption(f"{path}: entry {number} of {section} has no `{kind}:`")
        name = entry.pop(kind)
        if name in entries:
            raise BadOption(f"{path}: {name} stands there twice")
        try:
            entries[name] = _READERS[kind](entry)
        except BadOption as error:
            raise BadOption(f"{path}: {name}: {error.message}") from None
    return entries


def _load(path: Path) -> Any:
    """Return the content of a YAML file. JSON is also valid, because it is a part of YAML.

    All scalars are text, because YAML would convert the order `off` to a boolean.
    """
    import yaml

    class Loader(yaml.BaseLoader):  # type: ignore[misc]
        """A loader that refuses a repeated key, which BaseLoader accepts silently."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
            twice = {str(key) for key in keys if keys.count(key) > 1}
            if twice:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{', '.join(sorted(twice))} stands there twice", node.start_mark
                )
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadOption(f"{path}: invalid YAML: {error}") from None
