"""Check the fields of requests.

Each function raises MqError with the code INVALID_PARAMETER, the field and a remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aerobee_wire.route import ALL_PERMISSIONS
from aerobee_wire.status import Code, MqError

MAX_NAME_CHARACTERS = 255  # as long as the longest topic name

# A host name, an IPv4 address or an IPv6 address in brackets, and a port.
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.%\w]+\]):(\d{1,5})", re.ASCII)


def invalid(field: str, value: object, remedy: str) -> MqError:
    return MqError(Code.INVALID_PARAMETER, f"{field}={value!r}: {remedy}", about=field)


def name(field: str, value: str) -> str:
    """Return `value` after checking that it is not blank and has at most 255 characters."""
    if not value.strip() or len(value) > MAX_NAME_CHARACTERS:
        raise invalid(field, value[:32], f"give 1 to {MAX_NAME_CHARACTERS} characters")
    return value


def address(field: str, value: str) -> str:
    """Return `value` after checking that it is "host:port"."""
    match = _ADDRESS.fullmatch(value)
    if match is None or not 0 < int(match[1]) <= 65_535:
        raise invalid(field, value[:64], "write it as host:port, an IPv6 host in brackets")
    return value


def not_negative(field: str, value: int) -> int:
    if value < 0:
        raise invalid(field, value, "give 0 or more")
    return value


def permission(field: str, value: int) -> int:
    if not 0 <= value <= ALL_PERMISSIONS:
        raise invalid(field, value, "give a sum of 4 (read), 2 (write), 1 (inherit), 8 (priority)")
    return value


def not_empty(field: str, values: Iterable[object]) -> None:
    if not any(True for _ in values):
        raise invalid(field, [], "give at least one")
