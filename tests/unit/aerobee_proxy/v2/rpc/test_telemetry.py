"""The telemetry stream: settings answered and repeated, commands in line, refusals that end it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog
from aerobee.broker.v1.admin_pb2 import GetGroupResponse, GroupConfig
from apache.rocketmq.v2 import definition_pb2 as d
from apache.rocketmq.v2.service_pb2 import TelemetryCommand

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import Refused
from aerobee_proxy.v2.rpc.clients import telemetry
from aerobee_proxy.v2.rpc.clients.telemetry import Telemetry
from aerobee_wire.status import Code, MqError
from support.clock.polling import until
from support.proxy.harness import CLIENT_ID, Cluster, FakeCall, Requests


@pytest.fixture
def parts() -> Parts:
    return Cluster().parts()


def producer() -> TelemetryCommand:
    return TelemetryCommand(
        settings=d.Settings(
            client_type=d.ClientType.PRODUCER,
            publishing=d.Publishing(topics=[d.Resource(name="orders")]),
        )
    )


def consumer(expression: str = "*") -> TelemetryCommand:
    entry = d.SubscriptionEntry(
        topic=d.Resource(name="orders"),
        expression=d.FilterExpression(type=d.FilterType.TAG, expression=expression),
    )
    return TelemetryCommand(
        settings=d.Settings(
            client_type=d.ClientType.PUSH_CONSUMER,
            subscription=d.Subscription(group=d.Resource(name="g"), subscriptions=[entry]),
        )
    )


class Stream:
    """One telemetry stream of a client, open while in `with`."""

    def __init__(
        self, parts: Parts, client_id: str = CLIENT_ID, handlers: Telemetry | None = None
    ) -> None:
        self.requests = Requests()
        self.call = FakeCall(metadata={"x-mq-client-id": client_id})
        self.task = asyncio.create_task(
            (handlers or Telemetry(parts)).telemetry(aiter(self.requests), self.call)
        )

    async def tell(self, command: TelemetryCommand) -> TelemetryCommand:
        """The answer."""
        before = len(self.call.written)
        self.requests.put(command)
        await until(lambda: len(self.call.written) > before or self.task.done(), "an answer")
        if self.task.done():
            self.task.result()
        answer = self.call.written[before]
        assert isinstance(answer, TelemetryCommand)
        return answer

    async def end(self) -> None:
        self.requests.end()
        await self.task


async def test_settings_are_answered_with_status_ok(parts: Parts) -> None:
    stream = Stream(parts)
    answer = await stream.tell(producer())
    assert answer.status.code == d.Code.OK
    assert answer.settings.publishing.max_body_size == 4 * 1024 * 1024
    answer = await stream.tell(consumer())
    assert answer.settings.backoff_policy.max_attempts == 17
    await stream.end()


async def test_the_answer_is_repeated(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "REPEAT_AFTER_S", 0.01)
    stream = Stream(parts)
    answer = await stream.tell(producer())
    await until(lambda: len(stream.call.written) == 2, "the answer again")
    assert stream.call.written[1] == answer
    await stream.end()


async def test_a_client_may_hold_several_streams(parts: Parts) -> None:
    one, two = Stream(parts), Stream(parts)
    await one.tell(producer())
    await two.tell(producer())
    session = parts.sessions.get(CLIENT_ID)
    assert session is not None and len(session.streams) == 2
    await one.end()
    assert len(session.streams) == 1 and parts.sessions.producers_of("orders") == [session]
    await two.end()
    assert not session.streams


async def test_other_commands_are_let_be(parts: Parts) -> None:
    stream = Stream(parts)
    stream.requests.put(TelemetryCommand())
    answer = await stream.tell(producer())
    assert answer.HasField("settings") and len(stream.call.written) == 1
    await stream.end()


async def test_settings_without_a_kind_end_the_stream(parts: Parts) -> None:
    stream = Stream(parts)
    with pytest.raises(Refused, match="neither"):
        await stream.tell(TelemetryCommand(settings=d.Settings()))
    session = parts.sessions.get(CLIENT_ID)
    assert session is not None and not session.streams


async def test_settings_are_answered_while_no_broker_answers(parts: Parts) -> None:
    cluster = Cluster()
    cluster.transport.answers.clear()
    stream = Stream(cluster.parts())
    asked = consumer()
    asked.settings.client_type = d.ClientType.SIMPLE_CONSUMER
    assert (await stream.tell(asked)).status.code == d.Code.OK
    await stream.end()


async def test_a_push_consumer_is_answered_once_it_is_known_whether_its_group_is_ordered() -> None:
    """It heeds the first answer only."""
    cluster = Cluster()
    cluster.transport.answers["GetGroup"] = MqError(Code.REQUEST_TIMEOUT, "no answer")
    parts = cluster.parts()
    stream = Stream(parts)
    stream.requests.put(consumer())
    await asyncio.sleep(5)
    assert not stream.call.written
    session = parts.sessions.get(CLIENT_ID)
    assert session is not None and session.consumer_group == "g"
    group = GroupConfig(consumer_group="g", consume_message_orderly=True)
    cluster.transport.answers["GetGroup"] = GetGroupResponse(group=group)
    await until(lambda: bool(stream.call.written), "the answer")
    assert stream.call.written[0].settings.subscription.fifo
    await stream.end()


async def test_only_the_last_settings_are_answered_later() -> None:
    cluster = Cluster()
    cluster.transport.answers["GetGroup"] = MqError(Code.REQUEST_TIMEOUT, "no answer")
    stream = Stream(cluster.parts())
    stream.requests.put(consumer("a"))
    await asyncio.sleep(0.5)
    stream.requests.put(consumer("b"))
    await asyncio.sleep(5)
    cluster.transport.answers["GetGroup"] = GetGroupResponse(group=GroupConfig())
    await asyncio.sleep(telemetry.ASK_AGAIN_S + telemetry.REPEAT_AFTER_S)
    wanted = [one.settings.subscription.subscriptions[0] for one in stream.call.written]
    assert [one.expression.expression for one in wanted] == ["b", "b"]
    await stream.end()


async def test_who_says_its_last_word_is_still_answered(parts: Parts) -> None:
    stream = Stream(parts)
    stream.requests.put(producer())
    await stream.end()
    assert [one.status.code for one in stream.call.written] == [d.Code.OK]


async def test_members_that_subscribe_differently_are_told_to_the_operator(parts: Parts) -> None:
    one, two = Stream(parts), Stream(parts, "another")
    with structlog.testing.capture_logs() as logs:
        await one.tell(consumer("a"))
        assert not logs
        await two.tell(consumer("b"))
    (line,) = [log for log in logs if log["log_level"] == "warning"]
    assert (line["group"], line["topic"], line["wanted"]) == ("g", "orders", ["a", "b"])
    assert parts.counts.subscription_conflicts == 1
    await one.end()
    await two.end()


async def test_a_conflict_that_lasts_is_told_once_a_minute() -> None:
    cluster = Cluster()
    parts = cluster.parts()
    handlers = Telemetry(parts)
    one, two = Stream(parts, handlers=handlers), Stream(parts, "another", handlers=handlers)
    with structlog.testing.capture_logs() as logs:
        await one.tell(consumer("a"))
        for _ in range(5):
            await two.tell(consumer("b"))
        assert len(logs) == 1
        cluster.clock.advance(telemetry.TELL_AGAIN_MS)
        await two.tell(consumer("b"))
        assert len(logs) == 2
    assert parts.counts.subscription_conflicts == 6
    await one.end()
    await two.end()


async def test_commands_that_wait_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    command = producer()
    size = command.ByteSize()
    monkeypatch.setattr(telemetry, "MAX_WAITING_BYTES", 3 * size)
    call = FakeCall()
    stream = telemetry.TelemetryStream(call)
    for _ in range(5):
        stream.offer(command)
    writer = asyncio.create_task(stream.write())
    await until(lambda: len(call.written) == 3, "those that fit")
    for _ in range(4):
        stream.offer(command)
    await until(lambda: len(call.written) == 6, "as many again, once those were read")
    monkeypatch.setattr(telemetry, "MAX_WAITING_BYTES", 1)
    stream.offer(command)
    await until(lambda: len(call.written) == 7, "one that is larger than all together may be")
    writer.cancel()


async def test_settings_beyond_all_measure_are_refused(parts: Parts) -> None:
    command = producer()
    command.settings.publishing.topics.extend(
        d.Resource(name=f"topic_with_a_long_name_{number}") for number in range(9_000)
    )
    stream = Stream(parts)
    with pytest.raises(Refused, match="bytes"):
        await stream.tell(command)


async def test_a_client_that_does_not_read_costs_a_bounded_line(parts: Parts) -> None:
    call: Any = FakeCall()
    stream = telemetry.TelemetryStream(call)
    with structlog.testing.capture_logs() as logs:
        for _ in range(telemetry.MAX_WAITING + 1):
            stream.offer(producer())
    assert [line["event"] for line in logs] == ["client does not read its commands"]


async def test_only_the_last_answer_is_repeated(parts: Parts) -> None:
    stream = Stream(parts)
    first = await stream.tell(producer())
    last = await stream.tell(consumer())
    await asyncio.sleep(2 * telemetry.REPEAT_AFTER_S)
    assert stream.call.written == [first, last, last]
    await stream.end()
