"""Lowest and highest values of options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING

from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MIB = 1024 * 1024
MAX_INT32 = (1 << 31) - 1
MAX_INT64 = (1 << 63) - 1

# Option → its smallest and largest value.
Bounds = Mapping[str, tuple[float, float]]


def check_bounds(options: DataclassInstance, bounds: Bounds) -> None:
    """Raises INVALID_PARAMETER that names the option and its bounds. None passes where it is the
    default: not set."""
    defaults = {field.name: field.default for field in fields(options)}
    for name, (lowest, highest) in bounds.items():
        value = getattr(options, name)
        if value is None and defaults[name] is None:
            continue
        check_value(name, value, lowest, highest)


def check_value(name: str, value: float | timedelta | None, lowest: float, highest: float) -> None:
    """Raises INVALID_PARAMETER that names the bounds, in seconds those of a duration."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if number is None or not lowest <= number <= highest:
        unit = " s" if isinstance(value, timedelta) else ""
        raise MqError(
            Code.INVALID_PARAMETER,
            f"{name} is {number}{unit}: give {lowest} to {highest}{unit}",
            about=name,
        )
