"""Write logs on stdout, without secrets and message bodies.

Each event is one JSON object on a line, or, on a terminal, a line for people.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import structlog
from structlog.dev import ConsoleRenderer, plain_traceback
from structlog.typing import EventDict, Processor, WrappedLogger

from aerobee_chassis.hidden import HiddenValues
from aerobee_wire.access.users import User
from aerobee_wire.printable import printable

REDACTED_KEYS = frozenset(
    {"authorization", "signature", "secret", "secret_key", "password", "token", "body"}
)
# The secrets of this process. Like the configuration of structlog, there is one for each process.
SECRETS = HiddenValues()
LEVELS = ("debug", "info", "warning", "error")
LogFormat = Literal["auto", "json", "console"]
# The width of an event's name for people. structlog pads it to 30, half of a line.
EVENT_WIDTH = 20


def redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace the values of the keys in REDACTED_KEYS, and SECRETS wherever they are."""
    found: EventDict = SECRETS.masked_in(event, REDACTED_KEYS)
    return found


def hide_users(names: Iterable[str], user_of: Callable[[str], User | None]) -> None:
    """Hide the secret keys of users in all lines, and no longer their former ones.

    `user_of` returns the user of a name, or None if there is none any more.
    """
    for name in names:
        user = user_of(name)
        SECRETS.hide(f"user {name}", () if user is None else user.secrets)


def escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Escape control characters in names that clients chose, and in the text of errors."""
    return {
        key: printable(value) if isinstance(value, str) else value for key, value in event.items()
    }


def configure(
    service: str,
    level: str = "info",
    log_format: LogFormat = "auto",
    secrets: Iterable[str] = (),
) -> None:
    """Configure structlog and the standard library's logging for this process.

    No line contains one of the `secrets`.

    Every JSON line has `timestamp` (UTC, ISO 8601), `level`, `event` and `service`. A line for
    people has the time in UTC without its date. The format "auto" is "console" if stdout is a
    terminal, and otherwise "json". Raises ValueError for a level that is not in LEVELS.
    """
    threshold = _threshold(level)
    SECRETS.hide("options", secrets)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            *_rendering(for_people=is_console(log_format, is_terminal=sys.stdout.isatty())),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    # Libraries log through the standard library. Forward their warnings and errors.
    handler = ForwardToStructlog()
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[handler], force=True)


def set_level(level: str) -> None:
    """Change the level of this process's logs. Raises ValueError for a level not in LEVELS.

    Loggers that were bound before keep their level until they are bound again.
    """
    threshold = _threshold(level)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(threshold))
    logging.getLogger().setLevel(max(threshold, logging.WARNING))


def _threshold(level: str) -> int:
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: use one of {', '.join(LEVELS)}")
    return int(getattr(logging, level.upper()))


def is_console(log_format: LogFormat, *, is_terminal: bool) -> bool:
    """Return whether lines are for people."""
    return is_terminal if log_format == "auto" else log_format == "console"


def _rendering(*, for_people: bool) -> Sequence[Processor]:
    """Return the processors that add the time, hide secrets, and format an event as text."""
    if not for_people:
        return (
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact,
            structlog.processors.JSONRenderer(default=str),
        )
    renderer = ConsoleRenderer(
        colors=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        pad_event_to=EVENT_WIDTH,
        exception_formatter=plain_traceback,
    )
    return (
        structlog.processors.TimeStamper(fmt="%H:%M:%SZ", utc=True),
        structlog.processors.format_exc_info,
        redact,
        escape,
        renderer,
    )


class ForwardToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger()
        logger.log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
