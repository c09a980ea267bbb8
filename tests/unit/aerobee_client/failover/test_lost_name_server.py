"""A client that has several name servers, of which one hangs, refuses, or knows less."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.cluster.namesrv import CALL_TIMEOUT_S, NEXT_S, NamesrvClient
from aerobee_client.errors import BrokerUnreachable, NamesrvUnreachable, RequestTimeout
from aerobee_cluster.name_servers import PERIOD_S, NameServers
from aerobee_wire.rpcs import GET_TOPIC_ROUTE
from aerobee_wire.status import Code, MqError
from support.codes import raises_code
from support.namesrv.stand_in_dns import StandInDns

ADDRESSES = ("a:1", "b:1", "c:1")
REQUEST = namesrv_pb2.GetTopicRouteRequest(topic="orders")
Answer = Callable[[], Any]


class ScriptedTransport:
    """`hangs`: those that answer nothing; `errors`: what others raise. `asked`: in order, with when
    that was; `given_up`: calls that were cancelled."""

    def __init__(self) -> None:
        self.hangs: set[str] = set()
        self.errors: dict[str, MqError] = {}
        self.delay_s = 0.001
        self.asked: list[tuple[str, float]] = []
        self.given_up: list[str] = []

    async def call(self, address: str, rpc: Any, request: Any, *, timeout_s: float) -> Any:
        self.asked.append((address, asyncio.get_running_loop().time()))
        if address in self.hangs:
            try:
                await asyncio.sleep(timeout_s)
            except asyncio.CancelledError:
                self.given_up.append(address)
                raise
            raise RequestTimeout(address, timeout_s)
        await asyncio.sleep(self.delay_s)
        if address in self.errors:
            raise self.errors[address]
        return address


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport()


async def client_of(transport: Any) -> NamesrvClient:
    """It has stayed with the first one."""
    client = NamesrvClient(transport, ADDRESSES)
    transport.hangs = {"b:1", "c:1"}
    assert await client.call(GET_TOPIC_ROUTE, REQUEST) == "a:1"
    await asyncio.sleep(0)  # the others are given up
    transport.hangs = set()
    transport.asked.clear()
    transport.given_up.clear()
    return client


async def test_each_record_of_a_host_name_is_a_name_server(transport: Any) -> None:
    dns = StandInDns(namesrv=["10.0.0.1", "10.0.0.2"])
    addresses = NameServers(["namesrv:1"], dns.resolve, asyncio.get_running_loop().time)
    client = NamesrvClient(transport, addresses)
    transport.hangs = {"10.0.0.1:1"}
    assert await client.call(GET_TOPIC_ROUTE, REQUEST) == "10.0.0.2:1"
    dns.records["namesrv"] = ["10.0.0.3", "10.0.0.4"]
    await asyncio.sleep(PERIOD_S)
    transport.hangs = {"10.0.0.3:1"}
    assert await client.call(GET_TOPIC_ROUTE, REQUEST) == "10.0.0.4:1"


async def test_one_that_hangs_is_not_waited_for(transport: ScriptedTransport) -> None:
    client = await client_of(transport)
    transport.hangs = {"a:1"}
    begin = asyncio.get_running_loop().time()
    assert await client.call(GET_TOPIC_ROUTE, REQUEST) == "b:1"
    await asyncio.sleep(0)
    assert transport.asked == [("a:1", begin), ("b:1", pytest.approx(begin + NEXT_S))]
    assert transport.given_up == ["a:1"]

    transport.asked.clear()
    await client.call(GET_TOPIC_ROUTE, REQUEST)
    assert [address for address, _ in transport.asked] == ["b:1"], "it stays with the other one"


async def test_one_that_refuses_the_connection_is_left_at_once(
    transport: ScriptedTransport,
) -> None:
    client = await client_of(transport)
    transport.errors = {"a:1": BrokerUnreachable("a:1", "refused")}
    begin = asyncio.get_running_loop().time()
    assert await client.call(GET_TOPIC_ROUTE, REQUEST) == "b:1"
    assert asyncio.get_running_loop().time() < begin + NEXT_S


async def test_a_slow_one_may_still_be_the_first_to_answer(transport: ScriptedTransport) -> None:
    client = await client_of(transport)
    transport.hangs, transport.delay_s = {"b:1"}, 1.5 * NEXT_S
    assert await client.call(GET_TOPIC_ROUTE, REQUEST) == "a:1"
    assert [address for address, _ in transport.asked] == ["a:1", "b:1"]


async def test_a_topic_is_unknown_where_all_that_answer_say_so(
    transport: ScriptedTransport,
) -> None:
    client = await client_of(transport)
    unknown = MqError(Code.TOPIC_NOT_EXIST, "no such topic")
    transport.errors = {"a:1": unknown, "b:1": unknown}
    assert await client.call(GET_TOPIC_ROUTE, REQUEST) == "c:1"
    transport.hangs = {"c:1"}
    with raises_code(Code.TOPIC_NOT_EXIST):
        await client.call(GET_TOPIC_ROUTE, REQUEST)


async def test_all_that_hang_are_waited_for_once(transport: ScriptedTransport) -> None:
    client = await client_of(transport)
    transport.hangs = set(ADDRESSES)
    begin = asyncio.get_running_loop().time()
    with pytest.raises(NamesrvUnreachable):
        await client.call(GET_TOPIC_ROUTE, REQUEST)
    took_s = asyncio.get_running_loop().time() - begin
    assert took_s == pytest.approx(CALL_TIMEOUT_S + 2 * NEXT_S)
    assert not transport.given_up


async def test_another_refusal_counts_at_once(transport: ScriptedTransport) -> None:
    client = await client_of(transport)
    transport.hangs = {"b:1"}
    transport.errors = {"a:1": MqError(Code.NO_PERMISSION, "not you")}
    with raises_code(Code.NO_PERMISSION):
        await client.call(GET_TOPIC_ROUTE, REQUEST)
    assert [address for address, _ in transport.asked] == ["a:1"]
