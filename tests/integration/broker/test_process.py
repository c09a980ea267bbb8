"""The life of the broker's process: kill -9, restarts, name servers that come and go, refusals."""

from __future__ import annotations

import asyncio
import os
import signal
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from aerobee.broker.v1 import client_pb2, message_pb2, offset_pb2, transaction_pb2
from aerobee.namesrv.v1 import namesrv_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from aerobee_wire.checked_json import decode, encode
from aerobee_wire.status import Code
from support.broker.calls import BrokerCaller
from support.clock.polling import until
from support.codes import raises_code
from support.configuration import samples
from support.processes.service import (
    METRICS,
    SMALL_LOG,
    ServiceProcess,
    broker_process,
    namesrv_and_broker,
    namesrv_process,
    run,
    unless_set,
)
from support.repository.tree import docs_script
from support.stubs import Stub


def refused(data: Path, *arguments: str) -> tuple[int, str]:
    """Exit code and stderr of a start that must fail."""
    log = unless_set((SMALL_LOG,), arguments)
    free = () if "--port" in arguments else ("--port=0",)
    done = run("aerobee_broker", *free, "--data", str(data), *log, *arguments)
    return done.returncode, done.stderr


async def topics_known(namesrv: str) -> set[str]:
    async with grpc.aio.insecure_channel(namesrv) as channel:
        stub = Stub(namesrv_pb2, channel)
        return set((await stub.ListTopics(namesrv_pb2.ListTopicsRequest())).topics)


# ---- what it keeps ----


async def test_every_acknowledged_message_survives_kill_9(tmp_path: Path) -> None:
    """Promise P1, for a process: producers send while it is killed, three times."""
    acknowledged: dict[int, list[bytes]] = {queue: [] for queue in range(4)}
    with broker_process(tmp_path) as broker:
        for _ in range(3):
            async with BrokerCaller(broker.address) as caller:
                producers = [
                    asyncio.create_task(produce(caller, queue, acknowledged[queue]))
                    for queue in acknowledged
                ]
                enough = sum(map(len, acknowledged.values())) + 200
                await until(partial(reached, acknowledged, enough), "200 more are acknowledged")
                broker.kill()
                await asyncio.gather(*producers)
            broker.start()
        async with BrokerCaller(broker.address) as caller:
            for queue, bodies in acknowledged.items():
                stored = [message.body for message in await caller.read("t", queue)]
                assert [body for body in stored if body in set(bodies)] == bodies, "in their order"
                assert len(stored) - len(bodies) <= 3, "at most the one under way at each kill"


def reached(acknowledged: dict[int, list[bytes]], count: int) -> bool:
    return sum(map(len, acknowledged.values())) >= count


async def produce(caller: BrokerCaller, queue: int, acknowledged: list[bytes]) -> None:
    number = len(acknowledged)
    while True:
        body = b"%d-%d-%s" % (queue, number, os.urandom(8).hex().encode())
        try:
            await caller.send("t", body, queue_id=queue)
        except grpc.aio.AioRpcError:
            return
        acknowledged.append(body)
        number += 1


async def test_a_clean_stop_keeps_groups_offsets_and_delays(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        async with BrokerCaller(broker.address) as caller:
            await caller.put_group("g", attempts=3, delays_ms=[500])
            sent = await caller.send("t", b"a", b"b")
            await caller.pull("g", "t", commit_offset=1)
            await caller.give_back("g", sent[0].physical_offset)
        assert broker.stop() == 0
        broker.start()
        async with BrokerCaller(broker.address) as caller:
            query = offset_pb2.QueryConsumerOffsetsRequest(consumer_group="g")
            answer = await caller.call(caller.offsets.QueryConsumerOffsets, query)
            assert [(offset.topic, offset.queue_offset) for offset in answer.offsets] == [("t", 1)]
            answer = await caller.pull("g", "%RETRY%g", suspend_timeout_ms=20_000)
            assert [message.body for message in answer.messages] == [b"a"]
            assert len(await caller.read("%RETRY%g")) == 1, "delivered once"
    config = tmp_path / "broker" / "store" / "config"
    assert {path.name for path in config.glob("*.json")} >= {
        "consumerOffset.json",
        "delayOffset.json",
        "subscriptionGroup.json",
        "topics.json",
    }
    assert not (tmp_path / "broker" / "store" / "abort").exists()


async def test_timers_and_recalls_survive_kill_9(tmp_path: Path) -> None:
    """Killed while messages fall due: none is lost, early, or brought back."""
    with broker_process(tmp_path) as broker:
        async with BrokerCaller(broker.address) as caller:
            first = time.time_ns() // 1_000_000 + 2_000
            sent = {b"%d" % number: str(first + 8 * number) for number in range(300)}
            recalled = {b"%d" % number for number in range(200, 300, 7)}
            messages = [
                message_pb2.Message(
                    topic="t", queue_id=0, body=body, properties={"TIMER_DELIVER_MS": due}
                )
                for body, due in sent.items()
            ]
            request = message_pb2.SendRequest(messages=messages)
            answer = await caller.call(caller.messages.Send, request)
            for body, result in zip(sent, answer.results, strict=True):
                if body in recalled:
                    recall = message_pb2.RecallMessageRequest(
                        topic="t", recall_handle=result.recall_handle
                    )
                    await caller.call(caller.messages.RecallMessage, recall)
        for wanted in (1, 100, 200):
            broker.kill()
            broker.start()
            async with BrokerCaller(broker.address) as caller:
                await until(partial(holds, caller, wanted), f"{wanted} are delivered")
        broker.kill()
        broker.start()
        async with BrokerCaller(broker.address) as caller:
            await until(partial(holds, caller, len(sent) - len(recalled)), "all are delivered")
            stored = await caller.read("t")
            assert not (await caller.status()).delayed_messages
    assert {message.body for message in stored} == sent.keys() - recalled
    assert all(message.store_timestamp_ms >= int(sent[message.body]) for message in stored), (
        "none early"
    )
    assert len(stored) - len({message.body for message in stored}) <= 256, "a batch, at the worst"


async def holds(caller: BrokerCaller, count: int) -> bool:
    return len({message.body for message in await caller.read("t")}) >= count


async def test_a_corrupt_record_is_logged_counted_and_not_served(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        async with BrokerCaller(broker.address) as caller:
            sent = await caller.send("t", b"good-1", b"harmed", b"good-2")
        broker.stop()
        log = tmp_path / "broker" / "store" / "commitlog" / ("0" * 20)
        with log.open("r+b") as file:
            data = file.read(1 << 20)
            file.seek(data.index(b"harmed"))
            file.write(b"HARMED")
        broker.start()
        async with BrokerCaller(broker.address) as caller:
            request = message_pb2.PullRequest(topic="t", browse=True, plain=True)
            answer = await caller.call(caller.messages.Pull, request)
            assert [message.body for message in answer.messages] == [b"good-1", b"good-2"]
            assert answer.corrupted_count == 1
            place = message_pb2.GetMessageRequest(physical_offset=sent[1].physical_offset)
            with raises_code(Code.MESSAGE_CORRUPTED, f"commitlog/{log.name}"):
                await caller.call(caller.messages.GetMessage, place)
            assert (await caller.status()).corrupted_records_total == 1
        found = broker.events("corrupt_record")
    assert [(event["file"], event["physical_offset"]) for event in found] == [
        (str(log), sent[1].physical_offset)
    ]


# ---- name servers ----


async def test_a_broker_serves_without_name_servers_and_finds_them_later(tmp_path: Path) -> None:
    with namesrv_process(tmp_path / "n") as namesrv:
        address = namesrv.address
        namesrv.kill()
        with broker_process(tmp_path, namesrv=address) as broker:
            async with BrokerCaller(broker.address) as caller:
                await caller.send("early", b"a")
                answer = await caller.put_topic("put")
            assert list(answer.unreachable_namesrvs) == [address]
            assert broker.events("namesrv_lost")
            namesrv.start()

            async def known() -> bool:
                return {"early", "put"} <= await topics_known(address)

            await until(known, "the broker has registered", retry_on=(grpc.aio.AioRpcError,))


async def test_every_name_server_is_registered_with_and_again_after_its_restart(
    tmp_path: Path,
) -> None:
    namesrvs = [namesrv_process(tmp_path / name) for name in ("n1", "n2")]
    with namesrvs[0], namesrvs[1]:
        addresses = [namesrv.address for namesrv in namesrvs]
        with broker_process(tmp_path, namesrv=";".join(addresses)) as broker:
            async with BrokerCaller(broker.address) as caller:
                await caller.put_topic("t")
            for address in addresses:
                assert "t" in await topics_known(address)
            namesrvs[1].kill()
            namesrvs[1].start()

            async def known() -> bool:
                return "t" in await topics_known(addresses[1])

            await until(known, "the topic is registered again", retry_on=(grpc.aio.AioRpcError,))
            assert broker.stop() == 0
            assert "t" not in await topics_known(addresses[0]), "unregistered at its stop"


async def test_a_topic_that_a_send_creates_is_on_every_broker_at_once(tmp_path: Path) -> None:
    second = "--set=brokerName=broker-b"
    with (
        namesrv_and_broker(tmp_path / "a") as (namesrv, broker_a),
        broker_process(tmp_path / "b", second, namesrv=namesrv.address) as broker_b,
    ):
        async with BrokerCaller(broker_a.address) as caller:
            await caller.send("everywhere", b"a")
        async with grpc.aio.insecure_channel(namesrv.address) as channel:
            stub = Stub(namesrv_pb2, channel)
            request = namesrv_pb2.GetTopicRouteRequest(topic="everywhere")
            route = (await stub.GetTopicRoute(request)).route
        found = {queue.broker_name: queue.write_queue_count for queue in route.queues}
        assert found == {"broker-a": 4, "broker-b": 4}
        async with BrokerCaller(broker_b.address) as caller:
            await caller.send("everywhere", b"b")
            assert len(await caller.read("everywhere")) == 1


# ---- starts that are refused ----


def test_a_second_broker_on_the_same_data_is_refused(tmp_path: Path) -> None:
    with broker_process(tmp_path):
        code, err = refused(tmp_path)
    assert code == 1
    assert err.startswith("error: ") and err.count("\n") == 1
    assert str(tmp_path / "broker" / "store") in err


def test_a_port_in_use_is_refused_and_the_data_unlocked(tmp_path: Path) -> None:
    with broker_process(tmp_path / "first") as first:
        port = str(first.port)
        code, err = refused(tmp_path / "second", "--port", port)
    assert (code, err.count("\n")) == (1, 1)
    assert f"127.0.0.1:{port}" in err
    with broker_process(tmp_path / "second"):
        pass


def test_a_damaged_configuration_file_is_named(tmp_path: Path) -> None:
    with broker_process(tmp_path):
        pass
    config = tmp_path / "broker" / "store" / "config"
    for path in config.glob("topics.json*"):
        path.write_bytes(b"nonsense")
    code, err = refused(tmp_path)
    assert (code, err.count("\n")) == (1, 1)
    assert str(config / "topics.json") in err


def test_a_store_that_needs_a_later_version_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with broker_process(tmp_path) as broker:
        assert not broker.events("format_not_written")
    path = tmp_path / "broker" / "store" / "config" / "format.json"
    content = decode(path.read_bytes())
    path.write_bytes(encode({**content, "required": {"tomorrow": "9.0.0"}}))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    for replicas in ((), ("--set", "totalReplicas=2")):
        code, err = refused(tmp_path, *replicas)
        assert (code, err.count("\n")) == (1, 1)
        assert "tomorrow" in err and "9.0.0" in err
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before

    path.unlink()  # as a build left it that wrote none
    with broker_process(tmp_path):
        assert decode(path.read_bytes()) == content


async def test_the_file_of_a_tutorial_starts_a_broker_that_stores(tmp_path: Path) -> None:
    """It has storeCheckpoint, abortFile, checkTransactionMessageEnable and a high disk ratio."""
    tutorial = ("--config", str(samples.FILES / "broker" / "tutorial-4-flush.conf"))
    with namesrv_process(tmp_path) as namesrv:
        arguments = ("--port", "0", "--data", str(tmp_path), "--namesrv", namesrv.address)
        with ServiceProcess("aerobee_broker", *arguments, *tutorial) as broker:
            [warning] = broker.events("options_without_effect")
            async with BrokerCaller(broker.address) as caller:
                await caller.send("t", b"stored")
                await until(partial(holds, caller, 1), "its flush has made it visible")
    assert {"storeCheckpoint", "abortFile", "checkTransactionMessageEnable"} <= {*warning["keys"]}


# ---- what an operator sees ----


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


# Spans are counted only with an otlpEndpoint, and exports only with an exporter that sends.
OPTIONAL = {"aerobee_spans_total", "aerobee_metrics_exports_total"}
# Metrics without a series in the test below: nothing of their kind happens there.
WITHOUT_SERIES = {
    "rocketmq_pop_revive_retry_messages_total",
    "aerobee_consumer_group_subscriptions_differ",
    "aerobee_subscription_conflicts_total",
    "aerobee_scrub_completed_timestamp_seconds",
    "aerobee_lite_topics_expired_total",
    "aerobee_lite_messages_expired_unsettled_total",
    "aerobee_transaction_checks_total",
    "aerobee_given_up_half_messages_total",
    "aerobee_certificate_expiry_timestamp_seconds",
}


async def test_a_scrape_under_load_has_the_metrics_of_the_table(tmp_path: Path) -> None:
    """Names, types and labels of docs/metrics.md; a group's lag; health beside it."""
    table = docs_script("metrics")
    expected = {
        each.exposed: each
        for each in (*table.services()["broker"], *table.services()["each process"])
        if not each.name.startswith("aerobee_replica_")
    }
    with broker_process(
        tmp_path / "data", *METRICS, f"--set=auditLogPath={tmp_path / 'audit.log'}"
    ) as broker:
        metrics = str(broker.ready["metrics"])

        async def load(number: int) -> None:
            async with BrokerCaller(broker.address) as caller:
                for _ in range(5):
                    await caller.send_batch("t", [b"a"] * 20)
                    await caller.pull("g", "t", max_messages=5, commit_offset=0)

        async with BrokerCaller(broker.address) as caller:
            await caller.put_topic("t")
            await caller.put_group("g", attempts=1)
            member = client_pb2.HeartbeatRequest(
                client_id="c",
                producer_groups=["p"],
                consumers=[client_pb2.ConsumerData(consumer_group="g")],
            )
            await caller.call(caller.clients.Heartbeat, member)
            half = await caller.send_half("t", b"half")
            name = (half.transaction_id, half.queue_offset)
            await caller.end_transactions(transaction_pb2.COMMIT, name)
            half = await caller.send_half("t", b"half")
            name = (half.transaction_id, half.queue_offset)
            await caller.end_transactions(transaction_pb2.ROLLBACK, name)
            await caller.send_half("t", b"open")
            await caller.send("t", b"a", properties={"TIMER_DELAY_MS": "1"})
            [dead] = await caller.send("t", b"a")
            await caller.give_back("g", dead.physical_offset)
            await asyncio.gather(*map(load, range(4)))

        async def scraped() -> list[Any]:
            status, text = await asyncio.to_thread(get, metrics, "/metrics")
            assert status == 200
            return list(text_string_to_metric_families(text))

        async def measured() -> bool:
            lag = "rocketmq_consumer_lag_messages"
            return any(each.samples for each in await scraped() if each.name == lag)

        await until(measured, "the lag is measured")
        served, without = set(), {"aerobee_scrub_completed_timestamp_seconds"}
        for family in await scraped():
            exposed = f"{family.name}_total" if family.type == "counter" else family.name
            if family.documentation.startswith("Deprecated"):
                continue
            metric = expected[exposed]
            served.add(exposed)
            assert family.type == metric.kind.value, exposed
            if not family.samples:
                without.add(exposed)
            for sample in family.samples:
                own = sample.labels.keys() - {"cluster", "node_type", "node_id", "le"}
                assert own == set(metric.labels), (sample.name, sample.labels)
                assert sample.labels["node_id"] == "broker-a"
        assert served | without == expected.keys() - OPTIONAL
        assert without == WITHOUT_SERIES
        assert await asyncio.to_thread(get, metrics, "/readyz") == (200, "ready\n")
        async with grpc.aio.insecure_channel(broker.address) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_sigterm_ends_long_polls_and_the_process_within_its_grace(tmp_path: Path) -> None:
    async def poll(address: str) -> int:
        async with BrokerCaller(address) as caller:
            await caller.put_topic("t")
            pull = asyncio.create_task(caller.pull("g", "t", suspend_timeout_ms=30_000))

            async def parked() -> bool:
                return (await caller.status()).parked_pulls == 1

            await until(parked, "the pull is parked")
            os.kill(broker.pid, signal.SIGTERM)
            return (await pull).status

    with broker_process(tmp_path) as broker:
        assert asyncio.run(poll(broker.address)) == message_pb2.NO_NEW_MESSAGE
        assert broker.wait() == 0
        assert [line["event"] for line in broker.log[-2:]] == ["stopping", "stopped"]
