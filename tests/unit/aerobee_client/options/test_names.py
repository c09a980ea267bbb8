"""Unknown options are refused with the name that was probably meant."""

from __future__ import annotations

from typing import Any

import pytest

from aerobee_client.plain_producer import Producer
from aerobee_client.producer import AsyncProducer
from aerobee_client.push_consumer import AsyncPushConsumer, PushConsumer
from aerobee_wire.status import Code, MqError


@pytest.mark.parametrize("kind", [AsyncProducer, Producer, AsyncPushConsumer, PushConsumer])
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
    ],
)
def test_the_nearest_name_is_told(kind: Any, given: str, meant: str) -> None:
    with pytest.raises(MqError) as caught:
        kind("g", **{given: 1})
    assert caught.value.about == given
    assert meant in caught.value.message
