"""Keep the offsets of a broadcasting member, and handle the messages that its listener rejects.

Brokers do not know these offsets, so they do not report the lag of such a group. Rejected messages
are retried in place and then skipped: a retry topic would deliver them to one member only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from aerobee_client.consuming.offsets import OffsetTable
from aerobee_client.consuming.send_back import CONSUME_TIMEOUT, Outcome, Rejection, Rejections
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import MessageModel
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_client.consuming.offset_file import OffsetFile

log = logging.getLogger(__name__)


class LocalOffsets(OffsetTable):
    """Keeps the offsets of a broadcasting member.

    If `file` is None, the offsets are in memory only and are lost when the consumer ends.
    """

    message_model = MessageModel.BROADCASTING

    def __init__(self, file: OffsetFile | None) -> None:
        super().__init__()
        self._file = file
        self._kept: dict[MessageQueue, int] = {}
        self._written: dict[MessageQueue, int] = {}
        self._writing = asyncio.Lock()

    async def open(self) -> None:
        if self._file is not None:
            self._kept = await asyncio.to_thread(self._file.open)
            self._written = dict(self._kept)

    async def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def discard(self, queue: MessageQueue) -> None:
        super().discard(queue)
        self._kept.pop(queue, None)

    def commit_with_pull(self, queue: MessageQueue) -> int | None:
        return None

    async def load(self, topic: str, broker_name: str) -> dict[int, int]:
        return {
            queue.queue_id: queue_offset
            for queue, queue_offset in self._kept.items()
            if (queue.topic, queue.broker_name) == (topic, broker_name)
        }

    async def commit(
        self,
        queues: Iterable[MessageQueue] | None = None,
        on_topic_deleted: Callable[[MessageQueue], None] = lambda _: None,
    ) -> None:
        chosen = self._offsets if queues is None else queues
        self._kept |= {queue: self._offsets[queue] for queue in chosen if queue in self._offsets}
        if self._file is None:
            return
        async with self._writing:
            offsets = dict(self._kept)
            if offsets == self._written:
                return
            try:
                await asyncio.to_thread(self._file.write, offsets)
            except MqError as error:
                log.warning("offsets not kept: %s", error)
            else:
                self._written = offsets


class PassOver(Rejections):
    """Retries or skips rejected messages.

    `attempts` is the maximum number of listener calls with one message. `passed_over` counts the
    messages that were skipped since the start.
    """

    def __init__(self, attempts: int) -> None:
        self.passed_over = 0
        self._attempts = attempts

    def send(self, message: ReceivedMessage, rejection: Rejection) -> asyncio.Future[Outcome]:
        """Decide whether a rejected message is skipped (DEAD) or retried by this member (KEPT).

        It is skipped after the last attempt, if the listener dead-letters it, or if the listener
        timed out.
        """
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        last = (
            message.reconsume_times + 1 >= self._attempts
            or rejection.delay_level < 0
            or rejection.reason == CONSUME_TIMEOUT
        )
        if last:
            self.passed_over += 1
        done.set_result(Outcome.DEAD if last else Outcome.KEPT)
        return done

    async def drain(self) -> None: ...
