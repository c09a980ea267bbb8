"""Where dead letters can be sent again. Apart from `redrive`, which needs the client."""

from __future__ import annotations

from enum import StrEnum


class Target(StrEnum):
    """`retry`: only the group that failed sees it again. `origin`: all groups of the topic do."""

    RETRY = "retry"
    ORIGIN = "origin"
