"""The telemetry stream: settings answered and repeated, queued commands, refusals that end it."""

from __future__ import annotations

import asyncio

import pytest
import structlog
from aerobee.broker.v1.admin_pb2 import GetGroupResponse, GroupConfig
from aerobee_foreign.apache.rocketmq.v2 import definition_pb2 as d
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import TelemetryCommand

from aerobee_proxy.proxy import Proxy
from aerobee_proxy.v2.rpc import telemetry
from aerobee_proxy.v2.status import Refused
from aerobee_wire.rpcs import HEARTBEAT
from aerobee_wire.status import Code, MqError
from support.clock.polling import until
from support.proxy.harness import CLIENT_ID, Cluster, FakeCall, Requests, route


@pytest.fixture
def proxy() -> Proxy:
    return Cluster().proxy()


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
    """One telemetry stream of a client, open until `end`."""

    def __init__(self, proxy: Proxy, client_id: str = CLIENT_ID) -> None:
        self.requests = Requests()
        self.call = FakeCall(metadata={"x-mq-client-id": client_id})
        self.task = asyncio.create_task(proxy.rpcs.telemetry(aiter(self.requests), self.call))

    async def send(self, command: TelemetryCommand) -> TelemetryCommand:
        """Sends a command; returns the answer."""
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


async def test_settings_are_answered_with_status_ok(proxy: Proxy) -> None:
    stream = Stream(proxy)
    answer = await stream.send(producer())
    assert answer.status.code == d.Code.OK
    assert answer.settings.publishing.max_body_size == 4 * 1024 * 1024
    answer = await stream.send(consumer())
    assert answer.settings.backoff_policy.max_attempts == 17
    await stream.end()


async def test_answer_is_repeated(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "REPEAT_AFTER_S", 0.01)
    stream = Stream(proxy)
    answer = await stream.send(producer())
    await until(lambda: len(stream.call.written) == 2, "the answer again")
    assert stream.call.written[1] == answer
    await stream.end()


async def test_client_with_several_streams(proxy: Proxy) -> None:
    first, second = Stream(proxy), Stream(proxy)
    await first.send(producer())
    await second.send(producer())
    session = proxy.sessions.get(CLIENT_ID)
    assert session is not None and len(session.streams) == 2
    await first.end()
    assert len(session.streams) == 1 and proxy.sessions.producers_of("orders") == [session]
    await second.end()
    assert not session.streams


async def test_other_commands_are_ignored(proxy: Proxy) -> None:
    stream = Stream(proxy)
    stream.requests.put(TelemetryCommand())
    answer = await stream.send(producer())
    assert answer.HasField("settings") and len(stream.call.written) == 1
    await stream.end()


async def test_settings_without_a_kind_end_the_stream(proxy: Proxy) -> None:
    stream = Stream(proxy)
    with pytest.raises(Refused) as caught:
        await stream.send(TelemetryCommand(settings=d.Settings()))
    assert caught.value.code == d.Code.BAD_REQUEST
    session = proxy.sessions.get(CLIENT_ID)
    assert session is not None and not session.streams


async def test_settings_are_answered_while_no_broker_answers() -> None:
    cluster = Cluster()
    cluster.transport.answers.clear()
    stream = Stream(cluster.proxy())
    asked = consumer()
    asked.settings.client_type = d.ClientType.SIMPLE_CONSUMER
    assert (await stream.send(asked)).status.code == d.Code.OK
    await stream.end()


async def begun_without_a_broker() -> tuple[Cluster, Proxy, Stream]:
    """A push consumer has sent its settings, and no broker tells of its group."""
    cluster = Cluster()
    cluster.transport.answers["GetGroup"] = MqError(Code.REQUEST_TIMEOUT, "no answer")
    proxy = cluster.proxy()
    stream = Stream(proxy)
    stream.requests.put(consumer())
    await asyncio.sleep(5)
    return cluster, proxy, stream


async def test_push_consumer_is_answered_once_the_group_policy_is_known() -> None:
    """Push consumers heed the first answer only."""
    cluster, proxy, stream = await begun_without_a_broker()
    assert not stream.call.written
    session = proxy.sessions.get(CLIENT_ID)
    assert session is not None and session.consumer_group == "g"
    group = GroupConfig(consumer_group="g", consume_message_orderly=True)
    cluster.transport.answers["GetGroup"] = GetGroupResponse(group=group)
    await until(lambda: bool(stream.call.written), "the answer")
    assert stream.call.written[0].settings.subscription.fifo
    await stream.end()


@pytest.mark.parametrize(
    ("types", "fifo"),
    [(["FIFO"], True), (["FIFO", "FIFO"], True), (["FIFO", "NORMAL"], False), ([], False)],
)
async def test_consumer_gets_fifo_when_all_its_topics_are(types: list[str], fifo: bool) -> None:
    cluster = Cluster()
    command = consumer()
    del command.settings.subscription.subscriptions[:]
    for number, message_type in enumerate(types):
        name = f"topic-{number}"
        cluster.routes[name] = route(message_type=message_type)
        command.settings.subscription.subscriptions.add(topic=d.Resource(name=name))
    proxy = cluster.proxy()
    stream = Stream(proxy)
    stream.requests.put(command)
    await until(lambda: bool(stream.call.written), "the answer")
    assert stream.call.written[0].settings.subscription.fifo is fifo
    session = proxy.sessions.get(CLIENT_ID)
    assert session is not None and session.keeps_order is fifo
    await stream.end()


async def test_only_the_last_settings_are_answered_later() -> None:
    cluster = Cluster()
    cluster.transport.answers["GetGroup"] = MqError(Code.REQUEST_TIMEOUT, "no answer")
    stream = Stream(cluster.proxy())
    stream.requests.put(consumer("a"))
    await asyncio.sleep(0.5)
    stream.requests.put(consumer("b"))
    await asyncio.sleep(5)
    cluster.transport.answers["GetGroup"] = GetGroupResponse(group=GroupConfig())
    await asyncio.sleep(telemetry.RETRY_AFTER_S + telemetry.REPEAT_AFTER_S)
    entries = [answer.settings.subscription.subscriptions[0] for answer in stream.call.written]
    assert [entry.expression.expression for entry in entries] == ["b", "b"]
    await stream.end()


async def test_settings_that_turn_out_to_be_refused_later_end_the_stream() -> None:
    """Its client waits for an answer, and would wait for ever."""
    cluster, proxy, stream = await begun_without_a_broker()
    group = GroupConfig(consumer_group="g", attributes={"lite.bind.topic": "sessions"})
    cluster.transport.answers["GetGroup"] = GetGroupResponse(group=group)
    await until(stream.task.done, "the end")
    with pytest.raises(Refused) as caught:
        stream.task.result()
    assert caught.value.code == d.Code.BAD_REQUEST
    session = proxy.sessions.get(CLIENT_ID)
    assert session is not None and not session.streams and not stream.call.written


async def test_client_that_ends_its_requests_is_still_answered(proxy: Proxy) -> None:
    stream = Stream(proxy)
    stream.requests.put(producer())
    await stream.end()
    assert [answer.status.code for answer in stream.call.written] == [d.Code.OK]


async def test_new_settings_announce_the_client_to_brokers_once() -> None:
    cluster = Cluster()
    stream = Stream(cluster.proxy())
    await stream.send(consumer("a"))
    await until(lambda: len(cluster.transport.requests(HEARTBEAT)) == 1, "a heartbeat")
    await stream.send(consumer("a"))
    await stream.send(consumer("b"))
    await until(lambda: len(cluster.transport.requests(HEARTBEAT)) == 2, "a second heartbeat")
    expressions = [
        [each.expression for each in request.consumers[0].subscriptions]
        for request in cluster.transport.requests(HEARTBEAT)
    ]
    assert expressions == [["a"], ["b"]]
    await stream.end()


async def test_subscription_conflict_is_logged(proxy: Proxy) -> None:
    first, second = Stream(proxy), Stream(proxy, "another")
    with structlog.testing.capture_logs() as logs:
        await first.send(consumer("a"))
        assert not logs
        await second.send(consumer("b"))
    (line,) = [log for log in logs if log["log_level"] == "warning"]
    assert (line["group"], line["topic"], line["expressions"]) == ("g", "orders", ["a", "b"])
    assert proxy.counts.subscription_conflicts == 1
    await first.end()
    await second.end()


async def test_subscription_conflict_is_logged_once_a_minute() -> None:
    cluster = Cluster()
    proxy = cluster.proxy()
    first, second = Stream(proxy), Stream(proxy, "another")
    with structlog.testing.capture_logs() as logs:
        await first.send(consumer("a"))
        for _ in range(5):
            await second.send(consumer("b"))
        assert len(logs) == 1
        cluster.clock.advance(telemetry.CONFLICT_LOG_EVERY_MS)
        await second.send(consumer("b"))
        assert len(logs) == 2
    assert proxy.counts.subscription_conflicts == 6
    await first.end()
    await second.end()


async def test_queued_commands_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    command = producer()
    size = command.ByteSize()
    monkeypatch.setattr(telemetry, "MAX_QUEUED_BYTES", 3 * size)
    call = FakeCall()
    stream = telemetry.TelemetryStream(call)
    for _ in range(5):
        stream.offer(command)
    writer = asyncio.create_task(stream.write())
    await until(lambda: len(call.written) == 3, "those that fit")
    for _ in range(4):
        stream.offer(command)
    await until(lambda: len(call.written) == 6, "as many again, after those were read")
    monkeypatch.setattr(telemetry, "MAX_QUEUED_BYTES", 1)
    stream.offer(command)
    await until(lambda: len(call.written) == 7, "one above the limit")
    writer.cancel()


async def test_huge_settings_are_refused(proxy: Proxy) -> None:
    command = producer()
    command.settings.publishing.topics.extend(
        d.Resource(name=f"topic_with_a_long_name_{number}") for number in range(9_000)
    )
    stream = Stream(proxy)
    with pytest.raises(Refused) as caught:
        await stream.send(command)
    assert caught.value.code == d.Code.BAD_REQUEST


async def test_queued_commands_are_bounded_in_number() -> None:
    stream = telemetry.TelemetryStream(FakeCall())
    with structlog.testing.capture_logs() as logs:
        for _ in range(telemetry.MAX_QUEUED + 5):
            stream.offer(producer())
    assert [line["event"] for line in logs] == ["command_dropped"]


async def test_only_the_last_answer_is_repeated(proxy: Proxy) -> None:
    stream = Stream(proxy)
    first = await stream.send(producer())
    last = await stream.send(consumer())
    await asyncio.sleep(2 * telemetry.REPEAT_AFTER_S)
    assert stream.call.written == [first, last, last]
    await stream.end()


async def test_a_proxy_that_stops_ends_its_streams_in_order(proxy: Proxy) -> None:
    """Without an error: at a stream that is reset, Rust's SDK loops without a pause."""
    stream = Stream(proxy)
    await stream.send(producer())
    proxy.telemetry.close()
    await stream.task
    late = Stream(proxy)
    await late.task


async def test_a_caller_that_goes_away_is_no_orderly_end(proxy: Proxy) -> None:
    stream = Stream(proxy)
    await stream.send(producer())
    stream.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stream.task


@pytest.mark.parametrize("turns", range(12))
async def test_a_stream_that_is_cancelled_while_it_ends_is_forgotten(
    proxy: Proxy, turns: int
) -> None:
    stream = Stream(proxy)
    await stream.send(producer())
    session = proxy.sessions.get(CLIENT_ID)
    assert session is not None and session.streams
    stream.requests.end()
    for _ in range(turns):
        await asyncio.sleep(0)
    stream.task.cancel()
    await asyncio.wait([stream.task])
    assert not session.streams
