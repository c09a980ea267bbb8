"""Texts for results of several brokers, some of which may not have answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee_client.admin.waiting import Waiting


def unanswered_of(unanswered: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each broker that did not answer."""
    for name, reason in unanswered.items():
        yield f"the result lacks broker {name}: {reason}"


def rows_note(found: Waiting[Any], noun: str) -> str:
    """Return a note that says how many rows are shown, and of how many."""
    total = "an unknown number of" if found.total is None else f"{found.total:,}"
    return f"{len(found.rows):,} of {total} {noun}"
