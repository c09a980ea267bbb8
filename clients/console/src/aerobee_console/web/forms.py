"""The forms of changes and their results, and the checks before a change.

A change has a form with its consequences, which is sent back with what was seen. A change whose
consequences cannot be counted, because a broker does not answer, is refused. A name is typed for a
change that cannot be undone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from aerobee_console.reading.effects import Effects, ResetEffects
from aerobee_console.web.console import Console
from aerobee_console.web.fields import BadField, Fields

CONFIRM = "confirm"
SEEN = "seen"
WAS = "was_"  # before the name of a field with the value that the form showed
CAVEAT = "brokers that answered may have made the change: look before you repeat it"


class Changed(Exception):
    """The things that a change affects are not those that the form showed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A field of a form.

    `kind` is "text", "number", "area", "choice", or "fixed" for a value that the form only shows.
    `was` is the value of a setting now, which a form sends back as `was_NAME`.
    """

    name: str
    label: str
    kind: str = "text"
    value: str = ""
    choices: Sequence[str] = ()
    hint: str = ""
    required: bool = False
    was: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A form of a change.

    `confirm` is the name to type, or "". `effects` are the consequences, counted when the form was
    made.
    """

    title: str
    submit: str
    back: str
    inputs: Sequence[Input] = ()
    effects: Effects | ResetEffects | None = None
    confirm: str = ""
    danger: bool = False
    notes: Sequence[str] = ()
    method: str = "post"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a change. `incomplete` names what failed or is not known."""

    title: str
    texts: Sequence[str] = ()
    incomplete: Sequence[str] = ()
    back: str
    links: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Action:
    """A change: `form` makes its form, and `perform` makes the change from the fields.

    `fields` are the names of the inputs that its forms can have, and `settings` those with a `was`.
    """

    form: Callable[[Console, Mapping[str, str], Fields], Awaitable[Form]]
    perform: Callable[[Console, Mapping[str, str], Fields], Awaitable[Result]]
    tab: str
    fields: Sequence[str] = ()
    settings: Sequence[str] = ()

    @property
    def known(self) -> tuple[str, ...]:
        """The names of the fields that a request may have."""
        seen = [WAS + name for name in self.settings]
        return (*self.fields, *self.settings, *seen, CONFIRM, SEEN)


# ---- checks ----


def confirmed(fields: Fields, name: str) -> None:
    if fields.text(CONFIRM) != name:
        raise BadField(CONFIRM, f"type {name} to confirm")


def unchanged(fields: Fields, effects: Effects) -> None:
    if effects.silent:
        names = ", ".join(each.broker_name for each in effects.silent)
        raise Changed(
            f"the consequences at {names} are unknown, because it does not answer: nothing was "
            "changed; retry when it runs"
        )
    if fields.text(SEEN) != effects.seen:
        raise Changed(
            "the queues, groups or members are not those that the form showed: nothing was "
            "changed; read the new consequences and send the form again"
        )
