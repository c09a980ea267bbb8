"""Failed deliveries in the log and in `on_error`: first failure, death, and equal ones counted."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from aerobee_client import ConsumeFailure
from aerobee_client.consume_result import ConsumeResult, DeadLetter, ReconsumeLater
from aerobee_client.consuming import concurrent_consumption, failure_reports
from aerobee_client.message import ReceivedMessage
from aerobee_client.observing import application
from aerobee_client.options.consumer import ConsumeFromWhere, MessageModel
from aerobee_wire.status import Code, MqError
from support.client.consumer_group import DEAD, Join, committed, fill
from support.client.memory import MemoryBroker, MemoryCluster
from support.clock.polling import until

SOON = timedelta(milliseconds=10)
BROADCASTING: dict[str, Any] = {
    "message_model": MessageModel.BROADCASTING,
    "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
}


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Warnings of the reports."""
    return [
        record
        for record in caplog.records
        if record.name == failure_reports.__name__ and record.levelno == logging.WARNING
    ]


def fail(message: ReceivedMessage) -> None:
    raise ValueError("no arrival time")


async def test_the_first_failure_and_the_death_are_warnings(
    broker: MemoryBroker, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    broker.max_reconsume_times = 2
    fill(broker, 1)
    await join(fail)
    await until(lambda: len(warnings(caplog)) == 2)
    failed, died = warnings(caplog)
    assert failed.exc_info is not None and failed.exc_info[0] is ValueError
    assert "test_failure_reports.fail failed" in failed.message
    assert "no arrival time" in died.message and DEAD in died.message
    assert "attempt 3" in died.message
    assert died.exc_info is None, "its traceback was logged less than a minute ago"


@pytest.mark.parametrize("orderly", [False, True])
async def test_equal_failures_share_a_traceback_and_are_counted(
    broker: MemoryBroker,
    join: Join,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    orderly: bool,
) -> None:
    monkeypatch.setattr(failure_reports, "THROTTLE_S", 0.2)
    fill(broker, 40)

    def listen(message: ReceivedMessage) -> None:
        if message.body == b"1":
            raise KeyError("another cause")
        fail(message)

    settings: dict[str, Any] = {"orderly": True, "suspend_time": SOON} if orderly else {}
    consumer = await join(listen, max_reconsume_times=0, **settings)
    await until(lambda: committed(broker) == 40 or len(broker.messages(DEAD)) == 40)
    await consumer.close()
    tracebacks = [record.exc_info[0] for record in warnings(caplog) if record.exc_info]
    counts = [record.args for record in warnings(caplog) if "more messages" in record.msg]
    logged = [record for record in warnings(caplog) if "more messages" not in record.msg]
    assert set(tracebacks) == {ValueError, KeyError}
    assert sum(count for count, _ in counts) + len(logged) == 2 * 40  # type: ignore[misc]
    assert any(f"failed with ValueError at {__file__}:" in cause for _, cause in counts)  # type: ignore


async def test_a_result_of_a_wrong_type_is_a_warning(
    broker: MemoryBroker, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    fill(broker, 1)
    failures: list[ConsumeFailure] = []
    await join(lambda message: not message.reconsume_times or None, on_error=failures.append)
    await until(lambda: failures)
    (record,) = warnings(caplog)
    assert record.exc_info is not None and "returned bool" in str(record.exc_info[1])
    assert isinstance(failures[0].error, TypeError)


async def test_verdicts_are_no_failures(
    broker: MemoryBroker, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    """Not even for `on_error`, unless the message dies."""
    fill(broker, 3)
    failures: list[ConsumeFailure] = []
    consumed: list[bytes] = []

    def listen(message: ReceivedMessage) -> ConsumeResult | None:
        if message.reconsume_times:
            consumed.append(message.body)
            return None
        if message.body == b"0":
            raise ReconsumeLater("busy", delay_level=1)
        if message.body == b"1":
            return ConsumeResult.RECONSUME_LATER
        raise DeadLetter("hopeless")

    consumer = await join(listen, on_error=failures.append)
    await until(lambda: len(consumed) == 2 and failures)
    await consumer.close()
    (failure,) = failures
    assert (failure.message.body, failure.reason, failure.died) == (b"2", "DeadLetter", True)
    (death,) = warnings(caplog)
    assert "hopeless" in death.message and death.exc_info is None


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("kind", ["thread", "task"])
async def test_on_error_gets_each_failure_of_a_message(
    broker: MemoryBroker, join: Join, orderly: bool, kind: str
) -> None:
    broker.max_reconsume_times = 2
    fill(broker, 1)
    failures: list[ConsumeFailure] = []
    threads: set[threading.Thread] = set()

    def on_error(failure: ConsumeFailure) -> None:
        threads.add(threading.current_thread())
        failures.append(failure)

    async def on_error_async(failure: ConsumeFailure) -> None:
        on_error(failure)

    settings: dict[str, Any] = {}
    if orderly:
        settings = {"orderly": True, "suspend_time": SOON, "max_reconsume_times": 2}
    consumer = await join(
        fail, on_error=on_error if kind == "thread" else on_error_async, **settings
    )
    await until(lambda: broker.messages(DEAD))
    await consumer.close()
    *alive, dead = failures
    assert [(failure.attempt, failure.died) for failure in alive] == [(1, False), (2, False)]
    assert (dead.attempt, dead.died) == (3, True)
    assert (dead.reason, dead.description) == ("ValueError", "no arrival time")
    assert dead.error is not None and dead.error.__traceback__ is not None
    assert dead.message.body == b"0"
    assert (threading.main_thread() in threads) is (kind == "task")


async def test_an_error_of_on_error_is_logged_and_changes_nothing(
    broker: MemoryBroker, join: Join, caplog: pytest.LogCaptureFixture
) -> None:
    broker.max_reconsume_times = 0
    fill(broker, 4)

    def on_error(failure: ConsumeFailure) -> None:
        raise RuntimeError("no network")

    consumer = await join(fail, on_error=on_error)
    await until(lambda: len(broker.messages(DEAD)) == 4)
    await consumer.close()
    assert committed(broker) == 4
    assert len([each for each in caplog.records if "on_error failed" in each.message]) == 4


async def test_an_on_error_that_hangs_does_not_hold_the_consumer(
    broker: MemoryBroker, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "TIMEOUT_S", 0.05)
    broker.max_reconsume_times = 0
    fill(broker, 20)
    go_on = threading.Event()

    def on_error(failure: ConsumeFailure) -> None:
        go_on.wait()

    try:
        consumer = await join(fail, on_error=on_error)
        await until(lambda: len(broker.messages(DEAD)) == 20)
        await consumer.close()
        assert committed(broker) == 20
    finally:
        go_on.set()


async def test_on_error_of_a_message_that_the_broker_does_not_take_back(
    broker: MemoryBroker, cluster: MemoryCluster, join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrent_consumption, "CONSUME_AGAIN_S", 0.01)
    cluster.answers["SendBack"] = MqError(Code.NO_PERMISSION, "the broker is not writable")
    fill(broker, 1)
    failures: list[ConsumeFailure] = []

    def listen(message: ReceivedMessage) -> None:
        if message.reconsume_times < 2:
            fail(message)

    await join(listen, on_error=failures.append)
    await until(lambda: len(failures) == 2)
    assert [(failure.attempt, failure.died) for failure in failures] == [(1, False), (2, False)]


async def test_on_error_of_a_listener_that_ran_too_long(broker: MemoryBroker, join: Join) -> None:
    fill(broker, 1)
    release, failures = threading.Event(), list[ConsumeFailure]()

    def listen(message: ReceivedMessage) -> None:
        if not message.reconsume_times:
            release.wait()

    try:
        await join(listen, consume_timeout=timedelta(milliseconds=50), on_error=failures.append)
        await until(lambda: failures)
    finally:
        release.set()
    assert (failures[0].reason, failures[0].error) == ("ConsumeTimeout", None)


async def test_a_broadcast_message_dies_when_it_is_skipped(
    broker: MemoryBroker,
    join: Join,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(concurrent_consumption, "CONSUME_AGAIN_S", 0.01)
    fill(broker, 1)
    failures: list[ConsumeFailure] = []
    await join(fail, on_error=failures.append, broadcast_attempts=2, **BROADCASTING)
    await until(lambda: len(failures) == 2)
    assert [(failure.attempt, failure.died) for failure in failures] == [(1, False), (2, True)]
    assert "skipped" in warnings(caplog)[-1].message
