"""Reading the dead letters of a consumer group. By queue offset: reading consumes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aerobee_client.admin.client import AsyncAdminClient
from aerobee_client.admin.descriptions import QueueStatus
from aerobee_client.errors import MqError
from aerobee_client.message import ReceivedMessage
from aerobee_wire.status import Code
from aerobee_wire.topics import check_group, dead_letter_topic

# Messages of one read; its bytes are limited by the second number, whatever the messages weigh.
PAGE_MESSAGES = 1_024
PAGE_BYTES = 4 * 1024 * 1024


class DeadLetters:
    """The dead letters of one group, broker by broker, queue by queue, oldest first.

    `corrupted`, `expired`: records that should have come and could not, so far.
    """

    def __init__(self, admin: AsyncAdminClient, consumer_group: str) -> None:
        """Raises MqError INVALID_PARAMETER for an illegal name."""
        check_group(consumer_group)
        self.consumer_group = consumer_group
        self.topic = dead_letter_topic(consumer_group)
        self.corrupted = 0
        self.expired = 0
        self._admin = admin
        # (broker name, queue id) → the queue offset to go on at
        self._positions: dict[tuple[str, int], int] = {}

    async def queues(self) -> list[QueueStatus]:
        """Their bounds; [] when nothing was ever dead-lettered.

        Raises SUBSCRIPTION_GROUP_NOT_EXIST when there is no such group either, TOPIC_NOT_EXIST when
        a broker has them and no name server knows.
        """
        try:
            return await self._admin.topic_status(self.topic)
        except MqError as error:
            if error.code is not Code.TOPIC_NOT_EXIST:
                raise
        # A purge that broke off has taken the route, which its broker brings back.
        for topic in await self._admin.list_topics(include_derived=True):
            if topic.topic == self.topic:
                names = ", ".join(one.broker_name for one in topic.brokers)
                raise MqError(
                    Code.TOPIC_NOT_EXIST,
                    f"no name server knows {self.topic} now, although broker {names} has it: try "
                    "again in half a minute",
                    retryable=True,
                )
        await self._admin.get_group(self.consumer_group)
        return []

    async def read(self) -> AsyncIterator[ReceivedMessage]:
        """What is there now; from the second call on, what came since the last one."""
        for queue in await self.queues():
            async for message in self._read_queue(queue):
                yield message

    async def _read_queue(self, queue: QueueStatus) -> AsyncIterator[ReceivedMessage]:
        place = (queue.broker_name, queue.queue_id)
        position = self._positions.get(place, queue.min_offset)
        while position < queue.max_offset:
            before = position
            page = await self._admin.browse(
                self.topic, *place, position, max_messages=PAGE_MESSAGES, max_bytes=PAGE_BYTES
            )
            self.corrupted += page.corrupted_count
            for message in page.messages():
                if message.queue_offset >= queue.max_offset:  # younger than this call: next time
                    return
                position = message.queue_offset + 1
                self._positions[place] = position
                yield message
            self.expired += max(0, page.min_offset - position)
            position = max(position, page.next_begin_offset)
            self._positions[place] = position
            # Sent back, or nowhere: the topic was deleted meanwhile and is there again. What it has
            # now is not what this call was to read.
            if page.status == "NO_NEW_MESSAGE" or position == before:
                return
