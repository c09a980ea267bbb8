"""Several brokers as one service: clients use all of them, one that dies is replaced, none outlives
the parent, and no start leaves out messages."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from aerobee_client import (
    ConsumeFromWhere,
    Message,
    MqError,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
)
from aerobee_wire.identity import BROKER
from support.clock.polling import until_sync
from support.processes.command import aerobee_json, is_alive
from support.processes.service import (
    METRICS,
    SMALL_LOG,
    ServiceProcess,
    drain,
    namesrv_process,
    run,
)
from support.running import secure

NAME, TOPIC, GROUP = "broker-a", "orders", "billing"
DELAY = timedelta(seconds=1)
FIRST, SECOND = NAME, f"{NAME}-1"


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[str]:
    with namesrv_process(tmp_path / "namesrv") as process:
        yield process.address


def sharded(data: Path, namesrv: str, *arguments: str, shards: int = 2) -> ServiceProcess:
    """A broker with shards on free ports."""
    return ServiceProcess(
        *("aerobee_broker", "--data", str(data), "--namesrv", namesrv, "--shards", str(shards)),
        *(f"--set=brokerName={NAME}", "--set=listenPort=0", SMALL_LOG),
        *certificates(shards),
        *arguments,
    )


def certificates(shards: int) -> list[str]:
    """Return the options for a certificate of each shard, if tests run with closed services."""
    closed = secure.enabled()
    if closed is None:
        return []
    for name in (NAME, *(f"{NAME}-{number}" for number in range(1, shards))):
        closed.service_options(BROKER, name)
    path = closed.directory / "{brokerName}"
    return [f"--set=tlsCertPath={path}.crt", f"--set=tlsKeyPath={path}.key"]


def send(namesrv: str, bodies: range) -> Counter[str]:
    """Sends messages in turn to all queues; returns how many each broker stored."""
    stored: Counter[str] = Counter()
    with Producer(namesrv=namesrv) as producer:
        for number in bodies:
            result = producer.send(Message(TOPIC, b"%d" % number))
            stored[result.queue.broker_name] += 1
    return stored


def consumed(namesrv: str, group: str, count: int, topic: str = TOPIC) -> Counter[int]:
    """The messages that a new group gets, until it has this many different ones."""
    found: Counter[int] = Counter()
    start = ConsumeFromWhere.FIRST_OFFSET
    with SimpleConsumer(group, namesrv=namesrv, consume_from_where=start) as consumer:
        consumer.subscribe(topic)

        def all_there() -> bool:
            for message in consumer.receive(wait=timedelta(seconds=1)):
                found[int(message.body)] += 1
                consumer.ack(message)
            return len(found) >= count

        until_sync(all_there, f"{count} messages")
    return found


def addresses(broker: ServiceProcess) -> list[str]:
    return broker.address.split(",")


def health(broker: ServiceProcess) -> int:
    return run("aerobee_chassis.healthcheck", *addresses(broker)).returncode


def test_clients_use_all_shards_also_after_a_restart(tmp_path: Path, namesrv: str) -> None:
    with sharded(tmp_path, namesrv) as broker:
        assert set(send(namesrv, range(32))) == {FIRST, SECOND}
        assert set(consumed(namesrv, GROUP, 32)) == set(range(32))
        assert health(broker) == 0
        listed = aerobee_json("cluster", "list", namesrv=namesrv)
        assert {each["broker_name"]: each["address"] for each in listed} == dict(
            zip((FIRST, SECOND), addresses(broker), strict=True)
        )
        names = {line["shard"] for line in broker.events("registered")}
        assert names == {FIRST, SECOND}
        pids = broker.ready["shards"]
        assert broker.stop() == 0
        assert not any(map(is_alive, pids))
        assert len(broker.events("stopped")) == 3

        broker.start()
        assert set(send(namesrv, range(32, 40))) == {FIRST, SECOND}
        assert consumed(namesrv, "auditing", 40) == Counter(range(40))


def test_order_delays_and_dead_letters_on_all_shards(tmp_path: Path, namesrv: str) -> None:
    received: dict[str, list[bytes]] = {}

    def reject(message: ReceivedMessage) -> None:
        received.setdefault(message.keys[0], []).append(message.body)
        raise ValueError("refused by the test")

    with sharded(tmp_path, namesrv), Producer(namesrv=namesrv) as producer:
        aerobee_json("topic", "create", TOPIC, "--type", "fifo", namesrv=namesrv)
        aerobee_json("group", "create", GROUP, "--max-attempts", "1", namesrv=namesrv)
        stored: dict[str, Counter[str]] = {f"flight-{number}": Counter() for number in range(16)}
        for body in (b"0", b"1", b"2"):
            for name, brokers in stored.items():
                message = Message(TOPIC, body, keys=name, message_group=name)
                brokers[producer.send(message).queue.broker_name] += 1
        assert all(len(brokers) == 1 for brokers in stored.values())
        assert {broker for brokers in stored.values() for broker in brokers} == {FIRST, SECOND}
        with PushConsumer(
            GROUP, reject, namesrv=namesrv, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        ) as consumer:
            consumer.subscribe(TOPIC)
            until_sync(
                lambda: len(aerobee_json("dlq", "list", GROUP, namesrv=namesrv)) == 48,
                "a dead letter for each message",
            )
        assert received == {name: [b"0", b"1", b"2"] for name in stored}

        late = [producer.send(Message("late", b"%d" % number, delay=DELAY)) for number in range(8)]
        assert len({result.store_host for result in late}) == 2
        assert set(consumed(namesrv, "reading", 8, topic="late")) == set(range(8))


def test_killed_shard_comes_back_with_its_port_and_messages(tmp_path: Path, namesrv: str) -> None:
    with sharded(tmp_path, namesrv) as broker:
        send(namesrv, range(16))
        before = addresses(broker)
        os.kill(broker.ready["shards"][1], signal.SIGKILL)
        (line,) = until_sync(lambda: broker.events("shard_ended"), "the end of the shard")
        assert (line["shard"], line["exit_code"]) == (SECOND, -signal.SIGKILL)
        # The other shard takes messages before, during and after.
        assert send(namesrv, range(16, 24))[FIRST] >= 1
        until_sync(lambda: broker.events("shard_serves_again"), "another process")
        listed = aerobee_json("cluster", "list", namesrv=namesrv)
        assert {each["address"] for each in listed} == set(before)
        assert set(consumed(namesrv, GROUP, 24)) == set(range(24))
        assert health(broker) == 0
        assert is_alive(broker.ready["shards"][0]) and broker.stop() == 0


def test_health_check_covers_each_shard(tmp_path: Path, namesrv: str) -> None:
    with sharded(tmp_path, namesrv) as broker:
        os.kill(broker.ready["shards"][1], signal.SIGSTOP)
        try:
            assert health(broker) == 1
        finally:
            os.kill(broker.ready["shards"][1], signal.SIGCONT)


def test_all_shards_drain(tmp_path: Path, namesrv: str) -> None:
    with sharded(tmp_path, namesrv, *METRICS) as broker:
        assert len(set(broker.ready["metrics"])) == 2
        send(namesrv, range(4))
        drain(broker)
        with Producer(namesrv=namesrv) as producer, pytest.raises(MqError):
            producer.send(Message(TOPIC, b"x"))
        assert all(map(is_alive, broker.ready["shards"]))
        assert broker.stop() == 0


def test_killed_parent_leaves_no_shard(tmp_path: Path, namesrv: str) -> None:
    with sharded(tmp_path, namesrv) as broker:
        pids = broker.ready["shards"]
        broker.kill()
        until_sync(lambda: not any(map(is_alive, pids)), "the shards to end")


def test_parent_exits_if_a_shard_cannot_start(tmp_path: Path, namesrv: str) -> None:
    with sharded(tmp_path, namesrv) as broker:
        other = sharded(tmp_path, namesrv)
        other.launch()
        assert other.wait() == 1
        assert "is held by another broker" in other.stderr  # of one shard or both
        assert health(broker) == 0


def test_broker_gets_shards_and_loses_them(tmp_path: Path, namesrv: str) -> None:
    """As docs/configuration.md says."""
    options = ("--port", "0", "--namesrv", namesrv, f"--set=brokerName={NAME}", SMALL_LOG)
    with ServiceProcess("aerobee_broker", "--data", str(tmp_path), *options):
        assert send(namesrv, range(8)) == {FIRST: 8}
        assert set(consumed(namesrv, GROUP, 8)) == set(range(8))
        send(namesrv, range(8, 16))
    with sharded(tmp_path, namesrv):
        aerobee_json("topic", "rebalance", TOPIC, namesrv=namesrv)
        assert set(send(namesrv, range(16, 32))) == {FIRST, SECOND}
        assert consumed(namesrv, GROUP, 24) == Counter(range(8, 32))
        send(namesrv, range(32, 40))
    alone = ServiceProcess("aerobee_broker", "--data", str(tmp_path), *options)
    alone.launch()
    assert alone.wait() == 1
    away = tmp_path / "broker" / "store" / "shard-1"
    assert f"{away} has messages of" in alone.stderr and TOPIC in alone.stderr

    with sharded(tmp_path, namesrv):
        aerobee_json("broker", "drain", SECOND, namesrv=namesrv)
        assert consumed(namesrv, GROUP, 8) == Counter(range(32, 40))
        assert aerobee_json("broker", "drain", SECOND, "--wait", namesrv=namesrv)["empty"]
    away.rename(tmp_path / "away")
    with ServiceProcess("aerobee_broker", "--data", str(tmp_path), *options):
        assert send(namesrv, range(40, 44)) == {FIRST: 4}
        assert consumed(namesrv, GROUP, 4) == Counter(range(40, 44))
