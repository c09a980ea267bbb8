"""`aerobee group members` against real processes: queues, locks and what each member counts, as its
last heartbeat told."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_client import (
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    SimpleConsumer,
    TransactionProducer,
    TransactionResolution,
)
from aerobee_client.cluster import broker_link
from support.clock.polling import until_sync
from support.processes.command import aerobee, aerobee_json


def fail_once(message: ReceivedMessage) -> None:
    if message.body == b"0" and not message.reconsume_times:
        raise ValueError


@pytest.mark.parametrize("orderly", [False, True])
def test_members_are_shown_with_queues_and_statistics(
    namesrv: str, monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    monkeypatch.setattr(broker_link, "HEARTBEAT_INTERVAL_S", 0.2)
    topic = group = f"counted-{orderly}".lower()
    with Producer(namesrv=namesrv) as producer:
        producer.send_batch([Message(topic, b"%d" % n) for n in range(100)])
        with PushConsumer(group, fail_once, namesrv=namesrv, orderly=orderly) as consumer:
            consumer.subscribe(topic)

            def consumed() -> Any:
                """The member, once its heartbeat has told of all messages."""
                member = only_member(namesrv, group)
                described = member["consumers"][group]
                done = described["statistics"].get("consumed", 0) >= 99
                return (member, described) if done and described["queues"] else None

            member, described = until_sync(consumed)
            table = aerobee("group", "members", group, namesrv=namesrv).stdout
            shown = aerobee_json("client", "list", namesrv=namesrv)
    queues = [f"{topic}/broker-a/{n}" for n in range(4)]
    assert set(queues) <= set(described["queues"])
    assert set(described["locks"]) == (set(described["queues"]) if orderly else set())
    assert described["statistics"]["failed"] == 1
    assert (described["consume_type"], described["strategy"]) == ("push", "AVG")
    assert member["address"] and member["version"]
    assert f"{topic}/broker-a/0-3" in table and "AVG" in table
    (sender,) = [each for each in shown if each["producer_statistics"]]
    assert sender["producer_statistics"]["sent"] == 100


def only_member(namesrv: str, group: str) -> Any:
    members = aerobee_json("group", "members", group, namesrv=namesrv)
    assert len(members) == 1, members  # none until its first heartbeat
    return members[0]


def until_consumed(namesrv: str, group: str, count: int) -> Any:
    """The one member, once its heartbeat has told of `count` messages; and the table."""

    def found() -> Any:
        member = only_member(namesrv, group)
        counted = member["consumers"][group]["statistics"]
        return member if counted.get("consumed", 0) >= count else None

    member = until_sync(found)
    return member, aerobee("group", "members", group, namesrv=namesrv).stdout


def test_members_that_pull_and_pop_are_shown_with_statistics(
    namesrv: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_link, "HEARTBEAT_INTERVAL_S", 0.2)
    topic = "counted-kinds"

    def check(_: ReceivedMessage) -> TransactionResolution:
        raise AssertionError("every transaction is ended at once")

    with TransactionProducer("counted-kinds-p", check, namesrv=namesrv) as producer:
        for n in range(100):
            with producer.transaction(Message(topic, b"%d" % n)):
                pass
        with PullConsumer("counted-pull", namesrv=namesrv) as pulling:
            pulling.subscribe(topic)
            assert sum(1 for _ in pulling.read_to_end()) == 100
            assert pulling.statistics().consumed == 100
            member, table = until_consumed(namesrv, "counted-pull", 100)
            described = member["consumers"]["counted-pull"]
            assert (described["consume_type"], described["strategy"]) == ("pull", "AVG")
            assert described["queues"] == [f"{topic}/broker-a/{n}" for n in range(4)]
            counted = described["statistics"]
            assert (counted["queues"], counted["lag"], counted["failed_requests"]) == (4, 0, 0)
            assert member["address"] and member["version"]
            assert f"{topic}/broker-a/0-3" in table and "pull" in table
        with SimpleConsumer("counted-pop", namesrv=namesrv) as leasing:
            leasing.subscribe(topic)
            count = 0
            while count < 100:
                messages = leasing.receive()
                leasing.ack(messages)
                count += len(messages)
            assert leasing.statistics().consumed == 100
            member, table = until_consumed(namesrv, "counted-pop", 100)
            described = member["consumers"]["counted-pop"]
            assert (described["consume_type"], described["strategy"]) == ("pop", "")
            assert described["statistics"]["waiting"] == 0
            assert "lag" not in described["statistics"] and described["queues"] == []
            assert member["address"] and member["version"] and "pop" in table

        def reported() -> Any:
            shown = aerobee_json("client", "list", "--group", "counted-kinds-p", namesrv=namesrv)
            return [each for each in shown if each["producer_statistics"].get("sent") == 100]

        (sender,) = until_sync(reported)
        assert sender["producer_groups"] == ["counted-kinds-p"]
        assert sender["address"] and sender["version"]
