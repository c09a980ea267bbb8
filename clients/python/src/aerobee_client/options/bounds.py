"""Check the names, types and bounds of options and arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from aerobee_client.runtime.names import check_names
from aerobee_wire.status import invalid_parameter

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MIB = 1024 * 1024
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1
FOREVER_S = timedelta.max.total_seconds()

O = TypeVar("O", bound="DataclassInstance")  # noqa: E741  # options

_KINDS: Mapping[type, str] = {
    bool: "True or False",
    int: "a whole number",
    timedelta: "a timedelta",
}

# The lowest and highest value of each option.
Bounds = Mapping[str, tuple[float, float]]


def check_bounds(options: DataclassInstance, bounds: Bounds) -> None:
    """Check the type and the bounds of each option. The type is that of the default.

    If the default is None, None is also valid and means that the option is not set. Raises MqError
    with the code INVALID_PARAMETER, whose text names the option and its bounds or type.
    """
    for field in fields(options):
        name, default, value = field.name, field.default, getattr(options, field.name)
        if value is None and default is None:
            continue
        if isinstance(default, bool | timedelta | Enum):
            _check_kind(name, value, type(default))
        if name in bounds:
            if not isinstance(default, timedelta):
                _check_kind(name, value, int)
            check_value(name, value, *bounds[name])


def check_duration(name: str, value: object, lowest: float, highest: float) -> float:
    """Return a duration in seconds after a check of its type and bounds.

    Raises MqError with the code INVALID_PARAMETER, whose text names the bounds.
    """
    _check_kind(name, value, timedelta)
    assert isinstance(value, timedelta), "it was checked"
    check_value(name, value, lowest, highest)
    return value.total_seconds()


def _check_kind(name: str, value: object, kind: type) -> None:
    """Check the type of a value. A bool is not accepted as a number."""
    if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return
    if issubclass(kind, Enum):
        wanted = " or ".join([str(member) for member in kind])
    else:
        wanted = _KINDS[kind]
    raise invalid_parameter(f"{name} is {value!r}: give {wanted}", about=name)


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
