"""Many calls at once to a service that has just started, and has not seen a request yet."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from aerobee_chassis.rpc.in_flight import WAIT_S
from support.chassis.http2 import burst
from support.processes.service import (
    ServiceProcess,
    broker_process,
    namesrv_process,
    proxy_process,
)

CALLS = 2_000


async def served(
    start: Callable[[], AbstractContextManager[ServiceProcess]], path: str, message: bytes
) -> None:
    """Makes bursts, each to a new process, until one was served as a whole.

    A call waits for at most WAIT_S. So only a burst that took less time must be served.
    """
    for _ in range(5):
        with start() as process:
            began_s = time.monotonic()
            answers = await burst(process.address, path, message, CALLS)
            took_s = time.monotonic() - began_s
        if None not in answers:
            return
        assert took_s >= WAIT_S, f"{answers.count(None)} calls were refused"
    pytest.fail(f"the last of five bursts took {took_s:.1f} s")


async def test_name_server_answers_each_call_of_a_burst(tmp_path: Path) -> None:
    path = "/aerobee.namesrv.v1.NamesrvService/ListTopics"
    message = namesrv_pb2.ListTopicsRequest().SerializeToString()
    await served(lambda: namesrv_process(tmp_path), path, message)


async def test_broker_answers_each_call_of_a_burst(tmp_path: Path) -> None:
    path = "/aerobee.broker.v1.AdminService/GetTopic"
    message = admin_pb2.GetTopicRequest(topic="TBW102").SerializeToString()
    await served(lambda: broker_process(tmp_path), path, message)


async def test_proxy_answers_each_call_of_a_burst(tmp_path: Path) -> None:
    with namesrv_process(tmp_path) as namesrv, proxy_process(namesrv.address) as proxy:
        path = "/apache.rocketmq.v2.MessagingService/QueryRoute"
        message = s.QueryRouteRequest(topic=d.Resource(name="orders")).SerializeToString()
        answers = await burst(proxy.address, path, message, CALLS)
        codes = {s.QueryRouteResponse.FromString(each or b"").status.code for each in answers}
        assert len(codes) == 1 and d.Code.TOO_MANY_REQUESTS not in codes
