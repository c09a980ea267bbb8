"""The retry policy: when a message is dead-lettered, how long a retry waits, what it carries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.delivery.delay.levels import DelayQueues
from aerobee_broker.delivery.retry import policy
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.delivery.retry.send_back import Entry
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import record
from aerobee_wire.message_id import pack_host
from aerobee_wire.record import Record
from aerobee_wire.retry_policy import ExponentialRetryPolicy
from support import records
from support.broker.harness import Begin, BrokerHarness
from support.broker.pop_consumer import PopConsumer

HOST = pack_host("10.0.0.1:10911")
LEVELS = (1_000, 5_000, 10_000, 30_000, 60_000)


def stored(properties: dict[str, str] | None = None, **fields: Any) -> Record:
    encoded = records.encode(
        **{
            "topic": "t",
            "queue_id": 3,
            "queue_offset": 9,
            "physical_offset": 4_660,
            "body": b"body",
            "properties": props.encode(properties or {}),
            "flag": 5,
            "sys_flag": 1,
            "born_timestamp_ms": 77,
            "born_host": HOST,
            "store_timestamp_ms": 88,
            "store_host": HOST,
            **fields,
        }
    )
    return record.decode(encoded)


def retried(
    stored_record: Record,
    group: SubscriptionGroup | None = None,
    *,
    delay_level: int = 0,
    failure: Failure = Failure(),  # noqa: B008  # frozen
) -> tuple[NewMessage, dict[str, str]]:
    group = group or SubscriptionGroup("g")
    retry, properties = policy.retry_of(stored_record, group, queue_id=0, failure=failure)
    message = policy.delayed(
        retry,
        properties,
        stored_record.reconsume_times + 1,
        group,
        DelayQueues(LEVELS, lambda _: False, lambda: 0),
        delay_level=delay_level,
    )
    return message, props.decode(message.properties)


# ---- when a message is dead-lettered (P5) ----

# Reports that an attempt to consume has failed; with the limit that the message or the request has.
Fail = Callable[[BrokerHarness, int, int | None], Awaitable[None]]


async def fail_by_send_back(harness: BrokerHarness, attempt: int, max_times: int | None) -> None:
    stays = {"MAX_RECONSUME_TIMES": "99"}
    times = attempt - 1
    [sent] = await harness.send("%RETRY%g", b"poison", reconsume_times=times, properties=stays)
    entry = Entry(sent.physical_offset, max_reconsume_times=max_times)
    await harness.broker.sending.send_back.send_back("g", [entry])


async def fail_by_own_retry(harness: BrokerHarness, attempt: int, max_times: int | None) -> None:
    """A RocketMQ consumer that could not send back sends to its retry topic."""
    own = {} if max_times is None else {"MAX_RECONSUME_TIMES": str(max_times)}
    await harness.send("%RETRY%g", b"poison", reconsume_times=attempt, properties=own)


async def fail_by_expired_lease(
    harness: BrokerHarness, attempt: int, max_times: int | None
) -> None:
    assert max_times is None, "a lease has no limit of its own"
    await harness.send("t", b"poison")
    consumer = PopConsumer(harness, "g", "t")
    for number in range(1, attempt + 1):
        [got] = await consumer.pop(start="earliest", invisible_ms=1_000)
        assert got.attempt == number
        await asyncio.sleep(1.1)


@pytest.mark.parametrize(
    ("fail", "retry_max_times", "own_max_times", "attempts"),
    [
        (fail_by_send_back, 0, None, 1),
        (fail_by_send_back, 2, None, 3),
        (fail_by_send_back, 16, 2, 3),
        (fail_by_send_back, 0, 2, 3),
        (fail_by_own_retry, 0, None, 1),
        (fail_by_own_retry, 2, None, 3),
        (fail_by_own_retry, 16, 2, 3),
        (fail_by_own_retry, 16, 0, 1),
        (fail_by_own_retry, 2, -1, 3),  # as if it were not there
        (fail_by_expired_lease, 0, None, 1),
        (fail_by_expired_lease, 2, None, 3),
    ],
)
async def test_the_last_failed_attempt_makes_a_dead_letter(
    tmp_path: Path,
    begin: Begin,
    *,
    fail: Fail,
    retry_max_times: int,
    own_max_times: int | None,
    attempts: int,
) -> None:
    """P5, at either side of the limit, for each way in which a failure is reported."""
    for attempt in (attempts - 1, attempts):
        if attempt == 0:
            continue
        harness = await begin(tmp_path / str(attempt))
        await harness.group("g", retry_max_times=retry_max_times, retry_delays_ms=(3_600_000,))
        await harness.broker.groups.ensure_retry_topic(harness.broker.groups.get("g"))
        await fail(harness, attempt, own_max_times)
        is_dead = "%DLQ%g" in harness.broker.topics.table and await harness.bodies("%DLQ%g") != []
        assert is_dead == (attempt == attempts)


# ---- what a retry and a dead letter say ----


@pytest.mark.parametrize(
    ("times", "asked", "level"), [(0, 0, 3), (1, 0, 4), (2, 0, 5), (9, 0, 5), (0, 1, 1), (0, 99, 5)]
)
def test_without_own_delays_levels_count_from_3(times: int, asked: int, level: int) -> None:
    message, properties = retried(stored(reconsume_times=times), delay_level=asked)
    assert (message.topic, message.queue_id) == ("SCHEDULE_TOPIC_XXXX", level - 1)
    assert properties["DELAY"] == str(level)
    assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("%RETRY%g", "0")


@pytest.mark.parametrize(("times", "delay"), [(0, 250), (1, 700), (2, 700), (40, 700)])
def test_a_groups_own_delays_count_from_the_first_retry(times: int, delay: int) -> None:
    group = SubscriptionGroup("g", retry_delays_ms=(250, 700))
    message, properties = retried(stored(reconsume_times=times), group)
    assert message.queue_id >= 18
    assert properties["RETRY_DELAY_MS"] == str(delay)
    assert "DELAY" not in properties


@pytest.mark.parametrize(
    ("times", "delay"), [(0, 250), (1, 750), (2, 2_250), (3, 5_000), (40, 5_000)]
)
def test_exponential_delays_count_from_the_first_retry(times: int, delay: int) -> None:
    group = SubscriptionGroup("g", exponential_retry=ExponentialRetryPolicy(250, 5_000, 3))
    assert policy.retry_delay_ms(times + 1, group, LEVELS) == delay
    _, properties = retried(stored(reconsume_times=times), group)
    levels = {str(level): delay_ms for level, delay_ms in enumerate(LEVELS, 1)}
    waits = properties.get("RETRY_DELAY_MS") or levels[properties["DELAY"]]
    assert int(waits) == delay


def test_a_level_that_the_consumer_asks_for_counts_before_an_exponential_policy() -> None:
    group = SubscriptionGroup("g", exponential_retry=ExponentialRetryPolicy())
    _, properties = retried(stored(), group, delay_level=1)
    assert properties["DELAY"] == "1"


def test_an_own_delay_of_0_is_retried_at_once() -> None:
    message, _ = retried(stored(), SubscriptionGroup("g", retry_delays_ms=(0,)))
    assert message.topic == "%RETRY%g"


def test_an_own_delay_equal_to_a_level_uses_its_queue() -> None:
    message, properties = retried(stored(), SubscriptionGroup("g", retry_delays_ms=(10_000,)))
    assert (message.queue_id, properties["DELAY"]) == (2, "3")


def test_a_retry_keeps_the_message_and_raises_reconsume_times() -> None:
    message, properties = retried(stored({"TAGS": "a", "KEYS": "k"}, reconsume_times=4))
    assert (message.body, message.flag, message.sys_flag & 1) == (b"body", 5, 1)
    assert (message.born_timestamp_ms, message.born_host) == (77, HOST)
    assert message.reconsume_times == 5
    assert (properties["TAGS"], properties["KEYS"]) == ("a", "k")


def test_the_origin_is_that_of_the_first_failure() -> None:
    first, properties = retried(stored({"UNIQ_KEY": "U"}))
    origin = "0A00000100002A9F0000000000001234"
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == ("t", origin)
    again = stored(properties, topic="%RETRY%g", physical_offset=9_999, reconsume_times=1)
    second = props.decode(
        policy.dead_lettered(again, SubscriptionGroup("g"), failure=Failure(), attempt=2).properties
    )
    assert (second["RETRY_TOPIC"], second["ORIGIN_MESSAGE_ID"]) == ("t", origin)
    assert (second["DLQ_ORIGIN_TOPIC"], second["DLQ_ORIGIN_MESSAGE_ID"]) == ("t", "U")
    assert first.reconsume_times == 1


def test_a_dead_letter_without_unique_id_names_its_offset_id() -> None:
    dead = policy.dead_lettered(stored(), SubscriptionGroup("g"), failure=Failure(), attempt=1)
    properties = props.decode(dead.properties)
    assert (dead.topic, dead.queue_id) == ("%DLQ%g", 0)
    assert properties["DLQ_ORIGIN_MESSAGE_ID"] == "0A00000100002A9F0000000000001234"
    assert not {"DELAY", "REAL_TOPIC", "REAL_QID", "RETRY_DELAY_MS"} & properties.keys()


def test_the_last_failure_replaces_the_one_before() -> None:
    _, first = retried(stored(), failure=Failure("KeyError", "'x'"))
    assert (first["DLQ_REASON"], first["DLQ_REASON_DESCRIPTION"]) == ("KeyError", "'x'")
    _, second = retried(stored(first), failure=Failure("ValueError"))
    assert second["DLQ_REASON"] == "ValueError"
    assert "DLQ_REASON_DESCRIPTION" not in second
    _, silent = retried(stored(first))
    assert "DLQ_REASON" not in silent, "an old reason would be taken for the last"


def test_separators_in_a_reason_do_not_make_properties() -> None:
    failure = Failure("Bad\x01Error", "a\x02TAGS\x01evil\x02")
    _, properties = retried(stored({"TAGS": "good"}), failure=failure)
    assert properties["TAGS"] == "good"
    assert properties["DLQ_REASON"] == "Bad Error"
    assert properties["DLQ_REASON_DESCRIPTION"] == "a TAGS evil "


def test_reasons_are_cut_between_characters() -> None:
    _, properties = retried(stored(), failure=Failure("é" * 200, "€" * 500))
    assert properties["DLQ_REASON"] == "é" * 128  # 256 bytes
    assert properties["DLQ_REASON_DESCRIPTION"] == "€" * 341  # 1,023 of 1,024 bytes


def test_a_failure_keeps_cause_consumer_and_the_end_of_its_stack_trace() -> None:
    trace = "outermost\n" + "x" * 5_000 + "\ninnermost"
    failure = Failure("ValueError", "no", "KeyError: 'x'", trace, "host@7")
    _, first = retried(stored(), failure=failure)
    assert (first["DLQ_CAUSE"], first["DLQ_CONSUMER"]) == ("KeyError: 'x'", "host@7")
    kept = first["DLQ_STACK_TRACE"]
    assert kept.endswith("innermost") and len(kept) == policy.MAX_STACK_TRACE_BYTES
    _, second = retried(stored(first), failure=Failure("Other"))
    assert not second.keys() & {"DLQ_CAUSE", "DLQ_STACK_TRACE", "DLQ_CONSUMER"}


def test_the_longest_properties_still_fit_as_retry_and_dead_letter() -> None:
    room = props.MAX_BYTES - policy.RESERVED_PROPERTY_BYTES
    longest = {"UNIQ_KEY": "U" * 32, "k": "v" * (room - len("UNIQ_KEY..") - 32 - len("k.."))}
    assert len(props.encode(longest)) == room
    group = SubscriptionGroup("g" * 120, retry_delays_ms=(2**31,))
    failure = Failure("r" * 300, "d" * 2_000, "c" * 2_000, "t" * 9_000, "h" * 900)
    first = stored(longest, topic="t" * 127, born_host=HOST)
    message, properties = retried(first, group, failure=failure)
    assert len(message.properties) <= props.MAX_BYTES
    assert properties["DLQ_REASON"].startswith("r")
    again = stored(properties, topic="%RETRY%" + "g" * 120)
    dead = policy.dead_lettered(again, group, failure=failure, attempt=2)
    assert len(dead.properties) <= props.MAX_BYTES
