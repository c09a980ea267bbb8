"""The round robin of messages without a message group."""

from __future__ import annotations

from aerobee_proxy.cluster.send import RoundRobin


def test_round_robin_by_topic() -> None:
    round_robin, queues = RoundRobin(), ["q0", "q1", "q2"]
    taken = [round_robin.next("a", queues) for _ in range(6)]
    assert sorted(taken[:3]) == queues and taken[3:] == taken[:3]
    round_robin.next("b", queues)
    assert round_robin.next("a", queues) == taken[0]


def test_round_robin_on_a_topic_that_shrinks() -> None:
    round_robin = RoundRobin()
    for _ in range(5):
        round_robin.next("a", ["q0", "q1", "q2"])
    assert round_robin.next("a", ["q0"]) == "q0"
