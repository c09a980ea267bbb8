"""Hide the values of secrets in text, such as a line of a log. This module does no I/O.

A value is found anywhere in a text, also as JSON, Python and URLs write it. A look at a text takes
one dictionary lookup per character, regardless of the number of values.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

HIDDEN = "[redacted]"
# Shorter values are not hidden: they would occur in ordinary words.
SHORTEST = 6
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class HiddenValues:
    """The secrets that a process has loaded, by their owners."""

    def __init__(self) -> None:
        self._by_owner: dict[str, frozenset[str]] = {}
        self._counts: Counter[str] = Counter()  # owners may have the same value
        # The first characters of the values, with the values, the longest first.
        self._by_head: dict[str, list[str]] = {}

    def hide(self, owner: str, values: Iterable[str | bytes]) -> None:
        """Hide these values in place of the former values of this owner."""
        former = self._by_owner.pop(owner, frozenset())
        now = frozenset(form for value in values for form in _forms(value))
        if now:
            self._by_owner[owner] = now
        for value in now - former:
            self._counts[value] += 1
            if self._counts[value] == 1:
                found = self._by_head.setdefault(value[:SHORTEST], [])
                found.append(value)
                found.sort(key=len, reverse=True)
        for value in former - now:
            self._counts[value] -= 1
            if not self._counts[value]:
                del self._counts[value]
                self._by_head[value[:SHORTEST]].remove(value)
                if not self._by_head[value[:SHORTEST]]:
                    del self._by_head[value[:SHORTEST]]

    def masked(self, text: str) -> str:
        """Return the text without hidden values."""
        by_head, parts, kept, at = self._by_head, [], 0, 0
        if not by_head:
            return text
        while at <= len(text) - SHORTEST:
            candidates = by_head.get(text[at : at + SHORTEST], ())
            found = next((each for each in candidates if text.startswith(each, at)), "")
            if found:
                parts += [text[kept:at], HIDDEN]
                at = kept = at + len(found)
            else:
                at += 1
        return "".join((*parts, text[kept:])) if parts else text

    def masked_in(self, value: Any, keys: frozenset[str] = frozenset()) -> Any:
        """Return a value of a log line without hidden values, also in nested ones.

        The values of `keys` are hidden whatever they are. Objects become text.
        """
        if isinstance(value, str):
            return self.masked(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, Mapping):
            return {
                self.masked(str(key)): HIDDEN if key in keys else self.masked_in(each, keys)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self.masked_in(each, keys) for each in value]
        return self.masked(str(value))


def _forms(value: str | bytes) -> set[str]:
    """Return how a value may be written. A value that is too short has no form."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if len(text) < SHORTEST:
        return set()
    if _PLAIN.fullmatch(text):  # as all generated ones: there may be 10,000
        return {text}
    forms = {text, json.dumps(text)[1:-1], repr(text)[1:-1], quote(text, safe="")}
    return {*forms, repr(text.encode())[2:-1]}
