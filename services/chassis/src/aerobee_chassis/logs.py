"""Write logs: one JSON object per line on stdout, without secrets and message bodies."""

from __future__ import annotations

import logging
import sys

import structlog
from structlog.typing import EventDict, WrappedLogger

REDACTED_KEYS = frozenset(
    {"authorization", "signature", "secret", "secret_key", "password", "token", "body"}
)
LEVELS = ("debug", "info", "warning", "error")


def redact(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace the values of the keys in REDACTED_KEYS."""
    for key in REDACTED_KEYS & event.keys():
        event[key] = "[redacted]"
    return event


def configure(service: str, level: str = "info") -> None:
    """Configure structlog and the standard library's logging for this process.

    Every line has `timestamp` (UTC, ISO 8601), `level`, `event` and `service`. Raises ValueError
    for a level that is not in LEVELS.
    """
    if level not in LEVELS:
        raise ValueError(f"unknown log level {level!r}: use one of {', '.join(LEVELS)}")
    threshold = getattr(logging, level.upper())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            redact,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stdout),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    # Libraries log through the standard library. Forward their warnings and errors.
    handler = _ForwardToStructlog()
    logging.basicConfig(level=max(threshold, logging.WARNING), handlers=[handler], force=True)


class _ForwardToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger()
        logger.log(
            record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info
        )
