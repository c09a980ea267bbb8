"""Test the requests of a task: content, queue, number in flight, and counts after a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Thread

import numpy as np
import pyarrow as pa
import pytest

from aerobee_client.message_queue import MessageQueue
from aerobee_client.sending.columns import Columns, TopicQueues
from aerobee_spark.errors import Code, MqError, RowError
from aerobee_spark.writing import arrays
from aerobee_spark.writing.arrays import NONE, Coded
from aerobee_spark.writing.encoding import Messages
from aerobee_spark.writing.sending import WINDOW, Pace, TaskSends, requests
from aerobee_wire.queues.choice import queue_of_group

Q = [MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)]
QUEUES = TopicQueues(tuple(Q), tuple(Q))


def coded(values: list[object] | None, count: int) -> Coded:
    if values is None:
        return arrays.nothing(count)
    different = sorted({value for value in values if value is not None}, key=str)
    codes = [NONE if value is None else different.index(value) for value in values]
    return Coded(different, np.array(codes, np.int64))


def messages(
    count: int,
    *,
    topics: list[object] | None = None,
    queues: list[object] | None = None,
    groups: list[object] | None = None,
    flags: list[int] | None = None,
    size: int = 1,
) -> Messages:
    """Return bodies with the number of the row, filled up to `size` bytes."""
    zeros = np.zeros(count, np.int64)
    return Messages(
        np.arange(count, dtype=np.int64),
        pa.array([str(row).ljust(size).encode() for row in range(count)], pa.binary()),
        pa.array([b"UNIQ_KEY\x01%d\x02" % row for row in range(count)], pa.binary()),
        zeros,
        np.array(flags, np.int64) if flags else zeros,
        coded(topics or ["t"] * count, count),
        coded(queues, count),
        coded(groups, count),
        np.full(count, NONE, np.int64),
    )


def bodies(columns: Columns) -> list[int]:
    ends = np.cumsum(columns.body_sizes)
    return [
        int(columns.bodies[end - size : end].tobytes())
        for end, size in zip(ends, columns.body_sizes, strict=True)
    ]


# ---- what shares a request ----


def test_rows_without_a_place_share_requests_up_to_the_limits() -> None:
    found = list(requests(messages(10), lambda _: QUEUES, most_messages=4))
    assert [bodies(each.columns) for each in found] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert {each.queue for each in found} == {None}
    large = messages(5, size=1000)
    found = list(requests(large, lambda _: QUEUES, most_bytes=2100))
    assert [bodies(each.columns) for each in found] == [[0, 1], [2, 3], [4]]
    found = list(requests(large, lambda _: QUEUES, most_bytes=10))
    assert [len(each.columns) for each in found] == [1] * 5


def test_topics_and_compression_are_apart() -> None:
    given = messages(6, topics=["x", "y", "x", "y", "x", "x"], flags=[0, 0, 1, 0, 0, 1])
    found = requests(given, lambda topic: QUEUES)
    assert [
        (each.columns.topic, each.columns.sys_flag, bodies(each.columns)) for each in found
    ] == [
        ("x", 0, [0, 4]),
        ("x", 1, [2, 5]),
        ("y", 0, [1, 3]),
    ]


def test_a_chosen_queue_takes_its_rows_in_order() -> None:
    chosen: list[object] = [("a", 1), None, ("b", 0), ("a", 1), ("a", 1)]
    given = messages(5, queues=chosen, flags=[0, 0, 0, 1, 0])
    found = [(each.queue, bodies(each.columns)) for each in requests(given, lambda _: QUEUES)]
    assert [each for each in found if each[0] == Q[1]] == [(Q[1], [0]), (Q[1], [3]), (Q[1], [4])]
    assert (Q[2], [2]) in found and (None, [1]) in found


def test_a_queue_that_does_not_exist_is_refused_by_its_row() -> None:
    given = messages(3, queues=[("a", 1), ("a", 1), ("a", 7)])
    with pytest.raises(RowError) as raised:
        next(requests(given, lambda _: QUEUES))
    assert raised.value.row == 2


def test_message_groups_go_to_the_queues_that_every_client_chooses() -> None:
    groups: list[object] = [f"g{row % 5}" for row in range(20)]
    sent: dict[MessageQueue | None, list[int]] = {}
    for each in requests(messages(20, groups=groups), lambda _: QUEUES):
        sent.setdefault(each.queue, []).extend(bodies(each.columns))
        assert each.of_groups
    assert sorted(row for rows in sent.values() for row in rows) == list(range(20))
    assert set(sent) <= set(Q)
    for queue, rows in sent.items():
        assert rows == sorted(rows)
        assert {queue_of_group(f"g{row % 5}", Q) for row in rows} == {queue}


# ---- in flight ----


@dataclass
class Broker:
    """Takes requests and answers them on command. `on_send` is called before each request."""

    answer_at_once: bool = True
    known: TopicQueues = QUEUES
    sends: list[tuple[list[int], MessageQueue | None, Future[None]]] = field(default_factory=list)
    refusals: dict[MessageQueue | None, MqError] = field(default_factory=dict)
    on_send: Callable[[], None] = lambda: None

    def send(
        self, columns: Columns, queue: MessageQueue | None = None, priority: int | None = None
    ) -> Future[None]:
        self.on_send()
        future: Future[None] = Future()
        self.sends.append((bodies(columns), queue, future))
        if queue in self.refusals:
            future.set_exception(self.refusals[queue])
        elif self.answer_at_once:
            future.set_result(None)
        return future

    def queues(self, topic: str, *, fresh: bool = False) -> TopicQueues:
        return self.known

    def waiting(self) -> list[Future[None]]:
        return [future for _, _, future in self.sends if not future.done()]

    def stored(self) -> list[int]:
        return [
            row
            for rows, _, future in self.sends
            if future.done() and not future.exception()
            for row in rows
        ]


def sends_to(broker: Broker, pace: Pace | None = None) -> TaskSends:
    return TaskSends(broker, lambda topic: None, pace)


def test_as_many_requests_as_the_window_are_in_flight() -> None:
    broker = Broker(answer_at_once=False)
    sends = sends_to(broker)
    sends.put(messages(WINDOW, topics=[f"t{i}" for i in range(WINDOW)]))
    with in_a_thread(lambda: sends.put(messages(1))):
        assert (len(broker.sends), sends.sent) == (WINDOW, 0)
        broker.waiting()[0].set_result(None)
    assert (len(broker.sends), len(broker.waiting()), sends.sent) == (WINDOW + 1, WINDOW, 1)
    for future in broker.waiting():
        future.set_result(None)
    sends.finish()
    assert (sends.sent, sends.unknown) == (WINDOW + 1, 0)


def test_one_request_at_a_time_goes_to_a_chosen_queue() -> None:
    broker = Broker(answer_at_once=False)
    sends = sends_to(broker)
    sends.put(messages(2, queues=[("a", 0), ("a", 1)]))
    with in_a_thread(lambda: sends.put(messages(1, queues=[("a", 1)]))):
        assert len(broker.sends) == 2
        broker.sends[1][2].set_result(None)
    assert [queue for _, queue, _ in broker.sends] == [Q[0], Q[1], Q[1]]
    assert not broker.sends[0][2].done()


@contextmanager
def in_a_thread(work: Callable[[], None]) -> Iterator[None]:
    """Run the work in a thread, and wait until it ends."""
    thread = Thread(target=work)
    thread.start()
    yield
    thread.join(10)
    assert not thread.is_alive()


def test_a_failure_says_what_was_sent_and_what_may_be() -> None:
    unreachable = MqError(Code.BROKER_UNREACHABLE, "gone")
    broker = Broker(refusals={Q[1]: unreachable})
    sends = sends_to(broker)
    sends.put(messages(6, queues=[("a", 0), ("a", 1), ("a", 1), None, None, None]))
    with pytest.raises(MqError) as raised:
        sends.finish()
    sends.give_up()
    assert raised.value is unreachable
    assert (sends.sent, sends.unknown) == (4, 2)


def test_a_refusal_is_not_perhaps_stored() -> None:
    broker = Broker(refusals={None: MqError(Code.MESSAGE_ILLEGAL, "no")})
    sends = sends_to(broker)
    sends.put(messages(3))
    with pytest.raises(MqError):
        sends.finish()
    sends.give_up()
    assert (sends.sent, sends.unknown) == (0, 0)


def test_message_groups_move_when_their_queue_takes_no_more() -> None:
    groups: list[object] = [f"g{row % 9}" for row in range(90)]
    gone = queue_of_group("g0", Q)
    left = tuple(queue for queue in Q if queue != gone)
    broker = Broker(refusals={gone: MqError(Code.NO_PERMISSION, "draining")})

    def leave() -> None:
        broker.known = TopicQueues(left, left)

    broker.on_send = leave
    sends = sends_to(broker)
    sends.put(messages(90, groups=groups))
    sends.finish()
    assert sorted(broker.stored()) == list(range(90))
    assert sends.sent == 90
    for number in range(9):
        of_group = [row for row in broker.stored() if row % 9 == number]
        assert of_group == sorted(of_group)


def test_a_queue_that_still_refuses_its_groups_ends_the_task() -> None:
    gone = queue_of_group("g", Q)
    refusal = MqError(Code.NO_PERMISSION, "draining")
    sends = sends_to(Broker(refusals={gone: refusal}))
    sends.put(messages(3, groups=["g", "g", "g"]))
    with pytest.raises(MqError) as raised:
        sends.finish()
    assert raised.value is refusal


def test_a_topic_is_made_ready_once_before_its_first_message() -> None:
    broker, ready = Broker(), list[str]()

    def make_ready(topic: str) -> None:
        assert not broker.sends
        ready.append(topic)

    sends = TaskSends(broker, make_ready, None)
    sends.put(messages(4, topics=["x", "y", "x", "y"]))
    sends.put(messages(4, topics=["x", "y", "x", "y"]))
    assert ready == ["x", "y"]


# ---- the pace ----


@dataclass
class Clock:
    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize("tasks", [1, 4])
def test_tasks_share_the_rate(tasks: int) -> None:
    clock = Clock()
    pace = Pace(1000, lambda: tasks, clock.monotonic, clock.sleep)
    sent = 0
    while clock.now_s < 20:
        count = pace.most_messages(4096)
        pace.wait(count)
        sent += count
    assert 0.9 * 20_000 / tasks <= sent <= 20_000 / tasks + 100


def test_a_task_waits_until_brokers_know_it() -> None:
    clock = Clock()
    pace = Pace(100, lambda: int(clock.now_s >= 2), clock.monotonic, clock.sleep)
    pace.most_messages(10)
    assert clock.now_s >= 2


def test_while_no_broker_answers_the_share_stays() -> None:
    clock, answers = Clock(), iter([4, 4])
    pace = Pace(1000, lambda: next(answers, None), clock.monotonic, clock.sleep)
    start_s, sent = clock.now_s, 0
    while clock.now_s < start_s + 20:
        count = pace.most_messages(4096)
        pace.wait(count)
        sent += count
    assert sent <= 20_000 / 4 + 100


def test_a_slow_rate_makes_small_requests() -> None:
    broker, clock = Broker(), Clock()
    sends = sends_to(broker, Pace(50, lambda: 1, clock.monotonic, clock.sleep))
    sends.put(messages(100))
    sends.finish()
    assert {len(rows) for rows, _, _ in broker.sends} == {5}
    assert clock.now_s >= 1.9
