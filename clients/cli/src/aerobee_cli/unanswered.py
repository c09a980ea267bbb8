"""Texts for results of several brokers, some of which may not have answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aerobee_client.admin.waiting import Waiting
    from aerobee_wire.status import MqError


def unanswered_of(unanswered: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each broker that did not answer."""
    for name, reason in unanswered.items():
        text = reason.removeprefix(f"broker {name}: ")
        if text.startswith(f"{name} "):
            text = f"it{text.removeprefix(name)}"
        yield f"the result lacks broker {name}: {text}"


def unchanged(silent: Sequence[MqError], *, dry_run: bool = False) -> Iterator[str]:
    """Yield a problem for each broker that a change did not reach, and how to complete it."""
    for error in silent:
        yield f"{'not checked' if dry_run else 'not changed'}: {error.message}"
    names = sorted({error.broker_name for error in silent})
    if names and not dry_run:
        verb = "answers" if len(names) == 1 else "answer"
        yield f"when {', '.join(names)} {verb} again, repeat the command to complete the change"


def rows_note(found: Waiting[Any], noun: str) -> str:
    """Return a note that says how many rows are shown, and of how many."""
    total = "an unknown number of" if found.total is None else f"{found.total:,}"
    return f"{len(found.rows):,} of {total} {noun}"
