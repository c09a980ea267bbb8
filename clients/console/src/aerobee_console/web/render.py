"""Render the pages. Every text of a user is escaped, for HTML and for the eye."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from aerobee_cli.connected import queue_ranges
from aerobee_console.reading.source import page_of
from aerobee_console.reading.text import printable
from aerobee_console.web.fields import Fields
from aerobee_console.web.paths import part
from aerobee_wire.version import VERSION

UNKNOWN = Markup('<span class="unknown" title="unknown">?</span>')
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
_HUMPS = re.compile("(?<=[a-z0-9])(?=[A-Z])")
_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


@functools.cache
def environment() -> Environment:
    """Return the environment of the templates with its filters.

    It is the same at every call, so that a process compiles a template once.
    """
    made = Environment(
        loader=PackageLoader("aerobee_console", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=shown,
    )
    made.filters.update(
        number=number,
        size=size,
        duration=duration,
        humps=humps,
        moment=moment,
        part=part,
        percent=percent,
        shown=shown,
        ranges=lambda queues: list(queue_ranges(queues)),
    )
    made.globals.update(
        link=link, changed=changed, count=count, cut=cut, oldest=oldest, VERSION=VERSION
    )
    return made


def shown(value: Any) -> Any:
    """Return how a value stands in a page: "?" for None, and escapes for hidden characters."""
    if value is None:
        return UNKNOWN
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, keep="\n\t")
    return value


# ---- long tables ----


@dataclass(frozen=True, slots=True)
class Part:
    """A page of one of several long tables. `name` is its field of the address."""

    name: str
    rows: Sequence[Any]
    page: int
    pages: int
    total: int


def cut(rows: Sequence[Any] | None, query: Mapping[str, str], name: str) -> Part:
    """Return the part of a table that the field `name` of the address chooses, or the first.

    Raises BadField if the field is not the number of a page.
    """
    chosen = Fields(query).number(name, 1, least=1, most=1_000_000) or 1
    shown, page, pages = page_of(rows or (), chosen)
    return Part(name, shown, page, pages, len(rows or ()))


# ---- filters ----


def number(value: float | None) -> Any:
    """Format a number. A rate has one decimal; one that is not 0 is not shown as 0."""
    if value is None:
        return None
    if isinstance(value, int):
        return f"{value:,}"
    return "< 0.1" if 0 < value < 0.05 else f"{value:,.1f}"


def count(value: float | None, complete: bool) -> Any:
    """Return a sum over brokers: "≥ 7" if a broker is missing, and "?" if nothing is known."""
    if value is None or complete:
        return number(value)
    if not value:
        return None
    return "> 0" if value < 0.05 else f"≥ {number(value)}"


def oldest(page: Any, amount: int | None) -> Any:
    """Return the age of the oldest row of a page: "none" without rows, and "?" if it is unknown.

    If a broker is missing, the age is a lower bound.

    Args:
        page: The page, with `asked_at_ms`, `complete`, and `oldest_ms` of its oldest row.
        amount: The number of rows that the brokers counted; None if it is unknown.
    """
    if page.oldest_ms is None:
        return "none" if amount == 0 and page.complete else None
    age = duration(page.asked_at_ms - page.oldest_ms)
    return age if page.complete else f"≥ {age}"


def size(value: float | None) -> Any:
    if value is None:
        return None
    unit = 0
    while value >= 1024 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    return (
        f"{value:,.0f} {_SIZES[unit]}"
        if unit == 0 or value >= 10
        else f"{value:.1f} {_SIZES[unit]}"
    )


def duration(ms: float | None) -> Any:
    """Format a duration with at most two units: 90000 → "1 min 30 s"."""
    if ms is None:
        return None
    rest, found = max(0, round(ms)), list[str]()
    for unit, name in _UNITS:
        if rest >= unit or found:
            amount, rest = divmod(rest, unit)
            if amount:
                found.append(f"{amount} {name}")
            if len(found) == 2:
                break
    return " ".join(found) or ("0 s" if rest < 1 else f"{rest} ms")


def humps(text: str) -> Markup:
    """Return a text whose names of options, such as fileReservedTime, break between their words."""
    return Markup("<wbr>").join(_HUMPS.split(printable(text)))


def moment(ms: int | None) -> Any:
    """Return an element for a time in UTC, which a script shows in the zone of the browser."""
    if not ms:
        return None
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms} ms since 1970"  # a client may give any time of birth
    text = at.strftime("%Y-%m-%d %H:%M:%S UTC")
    iso = at.isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, text, text)


def percent(value: float | None) -> Any:
    """Format a percentage, below 10 % with one decimal.

    A part that is not 0 is not shown as 0 %, and one that is not all is not shown as 100 %.
    """
    if value is None:
        return None
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.5 <= value < 100:
        return "> 99 %"
    return f"{value:.0f} %" if value >= 9.95 else f"{value:.1f} %".replace(".0 ", " ")


# ---- addresses ----


def link(path: str, /, **query: Any) -> str:
    """Return an address. A query value that is empty, None or False is left out."""
    given = {
        name: "yes" if value is True else value
        for name, value in query.items()
        if value not in ("", None, False)
    }
    return f"{path}?{urlencode(given)}" if given else path


def changed(query: Mapping[str, str], /, **values: Any) -> str:
    """Return the query of the current address with other values, for links to pages and sorts."""
    return link("", **{**query, **values}) or "?"


def plain(text: str) -> Markup:
    """Return escaped text, for use outside of templates."""
    return escape(printable(text))
