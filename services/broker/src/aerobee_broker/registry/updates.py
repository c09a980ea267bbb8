"""Updates of a topic or a group: the named settings change, all others stay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from aerobee_broker.errors import InvalidParameter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")

ATTRIBUTES = "attributes"


def updated(known: C, given: C, named: Collection[str], *, fixed: Collection[str]) -> C:
    """Return `known` with the `named` settings of `given`.

    Attributes are merged: an empty value removes an attribute. `fixed`: fields that are not
    settings, such as the name. Raises InvalidParameter for a name that is not a setting.
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
