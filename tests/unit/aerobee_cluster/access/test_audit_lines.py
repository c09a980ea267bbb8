"""The RPC of audit logs: fields of lines, refused requests, a server without a log."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aerobee.audit.v1 import audit_pb2 as pb

from aerobee_cluster.access.audit_lines import AuditHandlers
from aerobee_wire.audit import AuditPage, AuditQuery, Link
from aerobee_wire.status import Code
from support.codes import raises_code


class Reader:
    def __init__(self, *records: dict[str, Any]) -> None:
        self._records = list(records)
        self.query: AuditQuery | None = None

    async def page(self, query: AuditQuery) -> AuditPage:
        self.query = query
        return AuditPage(self._records, 7, Link(9, "hash"))


async def test_line_has_its_fields() -> None:
    record = {
        "timestamp_ms": 5,
        "number": 3,
        "event": "change",
        "resources": ["Topic:a"],
        "before": {"queues": 4},
        "count": 2,
        "previous": "is not sent",
        "from_a_newer_version": 1,
    }
    reader = Reader(record)
    request = pb.ListAuditLinesRequest(from_ms=1, user="ann", resource="Topic:*")
    answer = await AuditHandlers(reader).list_audit_lines(request, None)
    (line,) = answer.lines
    assert (line.time_ms, line.number, list(line.resources)) == (5, 3, ["Topic:a"])
    assert json.loads(line.before) == {"queues": 4}
    assert (line.after, line.count) == ("", 2)
    assert (answer.enabled, answer.complete_from_ms) == (True, 7)
    assert (answer.last_number, answer.last_hash) == (9, "hash")
    assert reader.query == AuditQuery(100, 1, user="ann", resource="Topic:*")


async def test_server_without_a_log_says_so() -> None:
    answer = await AuditHandlers(None).list_audit_lines(pb.ListAuditLinesRequest(), None)
    assert not answer.enabled


@pytest.mark.parametrize("field", ["page_size", "from_ms", "to_ms"])
async def test_invalid_numbers_are_refused(field: str) -> None:
    with raises_code(Code.INVALID_PARAMETER, field):
        given: Any = {field: -1}
        request = pb.ListAuditLinesRequest(**given)
        await AuditHandlers(Reader()).list_audit_lines(request, None)
