"""How a message asks for a time of its own, and the tags code of its consume-queue unit."""

from __future__ import annotations

import pytest

from aerobee_broker.delivery.delay.timer_format import (
    TimerQueue,
    recall_marker,
    recalled_offset,
    unit_code,
)
from aerobee_broker.errors import MessageIllegal, TooManyTimers
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props

NOW = 1_700_000_000_000
HOUR = 3_600_000


def queue(waiting: int = 0) -> TimerQueue:
    return TimerQueue(range(waiting), max_delay_ms=72 * HOUR, max_messages=2)


def routed(asked: dict[str, str]) -> NewMessage | None:
    return queue().by_time(NewMessage("t", 3, b"x"), dict(asked), NOW)


@pytest.mark.parametrize(
    ("asked", "due"),
    [
        ({"TIMER_DELIVER_MS": str(NOW + 1)}, NOW + 1),
        ({"TIMER_DELIVER_MS": str(NOW + 12_345)}, NOW + 12_345),
        ({"TIMER_DELAY_MS": "250"}, NOW + 250),
        ({"TIMER_DELAY_SEC": "7"}, NOW + 7_000),
        ({"TIMER_DELAY_MS": "9", "TIMER_DELAY_SEC": "7"}, NOW + 7_000),
        ({"TIMER_DELIVER_MS": str(NOW + 1), "TIMER_DELAY_MS": "9"}, NOW + 9),
        ({"TIMER_DELAY_SEC": str(72 * 3_600)}, NOW + 72 * HOUR),
    ],
)
def test_a_message_waits_in_the_timer_topic_until_its_time(asked: dict[str, str], due: int) -> None:
    message = routed({"TAGS": "a", **asked})
    assert message is not None
    assert (message.topic, message.queue_id, message.body) == ("rmq_sys_wheel_timer", 0, b"x")
    properties = props.decode(message.properties)
    assert properties["TIMER_OUT_MS"] == str(due)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"], properties["TAGS"]) == ("t", "3", "a")
    assert unit_code(message.properties, NOW) == due


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"TIMER_DELIVER_MS": str(NOW)},
        {"TIMER_DELIVER_MS": "0"},
        {"TIMER_DELIVER_MS": "-1"},
        {"TIMER_DELAY_MS": "0"},
        {"TIMER_DELAY_SEC": "-3"},
        # A delivered message that a client sends again.
        {"TIMER_DELAY_SEC": "3", "TIMER_OUT_MS": "1"},
    ],
)
def test_a_message_without_a_future_time_does_not_wait(asked: dict[str, str]) -> None:
    assert routed(asked) is None


@pytest.mark.parametrize(
    "asked",
    [
        {"TIMER_DELAY_SEC": "1.5"},
        {"TIMER_DELAY_MS": ""},
        {"TIMER_DELIVER_MS": "9" * 30},
        {"TIMER_DELIVER_MS": str(NOW + 72 * HOUR + 1)},
    ],
)
def test_a_time_that_cannot_be_kept_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(MessageIllegal):
        routed(asked)


def test_above_the_limit_messages_are_refused() -> None:
    timers = queue(waiting=2)
    with pytest.raises(TooManyTimers) as caught:
        timers.by_time(NewMessage("t", 0, b"x"), {"TIMER_DELAY_MS": "1"}, NOW)
    assert caught.value.retryable


@pytest.mark.parametrize("offset", [0, 1, 123_456_789])
def test_the_unit_of_a_recall_names_the_recalled_message(offset: int) -> None:
    marker = recall_marker("t", "U1", offset, NOW)
    assert recalled_offset(unit_code(marker.properties, NOW)) == offset
    properties = props.decode(marker.properties)
    assert (properties["TAGS"], properties["TIMER_DEL_UNIQKEY"]) == ("_RECALL_TAG_", "t+U1")


def test_a_sender_cannot_turn_a_message_into_a_recall() -> None:
    message = routed({"TIMER_DELAY_MS": "9", "TIMER_DEL_QUEUE_OFFSET": "0"})
    assert message is not None
    assert unit_code(message.properties, NOW) == NOW + 9


def test_a_record_without_a_time_is_due_at_once() -> None:
    assert unit_code(b"", NOW) == NOW
    assert unit_code(b"TIMER_OUT_MS\x01soon\x02", NOW) == NOW
