"""Names of topics, groups, users and brokers as a part of the path of an address.

Browsers remove the parts "." and ".." from a path, also if they are quoted. So a name of this kind
gets a "~" in front of it. No name contains a slash.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from starlette.convertors import Convertor, register_url_convertor

_DOTS = re.compile(r"~*\.\.?")
_MARK = "~"
_KIND = "aerobee_name"


def part(value: str) -> str:
    """Return a name as a part of a path."""
    return quote(_marked(value), safe="")


def _marked(value: str) -> str:
    return f"{_MARK}{value}" if _DOTS.fullmatch(value) else value


class _Name(Convertor[str]):
    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.removeprefix(_MARK) if _DOTS.fullmatch(value) else value

    def to_string(self, value: str) -> str:
        return _marked(value)


register_url_convertor(_KIND, _Name())


def pattern(path: str) -> str:
    """Return the pattern of a route, from a path such as "/topics/{topic}"."""
    return path.replace("}", f":{_KIND}}}")
