"""Read what is stored in a topic, a retry topic or a dead-letter topic, without consuming it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aerobee_client.admin.client import AsyncAdminClient
from aerobee_client.admin.descriptions import QueueStatus
from aerobee_client.message import ReceivedMessage
from aerobee_wire.status import Code, MqError

PAGE_MESSAGES = 1_024
PAGE_BYTES = 4 * 1024 * 1024


async def stored(admin: AsyncAdminClient, topic: str) -> list[ReceivedMessage]:
    """Return every message of the topic, by store time; [] if the topic does not exist."""
    try:
        queues = await admin.topic_status(topic)
    except MqError as error:
        if error.code is not Code.TOPIC_NOT_EXIST:
            raise
        return []
    found = [message for queue in queues async for message in _stored_in(admin, queue, topic)]
    return sorted(found, key=lambda message: message.store_timestamp_ms)


async def _stored_in(
    admin: AsyncAdminClient, queue: QueueStatus, topic: str
) -> AsyncIterator[ReceivedMessage]:
    place = (topic, queue.broker_name, queue.queue_id)
    begin = queue.min_offset
    while begin < queue.max_offset:
        page = await admin.browse(*place, begin, max_messages=PAGE_MESSAGES, max_bytes=PAGE_BYTES)
        for message in page.messages():
            yield message
        if page.next_begin_offset <= begin:
            return
        begin = page.next_begin_offset
