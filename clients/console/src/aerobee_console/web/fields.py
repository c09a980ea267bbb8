"""Read fields of addresses, forms and JSON objects, and say which field is invalid and why."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from starlette.requests import Request

from aerobee_cli.times import parse_moment

MAX_NAMES_LENGTH = 64 * 1024  # a page has 100 rows


class BadField(Exception):
    """A field has an invalid value. The message says what to do.

    Attributes:
        field: The name of the field.
        message: What is wrong, and the remedy.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class Fields:
    """The fields of a request, by name. A missing field has its default."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def given(self, name: str, default: str = "") -> str:
        """Return a field as it was sent, also if it is invalid."""
        return self._values.get(name, default)

    def required_switch(self, name: str) -> bool:
        self.required(name)
        return self.switch(name)

    def check_known(self, known: Collection[str]) -> None:
        """Raise BadField for a field that is not in `known`."""
        for name in self._values:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise BadField(name, f"there is no such field: known are {listed}")

    def check_unicode(self) -> None:
        """Raise BadField for a field with half a character, which JSON can express."""
        for name, value in self._values.items():
            try:
                f"{name}{value}".encode()
            except UnicodeEncodeError:
                raise BadField(
                    "body", "it has text that is not Unicode: send whole characters"
                ) from None

    def text(self, name: str, default: str = "", *, longest: int = 1_024) -> str:
        value = self.given(name, default).strip()
        if len(value) > longest:
            raise BadField(name, f"{len(value)} characters are too many: give at most {longest}")
        return value

    def names(self, name: str) -> list[str]:
        """Return the values of a field that may be repeated. Raises BadField if there is none."""
        found = self.text(name, longest=MAX_NAMES_LENGTH).split()
        if not found:
            raise BadField(name, "nothing is chosen: choose at least one row of the list")
        return list(dict.fromkeys(found))

    def required(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise BadField(name, "it is empty: give a value")
        return value

    def number(
        self, name: str, default: int | None = None, *, least: int = 0, most: int = (1 << 63) - 1
    ) -> int | None:
        text = self.text(name)
        if not text:
            return default
        if not (text.isascii() and text.isdecimal() and len(text) < 20):
            raise BadField(name, f"{text!r} is not a whole number: give {least:,} or more")
        value = int(text)
        if not least <= value <= most:
            bound = f"to {most:,}" if most < (1 << 31) else "or more"
            raise BadField(name, f"{value:,} is out of bounds: give {least:,} {bound}")
        return value

    def page(self) -> int:
        return self.number("page", 1, least=1, most=1_000_000) or 1

    def choice(self, name: str, choices: Collection[str], default: str = "") -> str:
        value = self.text(name, default) or default
        if value != default and value not in choices:
            listed = ", ".join(each for each in choices if each)
            raise BadField(name, f"{value!r} is not known: choose one of {listed}")
        return value

    def moment(self, name: str, now_ms: int) -> int:
        """Return a time in milliseconds since the epoch: an absolute one, or an age; 0 if empty."""
        text = self.text(name)
        if not text:
            return 0
        try:
            return parse_moment(text).at(now_ms)
        except ValueError as error:
            raise BadField(name, str(error)) from None

    def switch(self, name: str) -> bool:
        return self.choice(name, ("yes", "no"), "no") == "yes"


def joined(items: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the fields by name. The values of a repeated field are separated by spaces."""
    values: dict[str, str] = {}
    for name, value in items:
        values[name] = f"{values[name]} {value}" if name in values else value
    return values


def fields_of(request: Request) -> Fields:
    """Return the fields of the address of a request."""
    return Fields(joined(request.query_params.multi_items()))
