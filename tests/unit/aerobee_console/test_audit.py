"""The page of audit logs, and the changes on the overview."""

from __future__ import annotations

from typing import Any

import pytest
from aerobee.audit.v1 import audit_pb2 as pb

from aerobee_console.reading.audit import differences
from aerobee_wire.status import Code, MqError
from support.console.visitor import NAMESRV, NOW_MS, Visitor

HASH = "ab" * 32
LINES = (
    pb.AuditLine(
        number=4, time_ms=NOW_MS - 1_000, event="change", user="ann",
        rpc="AdminService/UpdateTopic",
        address="10.0.0.7:5000", resources=["Topic:orders"], result="OK",
        before='{"topic": "orders", "write_queue_count": 4}',
        after='{"topic": "orders", "write_queue_count": 8}',
    ),
    pb.AuditLine(
        number=3, time_ms=NOW_MS - 2_000, event="rejected", claimed_user="<b>eve</b>",
        rpc="AdminService/DeleteTopic", address="10.0.0.8:5000", result="NO_PERMISSION",
        reason="the signature is not valid", count=7,
    ),
    pb.AuditLine(number=2, time_ms=NOW_MS - 3_000, event="change", certificate="aerobee://p/admin/x",
                 rpc="AdminService/DeleteGroup", resources=["Group:g"]),
)  # fmt: skip


class Logs:
    """Broker "a" has a log. "b" and the name server have none, unless `away` is set."""

    def __init__(self, visitor: Visitor, *lines: pb.AuditLine, older_ms: int = 0) -> None:
        self.lines = lines or LINES
        self.older_ms = older_ms
        self.away: set[str] = set()
        self.requests: list[pb.ListAuditLinesRequest] = []
        visitor.transport.answers["ListAuditLines"] = self

    def __call__(self, address: str, request: pb.ListAuditLinesRequest) -> Any:
        if address in self.away:
            raise MqError(Code.BROKER_UNREACHABLE, f"no answer from {address}")
        self.requests.append(request)
        if address != "a":
            return pb.ListAuditLinesResponse()
        return pb.ListAuditLinesResponse(
            lines=[each for each in self.lines if request.event in ("", each.event)],
            enabled=True, complete_from_ms=self.older_ms, last_number=4, last_hash=HASH,
        )  # fmt: skip


async def test_lines_say_who_changed_what(visitor: Visitor) -> None:
    logs = Logs(visitor)
    page = await visitor.get("/audit")
    assert page.status == 200
    assert "ann 10.0.0.7:5000 UpdateTopic Topic:orders write_queue_count: 4 → 8 OK" in page.words
    assert "rejected 7 times not known claims to be <b>eve</b> 10.0.0.8:5000" in page.words
    assert "<b>eve" not in page.text
    assert "aerobee://p/admin/x DeleteGroup Group:g not known" in page.words
    assert f"4:{HASH}" in page.words and "is damaged" not in page.words
    assert f"Changes of name server {NAMESRV}, broker b at b are not recorded" in page.words
    assert 'rel="next"' not in page.text and len(logs.requests) == 3


async def test_filters_reach_the_servers_and_the_next_page_begins_where_this_one_ends(
    visitor: Visitor,
) -> None:
    logs = Logs(visitor, older_ms=NOW_MS - 4_000)
    page = await visitor.get(
        "/audit?user=ann&rpc=UpdateTopic&result=OK&event=change&resource=Topic:o*&since=1h"
    )
    (asked, *_) = logs.requests
    assert (asked.user, asked.rpc, asked.result) == ("ann", "UpdateTopic", "OK")
    assert (asked.event, asked.resource) == ("change", "Topic:o*")
    assert asked.from_ms == NOW_MS - 3_600_000
    assert f"until={NOW_MS - 4_000}" in page.text and "were not searched" in page.words
    await visitor.get(f"/audit?until={NOW_MS - 4_000}")
    assert logs.requests[-1].to_ms == NOW_MS - 4_000


async def test_damaged_lines_are_no_small_print(visitor: Visitor) -> None:
    Logs(visitor, pb.AuditLine(time_ms=NOW_MS, event="damaged", reason="line 7 follows line 5"))
    page = await visitor.get("/audit")
    assert "1 line is damaged" in page.words and "line 7 follows line 5" in page.words
    assert "state bad" in page.text


async def test_a_server_that_does_not_answer_is_named(visitor: Visitor) -> None:
    Logs(visitor).away = {"b"}
    page = await visitor.get("/audit")
    assert "1 server did not answer" in page.words and "no answer from b" in page.words
    overview = await visitor.get("/")
    assert "broker b at b: no answer from b" in overview.words


async def test_logs_are_not_called_missing_while_a_server_is_silent(visitor: Visitor) -> None:
    Logs(visitor).away = {"a"}
    page = await visitor.get("/audit")
    assert "Not every server has an audit log" in page.words
    assert "No server has an audit log" not in page.words


async def test_without_any_log_nothing_is_called_unchanged(visitor: Visitor) -> None:
    for address in ("/audit", "/"):
        page = await visitor.get(address)
        assert page.status == 200 and "set auditLogPath" in page.words
        assert "No change." not in page.words
    assert "No server has an audit log" in (await visitor.get("/audit")).words


async def test_the_overview_has_changes_only(visitor: Visitor) -> None:
    Logs(visitor)
    page = await visitor.get("/")
    assert "UpdateTopic" in page.words and "DeleteGroup" in page.words
    assert "rejected" not in page.words and 'href="/audit"' in page.text


@pytest.mark.parametrize(
    ("query", "field"), [("event=x", "event"), ("since=yesterday", "since"), ("until=x", "until")]
)
async def test_a_bad_filter_names_its_field(query: str, field: str, visitor: Visitor) -> None:
    page = await visitor.get(f"/audit?{query}")
    assert page.status == 400 and f"{field}: " in page.words


def test_differences_are_bounded() -> None:
    before = {str(number): number for number in range(50)}
    after = {str(number): "x" * 1_000 for number in range(50)}
    found = differences(before, after)
    assert len(found) == 9 and found[-1] == "42 more" and max(map(len, found)) < 200
    assert differences(None, after) == [] and differences(before, before) == []
    assert differences({"a": 1}, {"b": True}) == ["a: 1 → none", "b: false → true"]
