"""Options of every client: unknown names, and values of another kind, are refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from aerobee_client import PullConsumer, SimpleConsumer, TransactionProducer, TransactionResolution
from aerobee_client.producer import AsyncProducer, Producer
from aerobee_client.push_consumer import AsyncPushConsumer, PushConsumer
from aerobee_wire.status import Code, MqError

TRANSACTIONS = partial[Any](TransactionProducer, check=lambda _: TransactionResolution.UNKNOWN)
KINDS = [
    AsyncProducer,
    Producer,
    partial(AsyncPushConsumer, listener=print),
    partial(PushConsumer, listener=print),
    PullConsumer,
    SimpleConsumer,
    TRANSACTIONS,
]


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_option_is_refused(kind: Any) -> None:
    with pytest.raises(MqError) as caught:
        kind("g", nothing_like_it=1)
    assert (caught.value.code, caught.value.about) == (Code.INVALID_PARAMETER, "nothing_like_it")


@pytest.mark.parametrize(
    ("kind", "given", "meant"),
    [
        (AsyncProducer, "timeout", "send_timeout"),
        (AsyncProducer, "accumulation", "accumulate"),
        (AsyncPushConsumer, "consume_from", "consume_from_where"),
        (AsyncPushConsumer, "pullBatchSize", "pull_batch_size"),
        (PullConsumer, "auto_comit", "auto_commit"),
        (SimpleConsumer, "fif", "fifo"),
        (TRANSACTIONS, "send_timout", "send_timeout"),
    ],
)
def test_the_nearest_name_is_reported(kind: Any, given: str, meant: str) -> None:
    with pytest.raises(MqError) as caught:
        kind("g", **{given: 1})
    assert caught.value.about == given
    assert meant in caught.value.message


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Producer, {"send_timeout": 5}),
        (Producer, {"accumulate": "no"}),
        (Producer, {"retries": 1.5}),
        (Producer, {"retries": True}),
        (KINDS[3], {"message_model": "BROADCASTING"}),
        (KINDS[3], {"consume_from_where": "FIRST_OFFSET"}),
        (KINDS[3], {"concurrency": "4"}),
        (KINDS[3], {"max_reconsume_times": 1.5}),
        (KINDS[3], {"suspend_time": 1, "orderly": True}),
        (KINDS[3], {"strategy": 5}),
        (PullConsumer, {"auto_commit_interval": 5}),
        (PullConsumer, {"pull_threshold_for_topic": 1.5}),
        (SimpleConsumer, {"request_timeout": 10}),
        (SimpleConsumer, {"fifo": None}),
    ],
)
def test_a_value_of_another_kind_is_refused(kind: Any, options: dict[str, Any]) -> None:
    with pytest.raises(MqError) as caught:
        kind("g", **options)
    assert (caught.value.code, caught.value.about) == (Code.INVALID_PARAMETER, next(iter(options)))
