"""Make options from keyword arguments. Unknown arguments are refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from aerobee_client.runtime.names import check_names

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

O = TypeVar("O", bound="DataclassInstance")  # noqa: E741  # options


def with_settings(options: type[O], settings: Mapping[str, Any]) -> O:
    """Return the options of a client, from the keyword arguments of its constructor.

    Raises INVALID_PARAMETER for an unknown argument and for a value out of bounds.
    """
    check_names(settings, [field.name for field in fields(options)])
    return options(**settings)
