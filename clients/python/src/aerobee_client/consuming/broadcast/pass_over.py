"""What becomes of the messages that the listener of a broadcasting member rejects: they are tried
again in place, then passed over. There is no retry topic: it would send them to one member.
"""

from __future__ import annotations

import asyncio
import logging

from aerobee_client.consuming.send_back import CONSUME_TIMEOUT, Rejection, Rejections
from aerobee_client.message import ReceivedMessage

log = logging.getLogger(__name__)


class PassOver(Rejections):
    """`attempts`: calls of the listener with one message. `passed_over`: messages that were given
    up since the start."""

    def __init__(self, attempts: int) -> None:
        self.passed_over = 0
        self._attempts = attempts

    def send(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[bool]:
        """True: the message is passed over; False: it is to be tried again. Never tried again: one
        that the listener wants dead-lettered, or at which it still works."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        last = (
            message.reconsume_times + 1 >= self._attempts
            or rejection.delay_level < 0
            or rejection.reason == CONSUME_TIMEOUT
        )
        if last:
            self.passed_over += 1
            log.error(
                "%r passed over after %d attempts: %s: %s",
                message,
                message.reconsume_times + 1,
                rejection.reason,
                rejection.description,
            )
        done.set_result(last)
        return done

    async def drain(self) -> None: ...
