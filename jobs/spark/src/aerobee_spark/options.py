"""Parse the names and simple values of options, for reads and writes.

Spark passes options as strings, with their names in lower case. Those that the driver's environment
configures are here too. This module does no I/O.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from typing import Any

from aerobee_spark.errors import MqError, OptionError

# Options that only writes support. `reading/options.py` lists those that only reads support.
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
    "path": "topic",  # Spark sets it in .load("orders") and .save("orders")
}
_TABLE_OPTION = "option."


# ---- environment of the driver ----
#
# Read the environment variables of the driver that configure reads and writes.
#
# Workers on other machines have other variables. So the driver passes the values to them with the
# options of the read or write. These functions do not print secrets.


# This variable holds the name servers to use if the option nameServer is missing.
NAMESRV_ADDR = "NAMESRV_ADDR"
# This variable holds the secret key of redaction. Only its first 64 bytes are used.
REDACT_KEY = "AEROBEE_REDACT_KEY"
MAX_KEY_BYTES = 64


def default_name_server(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name servers from the environment, or "" if the variable is missing."""
    return environ.get(NAMESRV_ADDR, "").strip()


def redact_key(environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the first 64 bytes of the redaction key, or b"" if the variable is missing."""
    return environ.get(REDACT_KEY, "").encode()[:MAX_KEY_BYTES]


# ---- options ----


def of_table(given: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options without the prefix "option.", if Spark passes properties of a table.

    When Spark creates a table, it passes the table's properties instead of options. Among them are
    the options with a prefix, and other properties such as the owner.
    """
    if "owner" not in given and not any(name.startswith(_TABLE_OPTION) for name in given):
        return given
    return {
        name.removeprefix(_TABLE_OPTION): value
        for name, value in given.items()
        if name.startswith(_TABLE_OPTION)
    }


def named(given: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the options by canonical name. Users may write aliases and any letter case.

    Args:
        given: the options as Spark passes them.
        names: name or alias in lower case → canonical name.

    Raises:
        OptionError: an option is unknown (the message names the nearest one) or is given twice.
    """
    values: dict[str, str] = {}
    for key, value in given.items():
        name = names.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(key.lower(), names, n=1, cutoff=0.0)[0]
            raise OptionError(f"the option {key} does not exist: did you mean {names[near]}?", key)
        if name in values:
            raise OptionError(f"the option {name} is given twice, once by an alias: keep one", name)
        values[name] = value
    return values


def with_name_server(values: dict[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the options. If nameServer is missing, add the name server of the environment.

    Raises:
        OptionError: neither the option nor the variable is set.
    """
    if values.get("nameServer", "").strip():
        return values
    found = default_name_server(environ)
    if not found:
        raise OptionError(
            'the option nameServer is missing: set it to "host:port;host:port", or '
            f"{NAMESRV_ADDR} in the driver's environment",
            "nameServer",
        )
    return {**values, "nameServer": found}


def fields_of(
    values: Mapping[str, str], options: Mapping[str, tuple[str, Callable[[str], object]]]
) -> dict[str, Any]:
    """Parse the options. Return the values of the fields of ReadOptions or WriteOptions, by name.

    Args:
        values: canonical name → text.
        options: canonical name → field and parser.

    Raises:
        OptionError: a value is invalid.
    """
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
        raise ValueError("write a value")
    return value


def boolean(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return value.lower() == "true"


def count(value: str) -> int:
    if not value.isdigit() or not 0 < int(value) <= 2_147_483_647:
        raise ValueError("write a number between 1 and 2147483647")
    return int(value)
