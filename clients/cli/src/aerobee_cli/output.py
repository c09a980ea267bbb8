"""Print results as lines for people or as JSON for programs. Lists are JSON arrays."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aerobee_cli.times import format_ms
from aerobee_wire.printable import printable, printable_json

if TYPE_CHECKING:
    from aerobee_client.admin.waiting import Waiting
    from aerobee_wire.status import MqError


Item = Mapping[str, Any]


def iso_time(timestamp_ms: int, *, milliseconds: bool = True) -> str:
    """Return a time in UTC, or "" for 0, which means unknown.

    A time out of the calendar's range, which a producer may have sent, is formatted as a number.
    """
    if not timestamp_ms:
        return ""
    try:
        at = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"
    fraction = f".{timestamp_ms % 1000:03d}" if milliseconds else ""
    return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def items_of(descriptions: Iterable[Any]) -> list[dict[str, Any]]:
    return [_plain_value(description) for description in descriptions]


def _plain_value(value: Any) -> Any:
    """Convert a value for JSON: each dataclass in it, at any depth, becomes a dict.

    `dataclasses.asdict` does the same, but takes ten times as long, because it copies strings.
    """
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {name: _plain_value(getattr(value, name)) for name in fields}
    if isinstance(value, (tuple, list)):
        values = map(_plain_value, value)
        return type(value)(*values) if hasattr(value, "_fields") else type(value)(values)
    if isinstance(value, Mapping):
        return {key: _plain_value(each) for key, each in value.items()}
    return value


def show_one(item: Item, *, as_json: bool) -> None:
    """Print an item as one JSON object, or as a line for each value that is not empty."""
    if as_json:
        print(_json(item))
        return
    width = max(len(_title(key)) for key in item)
    for key, value in item.items():
        text = _text(key, value)
        if text:
            print(f"{_title(key):<{width}}  {printable(text)}")


def show_each(items: Sequence[Item], *, as_json: bool) -> None:
    """Print items as one JSON array, or as a paragraph for each item in the form of `show_one`."""
    if as_json:
        write_array(items)
        return
    for number, item in enumerate(items):
        print("\n" if number else "", end="")
        show_one(item, as_json=False)


def wrapped(text: str) -> str:
    """Wrap a sentence at spaces for the terminal. Return it in one line if stdout is none."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun in singular or plural: "1 topic", "2 topics"."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def note(text: str) -> None:
    """Print a remark on stderr, because stdout is for results."""
    print(printable(text), file=sys.stderr)


def show_done(text: str, item: Item, *, as_json: bool) -> None:
    """Print what a command has done, as one JSON object or as a remark."""
    if as_json:
        show_one(item, as_json=True)
    else:
        note(text)


def write_array(items: Iterable[Item]) -> None:
    """Print items as one JSON array, each on its own line as soon as it is available."""
    separator = "[\n"
    for item in items:
        sys.stdout.write(separator + _json(item))
        separator = ",\n"
    sys.stdout.write("[]\n" if separator == "[\n" else "\n]\n")


def _json(item: Item) -> str:
    return printable_json(item, _plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, frozenset, set)):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _title(key: str) -> str:
    return key.removesuffix("_ms").replace("_", " ")


def _text(key: str, value: object) -> str:
    if key.endswith(("timestamp_ms", "since_ms")) and isinstance(value, int):
        return iso_time(value)
    if key.endswith("_ms") and isinstance(value, int):
        return format_ms(value)
    return text_of(value)


def text_of(value: object) -> str:
    """Format a value as text for tables. None, which means unknown, becomes ""."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={item}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)


def silence_client() -> None:
    """Keep the log of the client from stderr, because a command prints its errors itself."""
    import logging

    logging.getLogger("aerobee_client").addHandler(logging.NullHandler())


# ---- brokers that did not answer ----
#
# Texts for results of several brokers, some of which may not have answered.


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
