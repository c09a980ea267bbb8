"""Rules of a receive from several brokers: the time of each call, and failures that it survives.

How waiting receives are lined up is not here: a receive at the proxy names the broker that it
prefers, and a receive of a client chooses among topics and brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aerobee_wire.status import Code

HELD_S = 20.0  # how long a broker holds the call for waiting receives
VISIT_S = 2.0  # limit of a pop that is not held; messages that come later are given back
ANSWER_S = 5.0  # additional time for the answer of a broker
RETRY_S = 1.0  # pause after a broker failed
REPEATED_S = 0.5  # time for brokers to report whether they know an attempt to receive

# A receive skips a broker that fails with one of these codes.
LEFT_OUT = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.BROKER_NOT_EXIST,
        Code.REQUEST_TIMEOUT,
        Code.SERVICE_NOT_AVAILABLE,
        Code.DISK_FULL,
        Code.SYSTEM_BUSY,
    }
)

S = TypeVar("S")


async def holder(sources: Sequence[S], is_repeated: Callable[[S], Awaitable[bool]]) -> S | None:
    """Return the first source that already leased messages to an attempt to receive.

    That source returns the same messages again. `is_repeated` asks one source; all are asked at
    once.
    """
    known = await asyncio.gather(*map(is_repeated, sources))
    return next((source for source, found in zip(sources, known, strict=True) if found), None)
