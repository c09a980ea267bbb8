"""Verdicts: what a listener's answer or exception means for each message."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from aerobee.broker.v1.message_pb2 import StoredMessage

from aerobee_client.consume_result import ConsumeResult, DeadLetter, ReconsumeLater
from aerobee_client.consuming.listener import Consume, rejection_of, verdicts
from aerobee_client.consuming.send_back import Rejection
from aerobee_client.message import ReceivedMessage
from aerobee_wire.status import Code
from support.codes import raises_code

MESSAGES = [ReceivedMessage(StoredMessage(body=body)) for body in (b"m1", b"m2")]


def test_none_and_success_mean_consumed() -> None:
    assert verdicts(None, 2) == [None, None]
    assert verdicts(ConsumeResult.SUCCESS, 1) == [None]


def test_reconsume_later_follows_the_policy_of_the_group() -> None:
    (rejection,) = verdicts(ConsumeResult.RECONSUME_LATER, 1)
    assert rejection is not None and rejection.delay_level == 0


def test_dead_letter_asks_for_the_dead_letter_topic() -> None:
    (rejection,) = verdicts(ConsumeResult.DEAD_LETTER, 1)
    assert rejection is not None and rejection.delay_level == -1


def test_a_list_has_a_verdict_for_each_message() -> None:
    first, second = verdicts([ConsumeResult.SUCCESS, ConsumeResult.RECONSUME_LATER], 2)
    assert first is None and second is not None


@pytest.mark.parametrize("answer", [True, 1, "ok", [ConsumeResult.SUCCESS], [1, 2]])
def test_any_other_answer_is_refused(answer: object) -> None:
    with pytest.raises(TypeError):
        verdicts(answer, 2)


def test_an_exception_becomes_reason_and_description() -> None:
    assert rejection_of(ValueError("no arrival time")) == Rejection("ValueError", "no arrival time")


def test_exceptions_may_choose_the_delay_level() -> None:
    assert rejection_of(ReconsumeLater("busy", delay_level=2)) == Rejection(
        "ReconsumeLater", "busy", 2
    )
    assert rejection_of(DeadLetter("hopeless")).delay_level == -1


@pytest.mark.parametrize("level", [-1, 19])
def test_reconsume_later_refuses_levels_that_do_not_exist(level: int) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        ReconsumeLater(delay_level=level)


def test_exceptions_may_choose_any_delay_and_count_as_no_attempt() -> None:
    later = ReconsumeLater("busy", delay=timedelta(seconds=1.5), counted=False)
    assert rejection_of(later) == Rejection("ReconsumeLater", "busy", 0, 1_500, counted=False)
    assert rejection_of(ReconsumeLater(delay=timedelta(microseconds=1))).delay_ms == 1
    assert rejection_of(ReconsumeLater(delay=timedelta(0))).delay_ms == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": timedelta(seconds=-1)},
        {"delay": timedelta(days=3, milliseconds=1)},
        {"delay": timedelta(seconds=1), "delay_level": 1},
    ],
)
def test_reconsume_later_refuses_delays_out_of_bounds(wrong: dict[str, Any]) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        ReconsumeLater(**wrong)


def test_listener_gets_one_message_and_batch_listener_the_list() -> None:
    seen: list[object] = []
    assert Consume(seen.append, None).call(MESSAGES[:1]) == [None]
    assert Consume(None, seen.append).call(MESSAGES) == [None, None]
    assert seen == [MESSAGES[0], MESSAGES]


def test_any_exception_of_a_listener_rejects_all_its_messages() -> None:
    def leave(messages: Any) -> None:
        raise SystemExit(3)

    assert Consume(None, leave).call(MESSAGES) == [Rejection("SystemExit", "3")] * 2


async def test_a_message_that_cannot_be_looked_at_is_rejected() -> None:
    """Whoever runs listeners goes on."""

    class Damaged(ReceivedMessage):
        @property
        def is_request(self) -> bool:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "its properties are no text")

    async def listen(message: Any) -> None: ...

    damaged: list[ReceivedMessage] = [Damaged(StoredMessage())]
    for found in (
        Consume(print, None).call(damaged),
        await Consume(listen, None).call_async(damaged),
    ):
        (rejection,) = found
        assert rejection is not None and rejection.reason == "UnicodeDecodeError"


async def test_coroutine_listener_is_awaited() -> None:
    async def listen(message: Any) -> None:
        await asyncio.sleep(0)
        raise KeyError(message.body)

    class Listener:
        async def __call__(self, message: Any) -> None:
            await asyncio.sleep(0)

    consume = Consume(listen, None)
    assert consume.is_coroutine
    assert await consume.call_async(MESSAGES[:1]) == [Rejection("KeyError", "b'm1'")]
    assert Consume(Listener(), None).is_coroutine


async def test_only_cancelling_the_task_cancels_a_listener() -> None:
    async def listen(message: Any) -> None:
        await inner

    consume = Consume(listen, None)
    inner = asyncio.get_running_loop().create_future()
    inner.cancel()
    assert await consume.call_async(MESSAGES[:1]) == [Rejection("CancelledError", "")]

    inner = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(consume.call_async(MESSAGES[:1]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("listeners", [(None, None), (print, print)])
def test_exactly_one_listener_is_needed(listeners: tuple[Any, Any]) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        Consume(*listeners)


def test_an_exception_whose_text_raises_is_described() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    assert rejection_of(Mute()) == Rejection("Mute", "(its __str__ raised RuntimeError)", 0)
