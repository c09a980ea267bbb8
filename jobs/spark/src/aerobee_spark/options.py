"""What the options of a read and of a write have in common: how they are named, where the name
servers come from, and values of the simple kinds. Pure.

Spark passes options as strings, with their names in lower case.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from aerobee_spark import environment
from aerobee_spark.errors import MqError, OptionError

# Options of a write alone; of a read alone are those that `reading/options.py` has beside these.
SHARED = ("nameServer", "topic")
WRITE_ONLY = (
    "createTopic",
    "maxMessagesPerSecond",
    "maxMessageSize",
    "redrive",
    "sendTimeoutMs",
    "writeId",
)
SHARED_ALIASES = {
    "namesrvAddr": "nameServer",
    "path": "topic",  # of .load("orders") and .save("orders")
}
_TABLE_OPTION = "option."


def of_table(given: Mapping[str, str]) -> Mapping[str, str]:
    """The options. While a table is created Spark gives its properties: the options are there under
    a prefix, beside others such as its owner."""
    if "owner" not in given and not any(name.startswith(_TABLE_OPTION) for name in given):
        return given
    return {
        name.removeprefix(_TABLE_OPTION): value
        for name, value in given.items()
        if name.startswith(_TABLE_OPTION)
    }


def named(given: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """The options by their names, for any case and alias. `names`: name in lower case → name.
    Raises OptionError for an unknown one, with the nearest."""
    values: dict[str, str] = {}
    for key, value in given.items():
        name = names.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.0)[0]
            raise OptionError(f"there is no option {key}: did you mean {names[near]}?", key)
        if name in values:
            raise OptionError(f"the option {name} is given twice, once as an alias: keep one", name)
        values[name] = value
    return values


def with_name_server(values: dict[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """With that of the environment where none is given. Raises OptionError without either."""
    if values.get("nameServer", "").strip():
        return values
    found = environment.name_server(environ)
    if not found:
        raise OptionError(
            'the option nameServer is missing: set it to "host:port;host:port", or '
            f"{environment.NAMESRV_ADDR} in the driver's environment",
            "nameServer",
        )
    return {**values, "nameServer": found}


def fields_of(
    values: Mapping[str, str], options: Mapping[str, tuple[str, Callable[[str], object]]]
) -> dict[str, Any]:
    """Field → value. `options`: name → field and parser. Raises OptionError for a bad value."""
    fields: dict[str, Any] = {}
    for name, value in values.items():
        field, parser = options[name]
        try:
            fields[field] = parser(value.strip())
        except (ValueError, MqError) as error:
            raise OptionError(f"the option {name} is {value!r}: {error}", name) from None
    return fields


# ---- values ----


def text(value: str) -> str:
    if not value:
        raise ValueError("it is empty")
    return value


def boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return value.lower() == "true"


def count(value: str) -> int:
    if not value.isdigit() or not 0 < int(value) <= 2_147_483_647:
        raise ValueError("write a number between 1 and 2147483647")
    return int(value)
