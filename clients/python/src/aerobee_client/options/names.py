"""Names of options: an unknown one is refused, with the name that was probably meant."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

O = TypeVar("O", bound="DataclassInstance")  # noqa: E741  # options


def with_settings(options: type[O], settings: Mapping[str, Any]) -> O:
    """The options of a client, from the keyword arguments of its constructor. Raises
    INVALID_PARAMETER for an unknown one, and for what is out of bounds."""
    check_names(settings, [field.name for field in fields(options)])
    return options(**settings)


def check_names(given: Collection[str], known: Collection[str]) -> None:
    """Raises INVALID_PARAMETER for the first name that is not known."""
    for name in given:
        if name not in known:
            nearest = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
            raise MqError(Code.INVALID_PARAMETER, f"there is no option {name}: {hint}", about=name)
