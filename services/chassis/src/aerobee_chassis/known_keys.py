"""Keys of RocketMQ's files that a service knows beside its own options, as a table in TOML.

Each key stands in the table once: it is harmless, refused or renamed. A harmless key has no effect
here. A refused key promises something that this service does not do. A renamed key is another name
of an option. Knows neither the options nor their sources.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Self


class Promise(NamedTuple):
    """Why a key is refused. `kept`: the values, in lower case, that ask for no more than what holds
    here. `instead`: why others are refused, and what to do."""

    kept: frozenset[str]
    instead: str


@dataclass(frozen=True, slots=True)
class KnownKeys:
    """`promises`: a key, or the beginning of keys and "*". `renamed`: key → key of an option."""

    harmless: frozenset[str] = frozenset()
    promises: Mapping[str, Promise] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a table: `harmless`, keys separated by white space; `[renamed]`; `[[refused]]` with
        `keys`, `kept` and `instead`."""
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        promises = {
            key: Promise(frozenset(each["kept"]), " ".join(each["instead"].split()))
            for each in table.get("refused", ())
            for key in each["keys"].split()
        }
        return cls(frozenset(table["harmless"].split()), promises, table.get("renamed", {}))

    def __iter__(self) -> Iterator[str]:
        """Iterate over all keys, each once for every place in the table."""
        yield from self.harmless
        yield from self.promises
        yield from self.renamed

    def promise(self, key: str) -> Promise | None:
        """Return why `key` may be refused; None if it is not one of those. The case is ignored in
        a key that only the beginning of is known."""
        if key in self.promises:
            return self.promises[key]
        patterns = (pattern for pattern in self.promises if "*" in pattern)
        for pattern in patterns:
            if fnmatchcase(key.casefold(), pattern.casefold()):
                return self.promises[pattern]
        return None
