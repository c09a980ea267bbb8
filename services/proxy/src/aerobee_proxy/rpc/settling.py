"""What AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue share.

A lease that this proxy renews must not be renewed across its settlement: it is taken off before,
and put back when the settlement failed in a way that the client will try again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aerobee_proxy.parts import Parts
from aerobee_wire.receipt_handle import ReceiptHandle
from aerobee_wire.status import Code, MqError


@asynccontextmanager
async def settling(parts: Parts, handle: ReceiptHandle) -> AsyncIterator[None]:
    released = parts.renewals.release(handle)
    try:
        yield
    except MqError as error:
        if error.code is not Code.INVALID_RECEIPT_HANDLE:
            parts.renewals.restore(released)
        raise
    except BaseException:
        parts.renewals.restore(released)
        raise
