"""Which failed sends are tried again, and after which pause."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_client.errors import BrokerUnreachable
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.producer import ProducerOptions
from aerobee_client.sending.attempts import Attempts
from aerobee_wire.status import Code, MqError

A, B = MessageQueue("t", "a", 0), MessageQueue("t", "b", 0)
DEADLINE_MS = 10_000
ABSENT = BrokerUnreachable("10.0.0.1:10911", "down")


def attempts(queue: MessageQueue | None = None, **settings: Any) -> Attempts:
    return Attempts(queue, ProducerOptions(**settings), DEADLINE_MS)


def test_another_broker_is_tried_at_once_and_the_same_one_after_a_pause() -> None:
    tried = attempts()
    assert tried.pause_after(ABSENT, A, [A, B], 0) == 0
    assert tried.avoid == "a"
    assert tried.pause_after(ABSENT, B, [A, B], 0) == 0
    assert [tried.pause_after(ABSENT, A, [A, B], 0) for _ in range(5)] == [
        *(0.05, 0.1, 0.2, 0.4, 0.5)
    ]


def test_refusals_use_up_the_retries_and_absent_brokers_do_not() -> None:
    tried = attempts(retries=1)
    refusal = MqError(Code.SYSTEM_ERROR, "broken")
    assert tried.pause_after(refusal, A, [A, B], 0) == 0
    assert tried.pause_after(ABSENT, B, [A, B], 0) == 0
    assert tried.pause_after(refusal, A, [A, B], 0) is None


def test_a_broker_may_say_how_long_to_wait() -> None:
    busy = MqError(Code.SYSTEM_BUSY, "busy", retry_after_ms=250)
    assert attempts().pause_after(busy, A, [A], 0) == 0.25


@pytest.mark.parametrize(
    ("error", "queue", "now_ms"),
    [
        (MqError(Code.MESSAGE_ILLEGAL, "bad"), None, 0),
        (MqError(Code.QUEUE_NOT_EXIST, "gone"), A, 0),
        (ABSENT, None, DEADLINE_MS),
        (ABSENT, A, DEADLINE_MS - 50),
    ],
    ids=["refused message", "chosen queue", "deadline", "deadline within the pause"],
)
def test_some_failures_end_the_send(
    error: MqError, queue: MessageQueue | None, now_ms: int
) -> None:
    assert attempts(queue).pause_after(error, A, [A, B], now_ms) is None


def test_what_is_stored_and_not_durable_may_be_tried_at_another_broker() -> None:
    not_ok = MqError(Code.FLUSH_DISK_TIMEOUT, "stored")
    assert attempts().pause_after(not_ok, A, [A, B], 0) is None
    wanted = attempts(retry_another_broker_when_not_store_ok=True, retries=1)
    assert wanted.pause_after(not_ok, A, [A], 0) is None, "there is no other"
    assert wanted.pause_after(not_ok, A, [A, B], 0) == 0
    assert wanted.pause_after(not_ok, B, [A, B], 0) is None, "the retries are used up"
    chosen = attempts(A, retry_another_broker_when_not_store_ok=True)
    assert chosen.pause_after(not_ok, A, [A, B], 0) is None
