"""Sends of other threads: how they get room, and how they come to the loop of their producer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError, as_completed, wait
from functools import partial
from typing import Any

import pytest

from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.producer import AsyncProducer, ProducerFacade
from aerobee_client.send_result import SendResult
from aerobee_client.sending.budget import Budget
from aerobee_client.sending.callbacks import ThreadFuture
from aerobee_client.sending.cross_thread_queue import CrossThreadQueue, QueuedSend
from aerobee_wire.status import Code, MqError
from support.client.memory import MemoryCluster
from support.client.producing import TOPIC, messages, producer
from support.clock.polling import until_sync
from support.codes import raises_code


def make_queued_send(timeout_s: float = 5.0) -> QueuedSend:
    return QueuedSend(Message("t", b"x"), None, None, timeout_s, Future())


class ThreadQueues:
    """A queue whose wake-ups are counted, and run when the test says so."""

    def __init__(self, budget: Budget) -> None:
        self.wake_ups = 0
        self.accepted: list[QueuedSend] = []
        self.queue = CrossThreadQueue(budget, self.accepted.append)

    def put(self, send: QueuedSend, *, block: bool) -> None:
        if not self.queue.put(send, self._wake):
            self.queue.put_later(send, self._wake, block=block)

    def _wake(self, function: Any) -> None:
        self.wake_ups += 1


def test_many_sends_cost_one_wake_up() -> None:
    given = ThreadQueues(Budget(1_000, 1_000))
    sends = [make_queued_send() for _ in range(100)]
    for send in sends:
        given.put(send, block=True)
    assert (given.wake_ups, given.accepted) == (1, [])
    given.queue.empty()
    assert given.accepted == sends
    given.put(make_queued_send(), block=True)
    assert given.wake_ups == 2


def test_a_send_without_a_loop_is_refused_and_the_next_one_wakes_it() -> None:
    """As before the start, or after the close, of a plain producer that starts again."""
    budget = Budget(1, 1_000)
    given = ThreadQueues(budget)
    refused = make_queued_send()

    def no_loop(function: Any) -> None:
        raise MqError(Code.ILLEGAL_OPERATION, "not running")

    with raises_code(Code.ILLEGAL_OPERATION):
        given.queue.put(refused, no_loop)
    assert refused.future.done()
    assert budget.taken() == (0, 0)
    sent = make_queued_send()
    given.put(sent, block=False)
    assert given.wake_ups == 1
    given.queue.empty()
    assert given.accepted == [sent]


@pytest.mark.parametrize(("block", "timeout_s"), [(False, 60.0), (True, 0.01)])
def test_without_room_a_send_fails(block: bool, timeout_s: float) -> None:
    given = ThreadQueues(Budget(1, 1_000))
    given.put(make_queued_send(), block=True)
    late = make_queued_send(timeout_s)
    given.put(late, block=block)
    with raises_code(Code.FLOW_CONTROL):
        late.future.result()
    given.queue.empty()
    assert len(given.accepted) == 1


def test_room_goes_to_threads_in_the_order_of_their_waits() -> None:
    budget = Budget(1, 1_000)
    order: list[int] = []
    assert budget.try_take(1)

    def take(number: int) -> None:
        budget.take_in_thread(1, 30.0)
        order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(3)]
    waiting = iter(range(1, 4))
    for thread in threads:
        thread.start()
        until_sync(partial(holds, lambda: len(budget._waiters), next(waiting)), "it waits")
    assert not budget.try_take(1), "who comes later does not overtake"
    for count in range(1, 4):
        budget.give_back(1, 1)
        until_sync(partial(holds, lambda: len(order), count), "the next one has its room")
    assert order == [0, 1, 2]


def holds(count: Callable[[], int], wanted: int) -> bool:
    return count() == wanted


def test_a_message_over_the_limit_has_room_alone() -> None:
    budget = Budget(10, 100)
    assert budget.try_take(500)
    assert not budget.try_take(1)
    budget.give_back(1, 500)
    assert budget.try_take(1)


# ---- the future of a send ----

RESULT = SendResult("id", MessageQueue(TOPIC, "a", 0), 0, 0, "h:1")


def outcome(future: Future[SendResult]) -> SendResult | BaseException | None:
    try:
        return future.result(0)
    except BaseException as error:
        return error


@pytest.mark.parametrize("kind", [Future, ThreadFuture])
@pytest.mark.parametrize("is_waited_for", [False, True])
def test_a_future_of_a_send_does_what_futures_do(
    kind: type[Future[SendResult]], is_waited_for: bool
) -> None:
    def new() -> Future[SendResult]:
        future = kind()
        if is_waited_for:  # so that it has its condition
            assert isinstance(outcome(future), TimeoutError)
        reported[id(future)] = 0
        future.add_done_callback(report)
        return future

    def report(future: Future[SendResult]) -> None:
        reported[id(future)] += 1

    reported: dict[int, int] = {}
    stored, failed, cancelled = new(), new(), new()
    assert [each.done() for each in (stored, failed, cancelled)] == [False] * 3
    assert stored.set_running_or_notify_cancel()
    assert stored.running()
    assert not stored.cancel()
    stored.set_result(RESULT)
    failed.set_exception(KeyError("x"))
    assert cancelled.cancel()
    assert not cancelled.set_running_or_notify_cancel()
    assert [each.done() for each in (stored, failed, cancelled)] == [True] * 3
    assert [each.cancelled() for each in (stored, failed, cancelled)] == [False, False, True]
    assert (stored.result(), stored.exception()) == (RESULT, None)
    assert isinstance(failed.exception(), KeyError)
    assert [type(outcome(each)) for each in (failed, cancelled)] == [KeyError, CancelledError]
    with pytest.raises(CancelledError):
        cancelled.exception()
    assert list(reported.values()) == [1, 1, 1]
    stored.add_done_callback(report)
    assert list(reported.values()) == [2, 1, 1]
    for each in (stored, failed, cancelled):
        with pytest.raises(InvalidStateError):
            each.set_result(RESULT)


def test_threads_wait_for_futures_of_sends() -> None:
    futures: list[Future[SendResult]] = [ThreadFuture() for _ in range(4)]
    outcomes: list[object] = []
    waits: list[Callable[[], object]] = [
        futures[0].result,
        lambda: wait(futures).not_done,
        lambda: len(list(as_completed(futures))),
    ]
    threads = [threading.Thread(target=lambda call=call: outcomes.append(call())) for call in waits]
    for thread in threads:
        thread.start()
    for future in futures:
        future.set_result(RESULT)
    for thread in threads:
        thread.join(10)
    assert len(outcomes) == 3
    assert all(each in (RESULT, set(), 4) for each in outcomes)


# ---- SystemExit of the user's code in the thread of a producer ----


class Leaving(Interceptor):
    """Raises SystemExit where `where` says."""

    def __init__(self, where: str) -> None:
        self._where = where

    def follows_send(self, message: Message) -> bool:
        return True

    def after_send(
        self, message: Message, result: SendResult | None, error: BaseException | None
    ) -> None:
        if self._where == "after_send":
            sys.exit(3)

    def after_send_request(
        self, topic: str, message_count: int, elapsed_s: float, error: BaseException | None
    ) -> None:
        if self._where == "after_send_request":
            sys.exit(3)


@pytest.mark.parametrize("where", ["after_send", "after_send_request"])
@pytest.mark.parametrize("is_refused", [False, True])
def test_an_exit_of_an_interceptor_changes_no_send(
    cluster: MemoryCluster, where: str, is_refused: bool
) -> None:
    def refuse(address: str, request: Any) -> Any:
        raise MqError(Code.MESSAGE_ILLEGAL, "no")

    if is_refused:
        cluster.answers["Send"] = refuse
    client = producer(cluster, interceptors=[Leaving(where)])
    with ProducerFacade[AsyncProducer](client) as plain:
        for _ in range(3):
            for future in [plain.send_async(message) for message in messages(5)]:
                error = future.exception(10)
                assert getattr(error, "code", None) == (
                    Code.MESSAGE_ILLEGAL if is_refused else None
                )


def test_an_exit_of_a_selector_fails_its_send_alone(cluster: MemoryCluster) -> None:
    def choose(message: Message, queues: Sequence[MessageQueue]) -> MessageQueue:
        return sys.exit(3) if message.body == b"1" else queues[0]

    with ProducerFacade[AsyncProducer](producer(cluster)) as plain:
        for _ in range(2):
            sent = [plain.send_async(message, selector=choose) for message in messages(3)]
            outcomes = [type(future.exception(10)) for future in sent]
            assert outcomes == [type(None), SystemExit, type(None)]
        with pytest.raises(SystemExit):
            plain.send(messages(2)[1], selector=choose)
        assert plain.send(messages(2)[0], selector=choose).queue.queue_id == 0
