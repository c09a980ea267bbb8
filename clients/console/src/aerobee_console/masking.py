"""Mask parts of messages: values in JSON bodies by path, and properties by name.

A body to which a path cannot be applied, because it is not JSON, is hidden as a whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aerobee_wire import properties

MASKED = "***"
# Lists show these names in other places, or need them for links.
NOT_MASKED = frozenset(
    {properties.SHARDING_KEY, properties.UNIQUE_KEY, properties.DLQ_REASON, properties.RETRY_TOPIC}
)

_STEP = re.compile(
    r"(?P<deep>\.\.)(?P<deep_name>[^.\[\]]+)|\.(?P<name>[^.\[\]]+)"
    r"|\['(?P<quoted>[^']+)'\]|\[(?P<index>\*|\d+)\]"
)
_ANY = "*"


class BadMask(ValueError):
    """A mask that is neither a JSON path nor the name of a property that can be masked."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A step of a path: a name, an index, or _ANY; `deep` for a name at any depth."""

    key: str | int
    deep: bool = False


@dataclass(frozen=True, slots=True)
class Mask:
    """Masks for bodies and properties.

    Attributes:
        paths: The parsed JSON paths.
        names: The names of properties.
    """

    paths: tuple[tuple[_Step, ...], ...] = ()
    names: frozenset[str] = frozenset()

    @classmethod
    def of(cls, texts: Sequence[str]) -> Mask:
        """Return the mask for texts such as "$.card.number" and "KEYS". Raises BadMask."""
        paths = tuple(_path(text) for text in texts if text.startswith("$"))
        names = frozenset(text for text in texts if not text.startswith("$"))
        for name in sorted(names & NOT_MASKED):
            raise BadMask(f"the property {name} cannot be masked: lists and links need it")
        if "" in names:
            raise BadMask("it is empty: give a JSON path such as $.card.number, or a property")
        return cls(paths, names)

    def text(self, name: str, value: str) -> str:
        """Return the value of a property, or MASKED if it has a value that is masked."""
        return MASKED if value and name in self.names else value

    def properties(self, values: Mapping[str, str]) -> dict[str, str]:
        return {name: self.text(name, value) for name, value in values.items()}

    def body(self, body: bytes) -> bytes | None:
        """Return a body with masked values, or None if paths cannot be applied to it."""
        if not self.paths:
            return body
        try:
            value = json.loads(body)
            for path in self.paths:
                value = _masked(value, path)
            return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except (ValueError, RecursionError):  # UnicodeError is a ValueError
            return None


NO_MASK = Mask()


def _path(text: str) -> tuple[_Step, ...]:
    steps: list[_Step] = []
    position = 1
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            raise BadMask(
                f"{text!r} is not a JSON path: write steps such as $.card.number, $.items[*].pan, "
                "$['a name'] or $..pan"
            )
        if found["deep"]:
            steps.append(_Step(found["deep_name"], deep=True))
        elif found["index"] is not None:
            steps.append(_Step(_ANY if found["index"] == _ANY else int(found["index"])))
        else:
            steps.append(_Step(found["quoted"] or found["name"]))
        position = found.end()
    return tuple(steps)


def _masked(value: Any, steps: tuple[_Step, ...]) -> Any:
    """Return a value in which everything at the end of a path is MASKED."""
    if not steps:
        return MASKED
    step, rest = steps[0], steps[1:]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    made = {}
    for key, each in items:
        within = _masked(each, steps) if step.deep else each
        made[key] = _masked(within, rest) if step.key in (_ANY, key) else within
    if isinstance(value, dict):
        return made
    return list(made.values()) if isinstance(value, list) else value
