"""Handle messages that the listener of a broadcasting member rejects.

They are retried in place and then skipped. A retry topic would deliver them to one member only.
"""

from __future__ import annotations

import asyncio
import logging

from aerobee_client.consuming.send_back import CONSUME_TIMEOUT, Rejection, Rejections
from aerobee_client.message import ReceivedMessage

log = logging.getLogger(__name__)


class PassOver(Rejections):
    """Retries or skips rejected messages.

    `attempts` is the maximum number of listener calls with one message. `passed_over` counts the
    messages that were skipped since the start.
    """

    def __init__(self, attempts: int) -> None:
        self.passed_over = 0
        self._attempts = attempts

    def send(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[bool]:
        """Return True if the message is skipped, and False if it must be retried.

        It is skipped at once if the listener wants it dead-lettered or is still processing it.
        """
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
