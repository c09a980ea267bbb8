"""Changes by the administration port are in the audit log before they are made."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_chassis.rpc.audit import Audit, Change, ChangeNotAudited, Who
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.admin.calls import SERVICE, AdminCalls, Operator
from aerobee_proxy.v2.admin.needs import CHANGES, NEEDS, resources
from aerobee_proxy.v2.admin.service import DESCRIPTOR
from aerobee_proxy.v2.status import Refused, status
from support.proxy.harness import FakeCall

CHANGING = [each for each in DESCRIPTOR.methods if getattr(pb, each.input_type.name) in CHANGES]
GROUP, TOPIC = d.Resource(name="g", resource_namespace="ns"), d.Resource(name="orders")


class Recorder:
    """An audit log in memory; it may be full. `lines` has changes, and reads of bodies."""

    with_reads = True

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.lines: list[tuple[str, str, list[str]]] = []
        self.results: list[str] = []

    @asynccontextmanager
    async def change_by(
        self, who: Who, path: str, resources: Sequence[str]
    ) -> AsyncIterator[Change]:
        if self.full:
            raise ChangeNotAudited("audit.log", "No space left on device")
        self.lines.append((who.address, path, list(resources)))
        change = Change("CANCELLED")
        try:
            yield change
            change.end("OK")
        finally:
            self.results.append(change.result)

    def read_by(self, who: Who, path: str, resources: Sequence[str]) -> None:
        self.lines.append((who.address, path, list(resources)))


def calls(recorder: Recorder) -> AdminCalls:
    return AdminCalls(None, ProxyCounts(), "prod", cast(Audit, recorder))


def named(rpc: str, outcome: Any, made: list[object]) -> Any:
    """Return a handler of this RPC, which returns or raises the outcome."""

    async def handler(request: Any, operator: Operator) -> Any:
        made.append(request)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    handler.__name__ = re.sub(r"\B(?=[A-Z])", "_", rpc).lower()
    return handler


@pytest.mark.parametrize("method", CHANGING, ids=lambda method: method.name)
async def test_change_without_a_line_is_not_made(method: Any) -> None:
    made: list[object] = []
    request = getattr(pb, method.input_type.name)()
    response = getattr(pb, method.output_type.name)
    handler = named(method.name, response(), made)
    if "status" in response.DESCRIPTOR.fields_by_name:
        answer = await calls(Recorder(full=True)).answered(response, handler)(request, FakeCall())
        assert answer.status.code == Code.INTERNAL_SERVER_ERROR
        assert "No space left" in answer.status.message
    else:
        with pytest.raises(ChangeNotAudited):
            await calls(Recorder(full=True)).failing(handler)(request, FakeCall())
    assert not made
    recorder = Recorder()
    await calls(recorder).failing(handler)(request, FakeCall())
    assert made and [path for _, path, _ in recorder.lines] == [SERVICE + method.name]


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (pb.ResetGroupOffsetResponse(status=status()), "OK"),
        (pb.ResetGroupOffsetResponse(status=status(Code.NOT_FOUND)), "NOT_FOUND"),
        (Refused(Code.BAD_REQUEST, "a time is missing"), "BAD_REQUEST"),
    ],
    ids=["done", "failed", "refused"],
)
async def test_result_of_a_change(outcome: Any, result: str) -> None:
    recorder, request = Recorder(), pb.ResetGroupOffsetRequest(group=GROUP, topic=TOPIC)
    handler = named("ResetGroupOffset", outcome, [])
    await calls(recorder).answered(pb.ResetGroupOffsetResponse, handler)(request, FakeCall())
    assert recorder.lines == [("192.0.2.1:5123", SERVICE + "ResetGroupOffset", ["Group:ns%g"])]
    assert recorder.results == [result]


async def test_reads_of_bodies_have_lines_and_other_reads_have_none() -> None:
    recorder = Recorder()
    for rpc in ("QueryMessage", "GetTopicRoute"):
        (method,) = (each for each in DESCRIPTOR.methods if each.name == rpc)
        request = getattr(pb, method.input_type.name)(topic=TOPIC)
        await calls(recorder).failing(named(rpc, None, []))(request, FakeCall())
    assert [path for _, path, _ in recorder.lines] == [SERVICE + "QueryMessage"]


def test_each_request_has_resources() -> None:
    for made in NEEDS:
        request = made()
        if "client_id" in request.DESCRIPTOR.fields_by_name:
            request.client_id = "host@1"
        assert resources(request, "prod") or made in (
            pb.ListSubscriptionRequest,
            pb.DescribeSubscriptionRequest,
        )
    assert resources(pb.ChangeLogLevelRequest(), "prod") == ["Option:logLevel"]
    stack = pb.PrintThreadStackTraceRequest(group=GROUP, client_id="host@1")
    assert resources(stack, "prod") == ["Client:host@1", "Group:ns%g"]
