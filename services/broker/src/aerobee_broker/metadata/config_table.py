"""Base of the tables of topics and of consumer groups, and updates of their settings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from aerobee_broker.errors import InvalidParameter
from aerobee_broker.metadata.table import DataVersion, JournalledTable
from aerobee_chassis.clock import Clock

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ATTRIBUTES = "attributes"


class Config(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def features(self) -> set[str]:
        """Return the format features (`store/format.py`) that this configuration uses."""

    def to_json(self) -> dict[str, Any]: ...


C = TypeVar("C", bound=Config)
D = TypeVar("D", bound="DataclassInstance")


class ConfigTable(JournalledTable, Generic[C]):
    """A table that maps names to configurations. A read costs one dictionary look-up."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._configs: dict[str, C] = {}

    @staticmethod
    @abstractmethod
    def config_from_json(name: str, content: Mapping[str, Any], /) -> C:
        """Create a configuration from JSON. Raises KeyError, TypeError, ValueError."""

    def __len__(self) -> int:
        return len(self._configs)

    def __contains__(self, name: str) -> bool:
        return name in self._configs

    def get(self, name: str) -> C | None:
        return self._configs.get(name)

    def all(self) -> list[C]:
        return list(self._configs.values())

    def put(self, config: C) -> bool:
        """Add or replace a configuration. Return whether its name is new in the table."""
        known = self._configs.get(config.name)
        if known != config:
            self._configs[config.name] = config
            self.features |= config.features
            self._changed()
            self._row_changed(config.name)
        return known is None

    def remove(self, name: str) -> bool:
        if self._configs.pop(name, None) is None:
            return False
        self._changed()
        self._row_changed(name)
        return True

    def head_to_json(self) -> dict[str, Any]:
        return {"dataVersion": self.version.to_json()}

    def load(self, content: dict[str, Any]) -> None:
        self._configs = self._parsed(content.get(self.ROWS) or {})
        self.version = DataVersion.from_json(content.get("dataVersion") or {})
        self._rows_replaced()

    def _parsed(self, rows: Mapping[str, Any]) -> dict[str, C]:
        configs = {name: self.config_from_json(name, row) for name, row in rows.items()}
        self.features.update(*(config.features for config in configs.values()))
        return configs

    # ---- the journal ----

    def rows(self) -> Mapping[str, C]:
        return self._configs

    def name_of(self, key: str) -> str:
        return key

    def row_to_json(self, row: C) -> dict[str, Any]:
        return row.to_json()

    def take_rows(
        self,
        put: Mapping[str, Any],
        removed: Iterable[str],
        version: DataVersion,
        *,
        anew: bool,
    ) -> None:
        self._take(self._configs, self._parsed(put), removed, version, anew=anew)


def updated(known: D, given: D, named: Collection[str], *, fixed: Collection[str]) -> D:
    """Return a copy of `known` in which the settings `named` have the values of `given`.

    Attributes are merged, and an attribute with an empty value is removed. `fixed` has the fields
    that are not settings, such as the name. Raises InvalidParameter for an unknown setting.
    """
    settings = {each.name for each in fields(known)}.difference(fixed)
    unknown = sorted(set(named) - settings)
    if unknown:
        raise InvalidParameter(
            f"{', '.join(unknown)}: there is no such setting; name some of "
            f"{', '.join(sorted(settings))}",
            about="fields",
        )
    changes: dict[str, Any] = {name: getattr(given, name) for name in named}
    if ATTRIBUTES in changes:
        merged = {**getattr(known, ATTRIBUTES), **changes[ATTRIBUTES]}
        changes[ATTRIBUTES] = {name: value for name, value in merged.items() if value}
    return replace(known, **changes)
