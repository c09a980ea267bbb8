"""What processes of a simulation log: seen by the test, and not written."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

import structlog

OnLog = Callable[[str, Mapping[str, Any]], None]


@contextlib.contextmanager
def watched_logs(on_log: OnLog) -> Iterator[None]:
    """`on_log` is called with each event and its fields; `exception`: the traceback, where there is
    one."""

    def look(_: object, __: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        found = fields.pop("exc_info", None)
        if isinstance(found, BaseException):
            fields["exception"] = "".join(traceback.format_exception(found))
        elif found:
            fields["exception"] = traceback.format_exc()
        on_log(str(fields.pop("event")), fields)
        raise structlog.DropEvent

    processors = structlog.get_config()["processors"]
    before = list(processors)
    processors[:] = [look]
    structlog.configure(processors=processors)
    try:
        yield
    finally:
        processors[:] = before
        structlog.configure(processors=processors)
