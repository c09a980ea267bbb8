"""What AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue share.

A lease that this proxy renews must not be renewed across its settlement: it is taken off before,
and put back when the settlement failed in a way that the client will try again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aerobee_proxy.cluster.leases import key_of
from aerobee_proxy.v2.context import Parts
from aerobee_wire.receipt_handle import ReceiptHandle
from aerobee_wire.status import Code, MqError


@asynccontextmanager
async def settling(parts: Parts, handle: ReceiptHandle) -> AsyncIterator[None]:
    released = parts.renewals.release(key_of(handle))
    try:
        yield
    except BaseException as error:
        if may_try_again(error):
            parts.renewals.restore(released)
        raise


def may_try_again(error: BaseException) -> bool:
    """Whether the lease may live on after this failure to settle it."""
    return not (isinstance(error, MqError) and error.code is Code.INVALID_RECEIPT_HANDLE)
