"""Make descriptions from messages of the contract."""

from __future__ import annotations

from collections.abc import MutableMapping, MutableSequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import Message

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")


def like(description: type[D], source: Message, **values: Any) -> D:
    """Return a description with `values`, and all other fields from `source` by name.

    Maps become dicts, and repeated fields become tuples.
    """
    for name in [each.name for each in fields(description) if each.name not in values]:
        value = getattr(source, name)
        if isinstance(value, MutableMapping):
            value = dict(value)
        elif isinstance(value, MutableSequence):
            value = tuple(value)
        values[name] = value
    return description(**values)
