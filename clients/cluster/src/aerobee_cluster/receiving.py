"""Define the rules that the client and the proxy share when they receive from several brokers.

The rules are the time limits of each call, and the failures after which a receive continues with
another broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from aerobee_wire.status import Code

HELD_S = 20.0  # the maximum time for which a broker holds a long poll
VISIT_S = 2.0  # limit of a pop that is not a long poll; later messages are returned to the group
# The limit at a broker whose last pop did not answer in time, as while its disk hangs. So such a
# broker delays one receive only.
BRIEF_VISIT_S = 0.05
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
    """Return the first source that already leased messages to an earlier, identical attempt.

    If the attempt is repeated at that source, the source returns the same messages. `is_repeated`
    asks one source; all sources are asked concurrently. Return None if no source has leased any.
    """
    known = await asyncio.gather(*map(is_repeated, sources))
    return next((source for source, found in zip(sources, known, strict=True) if found), None)
