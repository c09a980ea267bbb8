"""The RPCs of the administration port: a proxy over two real brokers, no sockets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import pytest
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2 import service_pb2 as s
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_chassis.rpc.services import bind
from aerobee_proxy.v2.admin.messages import MOST_MESSAGES
from aerobee_proxy.v2.admin.service import DESCRIPTOR
from support.clock.polling import until
from support.proxy.harness import FakeCall, Requests
from support.proxy.public_requests import GROUP, TOPIC, receive, settings
from support.proxy.whole_cluster import WholeCluster

A, B = "broker-a", "broker-b"
CONSUMER = "host-7@1@0@abc"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[WholeCluster]:
    cluster = await WholeCluster.begin(tmp_path, (A, B))
    cluster.topic("orders")
    for broker in cluster.brokers.values():
        await broker.group("billing")
    yield cluster
    await cluster.end()
    assert cluster.transport.defects == []


async def ask(cluster: WholeCluster, rpc: str, request: Any) -> Any:
    """The answer to a request, which is OK."""
    answer = await status_of(cluster, rpc, request)
    assert answer.status.code == Code.OK, answer.status
    return answer


async def status_of(cluster: WholeCluster, rpc: str, request: Any) -> Any:
    (method,) = (
        each for each in bind(DESCRIPTOR, cluster.proxy.admin_rpcs).methods if each.name == rpc
    )
    parsed = method.request.FromString(request.SerializeToString())
    return await method.handler(parsed, FakeCall({}))


class Consumer:
    """A push consumer of `billing` with a telemetry stream, open while in `async with`.

    It answers each command with `answer`, without one never.
    """

    def __init__(self, cluster: WholeCluster, answer: d.Status | None = None) -> None:
        self.cluster = cluster
        self.metadata = {"x-mq-client-id": CONSUMER, "x-mq-language": "GO"}
        self.commands: list[s.TelemetryCommand] = []
        self._answer = answer
        self._requests = Requests()
        self._call = FakeCall(self.metadata)

    async def __aenter__(self) -> Self:
        self._requests.put(s.TelemetryCommand(settings=settings()))
        telemetry = self.cluster.proxy.rpcs.telemetry
        self._stream = asyncio.create_task(telemetry(aiter(self._requests), self._call))
        self._answering = asyncio.create_task(self._answers())
        await until(lambda: self._call.written, "the settings")
        return self

    async def __aexit__(self, *error: object) -> None:
        self._requests.end()
        self._answering.cancel()
        await self._stream

    async def _answers(self) -> None:
        seen = 0
        while True:
            await asyncio.sleep(0.01)
            new, seen = self._call.written[seen:], len(self._call.written)
            for command in new:
                kind = command.WhichOneof("command")
                if kind == "settings":
                    continue
                self.commands.append(command)
                if self._answer is None:
                    continue
                nonce = getattr(command, kind).nonce
                if kind == "verify_message_command":
                    result = s.VerifyMessageResult(nonce=nonce)
                    told = s.TelemetryCommand(verify_message_result=result)
                else:
                    trace = s.ThreadStackTrace(nonce=nonce, thread_stack_trace="main: poll")
                    told = s.TelemetryCommand(thread_stack_trace=trace)
                told.status.CopyFrom(self._answer)
                self._requests.put(told)


async def received(cluster: WholeCluster, number: int) -> None:
    """A client gets messages and keeps their leases."""
    found = 0
    while found < number:
        answers = await cluster.ask(
            "ReceiveMessage", receive(), metadata={"x-mq-client-id": CONSUMER}
        )
        found += sum(answer.WhichOneof("content") == "message" for answer in answers)


async def sent(cluster: WholeCluster, *bodies: bytes, **fields: Any) -> list[str]:
    """Send messages by the port of administration; return their ids."""
    return [
        (
            await ask(
                cluster,
                "AdminSendMessage",
                pb.AdminSendMessageRequest(topic=TOPIC, body=body, **fields),
            )
        ).message_id
        for body in bodies
    ]


# ---- topics ----


async def test_topic_has_its_type_and_attributes(cluster: WholeCluster) -> None:
    answer = await ask(cluster, "DescribeTopicStatus", pb.DescribeTopicStatusRequest(topic=TOPIC))
    assert answer.topic_message_type == d.MessageType.NORMAL
    assert dict(answer.tags) == {"message.type": "NORMAL"}


async def test_route_is_the_json_of_rocketmq(cluster: WholeCluster) -> None:
    answer = await ask(cluster, "GetTopicRoute", pb.GetTopicRouteRequest(topic=TOPIC))
    route = json.loads(answer.topic_route_data)
    assert [each["brokerName"] for each in route["queueDatas"]] == [A, B]
    assert route["brokerDatas"][0]["brokerAddrs"] == {"0": A}


async def test_unknown_topic(cluster: WholeCluster) -> None:
    request = pb.DescribeTopicStatusRequest(topic=d.Resource(name="none"))
    answer = await status_of(cluster, "DescribeTopicStatus", request)
    assert answer.status.code == Code.TOPIC_NOT_FOUND


# ---- groups ----


async def test_subscription_of_a_group_that_is_online(cluster: WholeCluster) -> None:
    for request in (
        pb.ListSubscriptionRequest(group=GROUP),
        pb.ListSubscriptionRequest(topic=TOPIC),
        pb.ListSubscriptionRequest(group=GROUP, topic=TOPIC),
    ):
        async with Consumer(cluster):
            await until(lambda: knows_client(cluster), "the client at the brokers")
            answer = await ask(cluster, "ListSubscription", request)
        (info,) = answer.subscription_info
        assert (info.group, info.topic, info.online) == (GROUP, TOPIC, True)
        assert info.expression.expression == "*"
        assert info.message_model == pb.MessageModel.CLUSTERING
        assert info.subscription_consistency
        assert info.last_update_timestamp.seconds


def knows_client(cluster: WholeCluster) -> bool:
    return all(broker.broker.clients.members("billing") for broker in cluster.brokers.values())


async def test_subscription_of_a_group_that_is_offline(cluster: WholeCluster) -> None:
    await sent(cluster, b"1")
    await received(cluster, 1)
    answer = await ask(cluster, "ListSubscription", pb.ListSubscriptionRequest(group=GROUP))
    assert [(each.topic, each.online) for each in answer.subscription_info] == [(TOPIC, False)]


async def test_subscription_needs_a_name(cluster: WholeCluster) -> None:
    for rpc, request in (
        ("ListSubscription", pb.ListSubscriptionRequest()),
        ("DescribeSubscription", pb.DescribeSubscriptionRequest()),
    ):
        assert (await status_of(cluster, rpc, request)).status.code == Code.BAD_REQUEST


async def test_clients_of_a_group(cluster: WholeCluster) -> None:
    async with Consumer(cluster):
        await until(lambda: knows_client(cluster), "the client at the brokers")
        request = pb.ListConsumerConnectionRequest(group=GROUP, topic=TOPIC)
        answer = await ask(cluster, "ListConsumerConnection", request)
        (client,) = answer.client_info
        assert (client.client_id, client.language, client.hostname, client.egress_ip) == (
            CONSUMER,
            "GO",
            "host-7",
            "192.0.2.1",
        )
        described = await ask(
            cluster, "DescribeSubscription", pb.DescribeSubscriptionRequest(group=GROUP)
        )
        (info,) = described.client_subscription_info
        assert info.client_info == client
        assert info.subscription_info.topic == TOPIC
        running = await ask(
            cluster,
            "GetConsumerRunningInfo",
            pb.GetConsumerRunningInfoRequest(group=GROUP, client_id=CONSUMER),
        )
        found = running.consumer_running_info
        assert found.properties["clientId"] == CONSUMER
        assert found.subscriptions["orders"].expression == "*"


async def test_accumulation_counts_what_is_leased_and_what_waits(cluster: WholeCluster) -> None:
    await sent(cluster, *(str(n).encode() for n in range(5)))
    await received(cluster, 5)
    await sent(cluster, b"later", b"later")
    await asyncio.sleep(3)
    request = pb.DescribeGroupAccumulationRequest(group=GROUP)
    answer = await ask(cluster, "DescribeGroupAccumulation", request)
    total = answer.accumulation
    assert (total.inflight_messages, total.ready_messages, total.accumulation) == (5, 2, 7)
    assert total.deliver_delay_time.seconds >= 3
    assert answer.topic_accumulation["orders"] == total
    request.topics.append(d.Resource(name="others"))
    other = await ask(cluster, "DescribeGroupAccumulation", request)
    assert other.accumulation.accumulation == 0


async def test_missing_broker_is_no_smaller_number(cluster: WholeCluster) -> None:
    await sent(cluster, b"1", b"2")
    await received(cluster, 2)
    cluster.transport.away.add(B)
    for rpc, request in (
        ("DescribeGroupAccumulation", pb.DescribeGroupAccumulationRequest(group=GROUP)),
        ("QueryMessage", pb.ListMessageRequest(topic=TOPIC)),
        ("ListConsumerConnection", pb.ListConsumerConnectionRequest(group=GROUP)),
    ):
        assert (await status_of(cluster, rpc, request)).status.code == Code.PROXY_TIMEOUT, rpc


async def test_time_span_of_each_queue(cluster: WholeCluster) -> None:
    await sent(cluster, b"1", b"2", b"3", b"4")
    await received(cluster, 4)
    answer = await ask(cluster, "QueryTimeSpan", pb.QueryTimeSpanRequest(group=GROUP))
    spans = [each for each in answer.queue_time_span_list if each.message_queue.topic == TOPIC]
    assert {each.message_queue.broker.name for each in spans} == {A, B}
    assert all(0 < each.min_timestamp <= each.max_timestamp for each in spans)


async def test_reset_moves_a_group_on_all_brokers(cluster: WholeCluster) -> None:
    await sent(cluster, *(str(n).encode() for n in range(4)))
    request = pb.ResetGroupOffsetRequest(group=GROUP, topic=TOPIC)
    assert (await status_of(cluster, "ResetGroupOffset", request)).status.code == Code.BAD_REQUEST
    await asyncio.sleep(1)
    request.reset_timestamp.FromMilliseconds(cluster.clock.now_ms())
    await ask(cluster, "ResetGroupOffset", request)
    found = await ask(
        cluster, "DescribeGroupAccumulation", pb.DescribeGroupAccumulationRequest(group=GROUP)
    )
    assert found.accumulation.accumulation == 0
    request.reset_timestamp.FromMilliseconds(1)
    await ask(cluster, "ResetGroupOffset", request)
    found = await ask(
        cluster, "DescribeGroupAccumulation", pb.DescribeGroupAccumulationRequest(group=GROUP)
    )
    assert found.accumulation.accumulation == 4


async def test_deleted_subscription_has_no_offset(cluster: WholeCluster) -> None:
    await sent(cluster, b"1")
    await received(cluster, 1)
    request = pb.DeleteSubscriptionRequest(group=GROUP, topic=TOPIC)
    async with Consumer(cluster):
        await until(lambda: knows_client(cluster), "the client at the brokers")
        refused = await status_of(cluster, "DeleteSubscription", request)
        assert refused.status.code == Code.BAD_REQUEST
        await cluster.ask(
            "NotifyClientTermination",
            s.NotifyClientTerminationRequest(group=GROUP),
            metadata={"x-mq-client-id": CONSUMER},
        )
    await asyncio.sleep(30)  # until the poll that a broker holds has ended
    await ask(cluster, "DeleteSubscription", request)
    again = await status_of(cluster, "DeleteSubscription", request)
    assert again.status.code == Code.NOT_FOUND
    listed = await ask(cluster, "ListSubscription", pb.ListSubscriptionRequest(group=GROUP))
    assert not listed.subscription_info


async def test_unknown_group(cluster: WholeCluster) -> None:
    request = pb.DescribeGroupAccumulationRequest(group=d.Resource(name="none"))
    answer = await status_of(cluster, "DescribeGroupAccumulation", request)
    assert answer.status.code == Code.CONSUMER_GROUP_NOT_FOUND


# ---- messages ----


async def test_message_is_found_by_id_key_and_tag(cluster: WholeCluster) -> None:
    (first, _) = await sent(cluster, b"one", b"two", tag="a", key="k1 k2")
    await sent(cluster, b"three", tag="b")
    for condition, bodies in (
        ({"message_id": first}, {b"one"}),
        ({"message_key": "k2"}, {b"one", b"two"}),
        ({"subscription": "b"}, {b"three"}),
        ({"broker_name": A, "queue_id": 0}, None),
        ({}, {b"one", b"two", b"three"}),
    ):
        request = pb.ListMessageRequest(topic=TOPIC, **condition)
        answer = await ask(cluster, "QueryMessage", request)
        found = {message.body for message in answer.messages}
        assert bodies is None or found == bodies, condition
        assert not answer.scroll_id


async def test_scroll_returns_each_message_once(cluster: WholeCluster) -> None:
    bodies = [str(n).encode() for n in range(9)]
    await sent(cluster, *bodies)
    found, answers, scroll_id = [], 0, ""
    while answers == 0 or scroll_id:
        request = pb.ListMessageRequest(topic=TOPIC, page_size=2, scroll_id=scroll_id or None)
        answer = await ask(cluster, "QueryMessage", request)
        found += [message.body for message in answer.messages]
        assert len(answer.messages) <= 2
        scroll_id, answers = answer.scroll_id, answers + 1
    assert sorted(found) == bodies and answers >= 5


async def test_pages_are_parts_of_one_list(cluster: WholeCluster) -> None:
    await sent(cluster, *(str(n).encode() for n in range(5)))
    pages = [
        await ask(
            cluster,
            "QueryMessage",
            pb.ListMessageRequest(topic=TOPIC, page_num=number, page_size=3),
        )
        for number in (1, 2)
    ]
    bodies = [message.body for page in pages for message in page.messages]
    assert sorted(bodies) == [b"0", b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    "fields",
    [
        {"page_size": MOST_MESSAGES + 1},
        {"page_size": 1_000, "page_num": 12},
        {"scroll_id": "x"},
        {"scroll_id": "e30"},
        {"scroll_id": "WzFd"},
        {"broker_name": "none"},
        {"queue_id": 99},
    ],
)
async def test_question_out_of_range(cluster: WholeCluster, fields: dict[str, Any]) -> None:
    request = pb.ListMessageRequest(topic=TOPIC, **fields)
    assert (await status_of(cluster, "QueryMessage", request)).status.code == Code.BAD_REQUEST


async def test_sent_message_is_checked_like_that_of_a_client(cluster: WholeCluster) -> None:
    request = pb.AdminSendMessageRequest(topic=TOPIC)
    answer = await status_of(cluster, "AdminSendMessage", request)
    assert answer.status.code == Code.MESSAGE_BODY_EMPTY
    assert len(cluster.proxy.sessions) == 0


# ---- one client ----


async def test_client_prints_its_threads(cluster: WholeCluster) -> None:
    request = pb.PrintThreadStackTraceRequest(group=GROUP, client_id=CONSUMER)
    async with Consumer(cluster, d.Status(code=Code.OK)):
        answer = await ask(cluster, "PrintThreadStackTrace", request)
        assert answer.thread_stack_trace == "main: poll"
    async with Consumer(cluster, d.Status(code=Code.NOT_IMPLEMENTED)):
        told = await status_of(cluster, "PrintThreadStackTrace", request)
        assert told.status.code == Code.NOT_IMPLEMENTED


async def test_client_consumes_a_message_for_a_trial(cluster: WholeCluster) -> None:
    (message_id,) = await sent(cluster, b"try me")
    request = pb.VerifyMessageRequest(
        group=GROUP, topic=TOPIC, client_id=CONSUMER, message_id=message_id
    )
    async with Consumer(cluster, d.Status(code=Code.FAILED_TO_CONSUME_MESSAGE)) as consumer:
        told = await status_of(cluster, "VerifyMessage", request)
        assert told.status.code == Code.FAILED_TO_CONSUME_MESSAGE
        (command,) = consumer.commands
        assert command.verify_message_command.message.body == b"try me"
        request.message_id = "none"
        none = await status_of(cluster, "VerifyMessage", request)
        assert none.status.code == Code.MESSAGE_NOT_FOUND


async def test_command_to_a_client_that_is_silent_or_elsewhere(cluster: WholeCluster) -> None:
    request = pb.PrintThreadStackTraceRequest(group=GROUP, client_id=CONSUMER)
    assert (
        await status_of(cluster, "PrintThreadStackTrace", request)
    ).status.code == Code.NOT_FOUND
    async with Consumer(cluster):
        await until(lambda: knows_client(cluster), "the client at the brokers")
        silent = await status_of(cluster, "PrintThreadStackTrace", request)
        assert silent.status.code == Code.REQUEST_TIMEOUT
        request.group.name = "another"
        other = await status_of(cluster, "PrintThreadStackTrace", request)
        assert other.status.code == Code.NOT_FOUND
        request.group.name = "billing"
        elsewhere = await status_of(cluster.another_proxy(), "PrintThreadStackTrace", request)
        assert elsewhere.status.code == Code.NOT_FOUND
        assert ":8081" in elsewhere.status.message, "it names the proxy"


async def test_answer_of_another_client_does_not_count(cluster: WholeCluster) -> None:
    request = pb.PrintThreadStackTraceRequest(group=GROUP, client_id=CONSUMER)
    async with Consumer(cluster) as consumer:
        asked = asyncio.create_task(status_of(cluster, "PrintThreadStackTrace", request))
        await until(lambda: consumer.commands, "the command")
        forged = Requests()
        nonce = consumer.commands[0].print_thread_stack_trace_command.nonce
        trace = s.ThreadStackTrace(nonce=nonce, thread_stack_trace="forged")
        forged.put(s.TelemetryCommand(thread_stack_trace=trace))
        forged.end()
        other = FakeCall({"x-mq-client-id": "another@1@0@abc"})
        await cluster.proxy.rpcs.telemetry(aiter(forged), other)
        assert (await asked).status.code == Code.REQUEST_TIMEOUT


# ---- the process ----


async def test_figures_of_the_proxy(cluster: WholeCluster) -> None:
    cluster.proxy.rates.sample()
    await sent(cluster, b"1", b"2", b"3", b"4")
    await asyncio.sleep(2)
    cluster.proxy.rates.sample()
    async with Consumer(cluster):
        found = await ask(cluster, "GetProxyRuntimeStats", pb.GetProxyRuntimeStatsRequest())
    assert found.in_tps == pytest.approx(2, rel=0.1)
    assert (found.connections, found.producers, found.consumers) == (1, 0, 1)
    assert found.proxy_name.endswith(":8081") and found.version


async def test_log_level_is_an_option_at_run_time(cluster: WholeCluster) -> None:
    level = pb.ChangeLogLevelRequest.ERROR
    answer = await status_of(cluster, "ChangeLogLevel", pb.ChangeLogLevelRequest(level=level))
    assert "error" in answer.remark
    assert cluster.proxy.options.log_level == "error"
    await status_of(
        cluster, "ChangeLogLevel", pb.ChangeLogLevelRequest(level=pb.ChangeLogLevelRequest.INFO)
    )
