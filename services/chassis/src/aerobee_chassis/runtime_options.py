"""Change options of a running service, within an allow-list, and restore the changes after a start.

A change stands above the file and the environment, and below the command line. This module neither
reads nor writes the file with the changes, and does not know who uses an option: the service does.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple

from aerobee_chassis.config import COMMAND_LINE, OptionsType, unknown_option
from aerobee_chassis.errors import ConfigError

Source = Literal["default", "file", "environment", "command line", "run time"]
FILE_NAME = "runtime.json"


class FixedOption(ConfigError):
    """A key that can be set at the start only."""


@dataclass(frozen=True, slots=True)
class Change(Generic[OptionsType]):
    """A change that is checked and not in effect yet.

    Attributes:
        options: The options after it.
        saved: All changes at run time after it, key → value, for the file.
        without_effect: Keys of this change that the command line sets, so that they stay as they
            are.
    """

    options: OptionsType
    saved: Mapping[str, str]
    without_effect: tuple[str, ...]


class OptionState(NamedTuple):
    """An option as it is now. `value` is text. `changeable` options may change at run time."""

    key: str
    value: str
    source: Source
    changeable: bool


class RuntimeOptions(Generic[OptionsType]):
    """The options of a running service: those of its start, and the changes since.

    `now` are the current options. `saved` are the changes at run time, key → value.
    """

    def __init__(self, options: OptionsType) -> None:
        self.now = options
        self.saved: Mapping[str, str] = {}
        self._started = options

    @property
    def keys(self) -> list[str]:
        """Return the keys that may change at run time, sorted."""
        return sorted(self._started.runtime_keys)

    def shown(self) -> list[OptionState]:
        """Return all options."""
        sources, changeable = self.sources(), set(self.keys)
        return [
            OptionState(key, value, sources[key], key in changeable)
            for key, value in self.entries().items()
        ]

    def entries(self) -> dict[str, str]:
        """Return a map from key to value, with each value as text."""
        return {
            key: value if isinstance(value, str) else json.dumps(value)
            for key, value in self.now.to_json().items()
        }

    def sources(self) -> dict[str, Source]:
        """Return a map from key to the source of its present value."""
        return {key: self._source(key) for key in self.now.keys_shown()}

    def restore(self, saved: Mapping[str, Any]) -> tuple[str, ...]:
        """Use the changes of an earlier process.

        Returns:
            The keys without effect: those of the command line, and those that may not change.

        Raises:
            ConfigError: if a value is invalid, or in conflict with an option of the start.
        """
        allowed = {key: str(value) for key, value in saved.items() if key in self.keys}
        self.now = self._merged(allowed)
        self.saved = allowed
        return tuple(sorted(saved.keys() - allowed.keys() | self._overridden(allowed)))

    def change(
        self, entries: Mapping[str, str], unset: Collection[str] = ()
    ) -> Change[OptionsType]:
        """Check a change. `take` puts it into effect.

        Args:
            entries: The new values, by key.
            unset: Keys that get back the value of the start.

        Raises:
            FixedOption: if a key can be set at the start only.
            ConfigError: for an unknown key, an invalid value, or a key in both.
        """
        keys = {key: self._shown(key) for key in (*entries, *unset)}
        fixed = sorted(key for key, found in keys.items() if found not in self.keys)
        if fixed:
            raise FixedOption(
                f"{', '.join(fixed)} can be set at start only; at run time: {', '.join(self.keys)}",
                fixed[0],
            )
        changed = {keys[key]: value for key, value in entries.items()}
        dropped = {keys[key] for key in unset}
        if both := sorted(changed.keys() & dropped):
            raise ConfigError(f"{both[0]} is set and unset: choose one", both[0])
        kept = {key: value for key, value in self.saved.items() if key not in dropped}
        saved = {**kept, **changed}
        without_effect = tuple(sorted(self._overridden(changed)))
        return Change(self._merged(saved), saved, without_effect)

    def take(self, change: Change[OptionsType]) -> None:
        """Put a checked change into effect."""
        self.now, self.saved = change.options, change.saved

    def _shown(self, key: str) -> str:
        """Return the key as files spell it. Raises ConfigError for an unknown key."""
        model = type(self._started)
        found = model.known_key(key)
        if found is None:
            raise unknown_option(key, [*model.keys_shown(), *model.known_keys])
        name = model.keys().get(found)
        return found if name is None else model.model_fields[name].alias or name

    def _source(self, key: str) -> Source:
        source = self._started.source(key)
        return "run time" if key in self.saved and source != COMMAND_LINE else source

    def _overridden(self, keys: Collection[str]) -> set[str]:
        return {key for key in keys if self._started.source(key) == COMMAND_LINE}

    def _given(self) -> dict[str, Any]:
        """Return the values of the start that a source sets, by field name."""
        started = self._started
        return {name: getattr(started, name) for name in started.model_fields_set}

    def _merged(self, saved: Mapping[str, str]) -> OptionsType:
        """Return the options of the start with the changes. Raises ConfigError."""
        overridden, names = self._overridden(saved), self._started.keys()
        changes = {names[key]: value for key, value in saved.items() if key not in overridden}
        return self._started.from_values({**self._given(), **changes})
