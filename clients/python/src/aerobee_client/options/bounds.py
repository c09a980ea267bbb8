"""Check the names, types and bounds of options and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

from aerobee_client.runtime.kinds import check_kind, check_names
from aerobee_wire.status import invalid_parameter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MIB = 1024 * 1024
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1
FOREVER_S = timedelta.max.total_seconds()

O = TypeVar("O", bound="DataclassInstance")  # noqa: E741  # options

# The lowest and highest value of each option.
Bounds = Mapping[str, tuple[float, float]]


def check_bounds(options: DataclassInstance, bounds: Bounds) -> None:
    """Check the kind of each option, and its bounds if it is not None.

    Raises MqError with the code INVALID_PARAMETER, whose text names the option and its kind or
    bounds.
    """
    kinds = _kinds_of(type(options))
    for field in fields(options):
        name, value = field.name, getattr(options, field.name)
        check_kind(name, value, kinds[name])
        if name in bounds and value is not None:
            check_value(name, value, *bounds[name])


@lru_cache
def _kinds_of(options: type[DataclassInstance]) -> dict[str, Any]:
    return get_type_hints(options)


def check_duration(name: str, value: object, lowest: float, highest: float) -> float:
    """Return a duration in seconds after a check of its type and bounds.

    Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
    """
    check_kind(name, value, timedelta)
    assert isinstance(value, timedelta), "it was checked"
    check_value(name, value, lowest, highest)
    return value.total_seconds()


def check_value(name: str, value: float | timedelta | None, lowest: float, highest: float) -> None:
    """Check the bounds of a number, or of a duration in seconds.

    Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
    """
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if number is None or not lowest <= number <= highest:
        unit = " s" if isinstance(value, timedelta) else ""
        raise invalid_parameter(
            f"{name} is {number}{unit}: give {lowest} to {highest}{unit}", about=name
        )


def with_settings(options: type[O], settings: Mapping[str, Any]) -> O:
    """Create the options of a client from the keyword arguments of its constructor.

    Raises MqError with the code INVALID_PARAMETER for an unknown argument or a value out of bounds.
    """
    check_names(settings, [field.name for field in fields(options)])
    return options(**settings)
