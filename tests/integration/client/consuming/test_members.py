"""`aerobee group members` against real processes: queues, locks and what each member counts, as its
last heartbeat told."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_client import Message, Producer, PushConsumer, ReceivedMessage
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
                (member,) = aerobee_json("group", "members", group, namesrv=namesrv)
                described = member["consumers"][group]
                done = described["statistics"].get("consumed", 0) >= 99
                return (member, described) if done and described["queues"] else None

            member, described = until_sync(consumed)
            table = aerobee("group", "members", group, namesrv=namesrv).stdout
            shown = aerobee_json("clients", namesrv=namesrv)
    queues = [f"{topic}/broker-a/{n}" for n in range(4)]
    assert set(queues) <= set(described["queues"])
    assert set(described["locks"]) == (set(described["queues"]) if orderly else set())
    assert described["statistics"]["failed"] == 1
    assert (described["consume_type"], described["strategy"]) == ("push", "AVG")
    assert member["address"] and member["version"]
    assert f"{topic}/broker-a/0-3" in table and "AVG" in table
    (sender,) = [each for each in shown if each["producer_statistics"]]
    assert sender["producer_statistics"]["sent"] == 100
