"""Handle the RPC that lists the lines of an audit log, on name server and broker alike.

Codes: those of the contract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from aerobee.audit.v1 import audit_pb2 as pb

from aerobee_wire.audit import AuditPage, AuditQuery
from aerobee_wire.status import invalid_parameter

PAGE_SIZE, MAX_PAGE_SIZE = 100, 500

# Fields of a message that are JSON in it, and objects in the log.
_STATES = ("before", "after")
_FIELDS = frozenset(pb.AuditLine.DESCRIPTOR.fields_by_name) - {"time_ms", *_STATES}


class AuditReader(Protocol):
    """Read the audit log of this process."""

    async def page(self, query: AuditQuery) -> AuditPage: ...


class AuditHandlers:
    """Serve the audit log of this process. `reader` is None if it does not write one."""

    def __init__(self, reader: AuditReader | None) -> None:
        self._reader = reader

    async def list_audit_lines(
        self, request: pb.ListAuditLinesRequest, call: object
    ) -> pb.ListAuditLinesResponse:
        query = _query(request)
        if self._reader is None:
            return pb.ListAuditLinesResponse()
        page = await self._reader.page(query)
        return pb.ListAuditLinesResponse(
            lines=map(to_line, page.records),
            complete_from_ms=page.complete_from_ms,
            enabled=True,
            last_number=page.last.number,
            last_hash=page.last.hash,
        )


def to_line(record: Mapping[str, Any]) -> pb.AuditLine:
    """Return the message for the fields of a line. Fields of a newer version are left out."""
    line = pb.AuditLine(
        time_ms=record["timestamp_ms"],
        **{name: value for name, value in record.items() if name in _FIELDS},
    )
    for name in _STATES:
        if name in record:
            setattr(line, name, json.dumps(record[name]))
    return line


def _query(request: pb.ListAuditLinesRequest) -> AuditQuery:
    if not 0 <= request.page_size <= MAX_PAGE_SIZE:
        problem = f"invalid page size {request.page_size}: use 1 to {MAX_PAGE_SIZE}"
        raise invalid_parameter(problem, about="page_size")
    for name in ("from_ms", "to_ms"):
        if getattr(request, name) < 0:
            problem = f"invalid time {getattr(request, name)}: use milliseconds since the epoch"
            raise invalid_parameter(problem, about=name)
    return AuditQuery(
        request.page_size or PAGE_SIZE,
        request.from_ms,
        request.to_ms,
        event=request.event,
        user=request.user,
        rpc=request.rpc,
        resource=request.resource,
        result=request.result,
    )
