"""Reject unknown names of arguments, and suggest the most similar known name."""

from __future__ import annotations

from collections.abc import Collection

from aerobee_wire.status import invalid_parameter


def check_names(given: Collection[str], known: Collection[str]) -> None:
    """Raise MqError with the code INVALID_PARAMETER for the first name that is not known."""
    for name in given:
        if name not in known:
            from difflib import get_close_matches

            nearest = get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {nearest[0]}?" if nearest else f"known: {', '.join(known)}"
            raise invalid_parameter(f"there is no option {name}: {hint}", about=name)
