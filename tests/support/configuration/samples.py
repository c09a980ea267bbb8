"""Configuration files with the keys of public RocketMQ clusters, as the services read them.

`files/SERVICE` are taken; `files/refused/SERVICE-*` are refused for one or two keys. The keys are
facts, the values are shortened or made up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from aerobee_chassis.config import Options

FILES = Path(__file__).with_name("files")


def taken(service: str) -> list[Path]:
    return sorted((FILES / service).iterdir())


def refused(service: str, kind: str) -> Path:
    [path] = (FILES / "refused").glob(f"{service}-{kind}.*")
    return path


def repeated(model: type[Options]) -> list[str]:
    """Return the keys, in lower case, that a model knows in more than one way."""
    every: Iterable[str] = (*model.keys_shown(), *model.known_keys)
    return [key for key, count in Counter(each.lower() for each in every).items() if count > 1]
