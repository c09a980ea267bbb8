"""Pages of several audit logs: merged by time, whole, and with the servers that have none."""

from __future__ import annotations

from typing import Any

from aerobee.audit.v1 import audit_pb2 as pb

from aerobee_client import AsyncAdminClient
from aerobee_wire.status import Code, MqError
from support.client.memory import NAMESRV, MemoryCluster
from support.codes import raises_code

A, B = "10.0.0.11:10911", "10.0.0.12:10911"


class Logs:
    """Logs of servers, by address: the times of their lines."""

    def __init__(self, **times: list[int]) -> None:
        self.times = {A: times["a"], B: times["b"], NAMESRV: times["n"]}

    def __call__(self, address: str, request: pb.ListAuditLinesRequest) -> Any:
        """Answer as a server does that ends each page after `page_size` lines."""
        times = sorted(self.times[address], reverse=True)
        times = [time for time in times if not request.to_ms or time < request.to_ms]
        found = times[: request.page_size]
        while len(found) < len(times) and times[len(found)] == found[-1]:
            found.append(found[-1])
        more = len(found) < len(times)
        return pb.ListAuditLinesResponse(
            lines=[pb.AuditLine(time_ms=time, before='{"queues": 4}') for time in found],
            complete_from_ms=found[-1] if more else 0,
            enabled=True,
            last_number=len(self.times[address]),
            last_hash="h",
        )


async def test_pages_of_all_servers_have_each_line_once(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    logs = Logs(a=[*range(1, 30)], b=[5, 5, 5, 200], n=[7, 100, 101, 102])
    cluster.answers["ListAuditLines"] = logs
    found, end = [], 0
    while True:
        page = await admin.audit_page(limit=4, end_timestamp_ms=end)
        assert not page.unanswered and not page.without_log
        found += [line.timestamp_ms for line in page.lines]
        if page.complete_from_ms is None:
            break
        end = page.complete_from_ms
    assert found == sorted((time for times in logs.times.values() for time in times), reverse=True)
    assert page.last[f"broker b at {B}"] == (4, "h")
    assert page.lines[0].before == {"queues": 4}
    assert page.lines[0].count == 1


async def test_servers_without_a_log_and_without_an_answer_are_named(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    logs = Logs(a=[1], b=[], n=[])

    def answer(address: str, request: Any) -> Any:
        if address == A:
            return logs(address, request)
        if address == B:
            raise MqError(Code.SERVICE_NOT_AVAILABLE, "its store opens")
        return pb.ListAuditLinesResponse()

    cluster.answers["ListAuditLines"] = answer
    page = await admin.audit_page()
    assert [line.server for line in page.lines] == [f"broker a at {A}"]
    assert page.without_log == (f"name server {NAMESRV}",)
    assert page.unanswered == {f"broker b at {B}": "its store opens"}
    for server in ("a", A):
        assert len((await admin.audit_page(server=server)).lines) == 1
    assert (await admin.audit_page(server=NAMESRV)).without_log
    with raises_code(Code.SERVICE_NOT_AVAILABLE):
        await admin.audit_page(server="b")
