"""Many calls at once to a service that has just started, and has not seen a request yet."""

from __future__ import annotations

from pathlib import Path

from aerobee.broker.v1 import admin_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s

from support.chassis.http2 import burst
from support.processes.service import broker_process, namesrv_process, proxy_process

CALLS = 2_000


async def test_name_server_answers_each_call_of_a_burst(tmp_path: Path) -> None:
    with namesrv_process(tmp_path) as namesrv:
        path = "/aerobee.namesrv.v1.NamesrvService/ListTopics"
        message = namesrv_pb2.ListTopicsRequest().SerializeToString()
        answers = await burst(namesrv.address, path, message, CALLS)
        assert answers.count(None) == 0


async def test_broker_answers_each_call_of_a_burst(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        path = "/aerobee.broker.v1.AdminService/GetTopic"
        message = admin_pb2.GetTopicRequest(topic="TBW102").SerializeToString()
        answers = await burst(broker.address, path, message, CALLS)
        assert answers.count(None) == 0


async def test_proxy_answers_each_call_of_a_burst(tmp_path: Path) -> None:
    with namesrv_process(tmp_path) as namesrv, proxy_process(namesrv.address) as proxy:
        path = "/apache.rocketmq.v2.MessagingService/QueryRoute"
        message = s.QueryRouteRequest(topic=d.Resource(name="orders")).SerializeToString()
        answers = await burst(proxy.address, path, message, CALLS)
        codes = {s.QueryRouteResponse.FromString(each or b"").status.code for each in answers}
        assert len(codes) == 1 and d.Code.TOO_MANY_REQUESTS not in codes
