"""The round robin of messages without a message group."""

from __future__ import annotations

from aerobee_proxy.cluster.send import MAX_SEND_ROUTES, RoundRobin


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


def test_topics_of_the_past_leave_the_memory() -> None:
    round_robin = RoundRobin()
    for number in range(2 * MAX_SEND_ROUTES + 1):
        round_robin.next(f"topic-{number}", ["q0", "q1"])
        assert len(round_robin) <= MAX_SEND_ROUTES
