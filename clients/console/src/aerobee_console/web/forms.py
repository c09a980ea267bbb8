"""The forms of changes and their results, and the checks before a change.

A change has a form with its consequences, which is sent back with what was seen. A change whose
consequences cannot be counted, because a broker does not answer, is refused. A name is typed for a
change that cannot be undone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aerobee_cli.options import BadOption
from aerobee_console.reading.effects import Effects, ResetEffects
from aerobee_console.web.console import Console
from aerobee_console.web.fields import BadField, Fields
from aerobee_wire.status import MqError

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

    `submit` is the text of the button; "" if the change is not possible now. `confirm` is the name
    to type, or "". `effects` are the consequences, counted when the form was made.
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
    """The result of a change.

    `incomplete` names what failed or is not known. `secret` is shown once, and never again.
    """

    title: str
    texts: Sequence[str] = ()
    incomplete: Sequence[str] = ()
    secret: str = ""
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


# ---- settings ----


def setting(name: str, label: str, value: str, choices: Sequence[str] = (), **more: Any) -> Input:
    """Return the input of a setting that has this value now."""
    if choices and value not in choices:
        choices = (value, *choices)
    return Input(name=name, label=label, value=value, was=value, choices=choices, **more)


def changed_settings(
    read: Callable[[Mapping[str, Any]], dict[str, Any]], fields: Fields, form: Form
) -> dict[str, Any]:
    """Return the arguments of an admin client for the settings that were changed in a form.

    `form` is the form as of now. Raises Changed if it differs from the one that was shown.
    """
    arguments: dict[str, Any] = {}
    for each in form.inputs:
        if each.was is None:
            continue
        was = fields.text(WAS + each.name, each.was)
        if was != each.was:
            raise Changed(
                f"{each.label} was {was or 'empty'} and is {each.was or 'empty'} now: nothing was "
                "changed; send the form with the present settings again"
            )
        value = fields.text(each.name, was)
        if value == was:
            continue
        if not value and each.required:
            raise BadField(each.name, "it is empty: give a value")
        try:
            arguments |= read({each.name: value})
        except BadOption as error:
            raise BadField(each.name, error.message) from None
    return arguments


# ---- brokers that are not reached ----


def not_changed(silent: Sequence[MqError]) -> list[str]:
    """Return a sentence for each broker that a change did not reach, and how to complete it."""
    names = sorted({error.broker_name for error in silent})
    found = [f"not changed: {error.message}" for error in silent]
    if names:
        verb = "answers" if len(names) == 1 else "answer"
        found.append(f"when {', '.join(names)} {verb} again, repeat the change to complete it")
    return found


# ---- checks ----


def confirmed(fields: Fields, name: str) -> None:
    if fields.text(CONFIRM) != name:
        raise BadField(CONFIRM, f"type {name} to confirm")


def as_shown(fields: Fields, effects: Effects, problem: str) -> None:
    """Raise Changed with this problem unless the effects are those that the form showed."""
    if fields.text(SEEN) != effects.seen:
        raise Changed(
            f"{problem}: nothing was changed; read the new consequences and send the form again"
        )


def unchanged(fields: Fields, effects: Effects) -> None:
    if effects.silent:
        names = ", ".join(each.broker_name for each in effects.silent)
        raise Changed(
            f"the consequences at {names} are unknown, because it does not answer: nothing was "
            "changed; retry when it runs"
        )
    as_shown(fields, effects, "the queues, groups or members are not those that the form showed")
