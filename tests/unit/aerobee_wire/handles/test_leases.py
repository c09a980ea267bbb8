"""Receipt handles that clients give back."""

from __future__ import annotations

import pytest
from aerobee.broker.v1.pop_pb2 import PopRequest, PopResponse

from aerobee_wire import record
from aerobee_wire.handles import receipt_handle
from aerobee_wire.handles.leases import handle_encoder, handle_maker, handle_of, handles_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.status import Code
from support import records
from support.codes import raises_code

HANDLE = ReceiptHandle("broker-a", "orders", "billing", 0, 7, 1, 1_700_000_000_000, 10_000, 1)


@pytest.mark.parametrize(
    ("text", "topic", "group"),
    [
        ("", "orders", "billing"),
        ("no handle", "orders", "billing"),
        (receipt_handle.encode(HANDLE), "other", "billing"),
        (receipt_handle.encode(HANDLE), "orders", "other"),
    ],
)
def test_invalid_receipt_handle(text: str, topic: str, group: str) -> None:
    with raises_code(Code.INVALID_RECEIPT_HANDLE):
        handle_of(text, topic, group)


def test_valid_receipt_handle() -> None:
    text = receipt_handle.encode(HANDLE)
    assert handle_of(text, "orders", "billing") == HANDLE


@pytest.mark.parametrize("fifo", [False, True])
def test_the_handles_of_a_pop_name_each_message_and_its_lease(fifo: bool) -> None:
    stored = records.encode(topic="orders", queue_id=3, queue_offset=17, body=b"a") + (
        records.encode(topic="%RETRY%billing", queue_id=0, queue_offset=9, body=b"b")
    )
    pop = PopRequest(topic="orders", consumer_group="billing", fifo=fifo)
    answer = PopResponse(
        broker_name="broker-a",
        records=stored,
        delivery_attempts=[1, 5],
        lease_id=77,
        pop_time_ms=1_700_000_000_000,
        invisible_duration_ms=10_000,
    )
    expected = [
        ReceiptHandle(
            broker_name="broker-a",
            topic="orders",
            consumer_group="billing",
            queue_id=queue_id,
            queue_offset=queue_offset,
            lease_id=77,
            pop_time_ms=1_700_000_000_000,
            invisible_duration_ms=10_000,
            delivery_attempt=attempt,
            of_retry_topic=of_retry_topic,
            fifo=fifo,
        )
        for queue_id, queue_offset, attempt, of_retry_topic in ((3, 17, 1, False), (0, 9, 5, True))
    ]
    assert handles_of(pop, answer) == expected
    make, encode = handle_maker(pop, answer), handle_encoder(pop, answer)
    for each, handle, attempt in zip(record.iter_records(stored), expected, (1, 5), strict=True):
        assert make(each, attempt) == handle
        assert encode(each, attempt) == receipt_handle.encode(handle)
