"""Receipt handles that clients give back."""

from __future__ import annotations

import pytest

from aerobee_wire.handles import receipt_handle
from aerobee_wire.handles.leases import handle_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.status import Code
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
