"""Format JSON log lines of several services for people, like a service on its own terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from enum import Enum
from typing import Any, TextIO

from aerobee_wire.printable import printable

# As in `aerobee_chassis.logs`, which the command does not need.
LEVEL_WIDTH, EVENT_WIDTH = 9, 20
SERVICE_WIDTH = 7
_BOLD, _CYAN, _RESET = "\x1b[1m", "\x1b[36m", "\x1b[0m"
_LEVEL_COLORS = {"debug": "\x1b[32m", "info": "\x1b[32m", "warning": "\x1b[33m"}
_RED = "\x1b[31m"


class LogFormat(Enum):
    AUTO = "auto"
    JSON = "json"
    CONSOLE = "console"


def writer_of(log_format: LogFormat, out: TextIO) -> Callable[[str], None]:
    """Return a function that writes a log line of a service to `out`.

    AUTO is CONSOLE if `out` is a terminal, and otherwise JSON.
    """
    is_terminal = out.isatty()
    if log_format is LogFormat.JSON or (log_format is LogFormat.AUTO and not is_terminal):
        return lambda line: print(line, file=out, flush=True)
    colors = is_terminal and not os.environ.get("NO_COLOR")
    return lambda line: print(for_people(line, colors=colors), file=out, flush=True)


def for_people(line: str, *, colors: bool = False) -> str:
    """Return time, service, level, event and fields of a JSON line, or another line as it is."""
    fields = event_fields(line)
    if fields is None:
        return printable(line)
    at = str(fields.pop("timestamp", ""))[11:19]
    level, event = str(fields.pop("level", "")), str(fields.pop("event"))
    service = printable(str(fields.pop("service", "")))
    trace = str(fields.pop("exception", ""))
    pairs = [(name, _value(fields[name])) for name in sorted(fields)]
    padded = f"{level:<{LEVEL_WIDTH}}"
    title = f"{printable(event):<{EVENT_WIDTH}}"
    if colors:
        padded = f"{_LEVEL_COLORS.get(level, _RED)}{padded}{_RESET}"
        title = f"{_BOLD}{title}{_RESET}"
        pairs = [(f"{_CYAN}{name}{_RESET}", value) for name, value in pairs]
    head = " ".join(
        [
            f"{at}Z {service:<{SERVICE_WIDTH}} [{padded}] {title}",
            *(f"{name}={value}" for name, value in pairs),
        ]
    )
    return f"{head.rstrip()}\n{printable(trace)}" if trace else head.rstrip()


def event_fields(line: str) -> dict[str, Any] | None:
    """Return the fields of a JSON log line, or None for another line."""
    if not line.startswith("{"):
        return None
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    return dict(fields) if "event" in fields else None


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = printable(text).replace("\n", "\\n")
    return repr(text) if isinstance(value, str) and (" " in text or not text) else text
