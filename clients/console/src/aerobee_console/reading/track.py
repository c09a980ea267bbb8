"""The track of a message: its state in each consumer group, as the brokers know it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aerobee_client.admin.descriptions import GroupState, TrackedMessage
from aerobee_client.message import ReceivedMessage
from aerobee_console.reading.source import NO_ANSWER, Asking, Source
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import group_of, is_system

# A broker may read its lease journal for half a minute. A page does not wait longer than this.
PATIENCE_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A stored message and its state in each group.

    `due_timestamp_ms` is the delivery time for which it waits; 0 if it does not wait. `uncommitted`
    messages are in a transaction that is open or was rolled back.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    due_timestamp_ms: int
    uncommitted: bool
    groups: tuple[GroupState, ...]

    @classmethod
    def of(cls, tracked: TrackedMessage) -> Track:
        return cls(
            topic=tracked.place.topic,
            broker_name=tracked.broker_name,
            queue_id=tracked.place.queue_id,
            queue_offset=tracked.place.queue_offset,
            due_timestamp_ms=tracked.due_timestamp_ms,
            uncommitted=tracked.uncommitted,
            groups=tracked.groups,
        )


async def track(
    source: Source, asking: Asking, message: ReceivedMessage
) -> tuple[tuple[Track, ...] | None, str]:
    """Return the tracks of a message, and the reason if they are unknown.

    A message that was sent twice has two tracks. A message in its topic needs one call to its
    broker. For a retry, a dead letter and a delayed message, each broker is called once.
    """
    try:
        async with asyncio.timeout(PATIENCE_S):
            found = await asking.of(lambda silent: _tracked(source, message, silent))
    except TimeoutError:
        return None, (
            f"the broker has not found it within {PATIENCE_S:g} s: run aerobee message track "
            f"{message.message_id}"
        )
    except MqError as error:
        if error.code is Code.NO_PERMISSION:
            raise
        return None, error.message
    if found is None:
        return None, "no broker answered"
    return tuple(map(Track.of, found)), ""


async def _tracked(
    source: Source, message: ReceivedMessage, silent: list[MqError]
) -> Sequence[TrackedMessage]:
    topic, admin = message.stored_topic, source.admin
    if group_of(topic) is not None or is_system(topic):
        return await admin.track_message(message.message_id, silent=silent)
    place = (topic, message.broker_name, message.queue_id, message.queue_offset)
    try:
        return [await admin.track_place(*place)]
    except MqError as error:
        if error.code in NO_ANSWER:
            error.at_broker(message.broker_name)
            silent.append(error)
        raise
