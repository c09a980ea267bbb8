"""Messages: one by id, a search in a topic, and the pages of a queue."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aerobee_client.admin.descriptions import GroupState, QueueStatus, SearchResult, TrackedMessage
from aerobee_client.message import ReceivedMessage
from aerobee_console.masking import Mask
from aerobee_console.reading.source import NO_ANSWER, Answer, Asking, Silent, Source
from aerobee_console.reading.text import Body, body_of
from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import group_of, is_system

HIDDEN = "the body is hidden: it is not JSON, so that --mask cannot be applied to it"
MAX_FOUND = 100
MAX_SCANNED = 200_000  # by each broker, which takes about a second
BROWSE_ROWS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRow:
    """A message in a list."""

    message_id: str
    offset_message_id: str
    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    tag: str
    keys: tuple[str, ...]
    size: int
    reconsume_times: int
    store_timestamp_ms: int
    failure_reason: str

    @classmethod
    def of(cls, message: ReceivedMessage, mask: Mask) -> MessageRow:
        return cls(
            message_id=message.message_id,
            offset_message_id=message.offset_message_id,
            topic=message.stored_topic,
            broker_name=message.broker_name,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            tag=mask.text(properties.TAGS, message.tag),
            keys=tuple(mask.text(properties.KEYS, key) for key in message.keys),
            size=message.store_size,
            reconsume_times=message.reconsume_times,
            store_timestamp_ms=message.store_timestamp_ms,
            failure_reason=message.failure_reason,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageList(Answer):
    """Messages that were found, newest first.

    `scanned` counts the messages that were examined, and `unreadable` those that may match but are
    damaged; None if no broker answered. `limits` has the limit at which a broker stopped, by name:
    MESSAGE_LIMIT, BYTE_LIMIT or SCAN_LIMIT. Such a broker may have more messages.
    """

    rows: tuple[MessageRow, ...]
    scanned: int | None
    unreadable: int | None
    limits: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePage(Answer):
    """A part of a queue, in the order of its offsets.

    `queue` is None if the topic has no queue that answered. `next_offset` is None at the end of the
    queue, and `previous_offset` at its start.
    """

    topic: str
    queues: tuple[QueueStatus, ...]
    queue: QueueStatus | None
    rows: tuple[MessageRow, ...]
    corrupted: int
    previous_offset: int | None
    next_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePage(Answer):
    """One message, and its state in each consumer group.

    `body` is None if bodies are not shown, or if it cannot be decompressed. `tracks` is None if the
    states are unknown; `track_problem` is the reason then.
    """

    row: MessageRow
    origin_topic: str
    origin_message_id: str
    failure_description: str
    born_timestamp_ms: int
    born_host: str
    store_host: str
    properties: Mapping[str, str]
    body: Body | None
    body_problem: str
    tracks: tuple[Track, ...] | None
    track_problem: str


async def message_page(
    source: Source, message_id: str, *, body_format: str = "", bodies: bool = True
) -> MessagePage:
    """Return one message by its message id or offset message id.

    Raises MqError with the code QUERY_NOT_FOUND. Its text names the brokers that did not answer.
    """
    asking, message = await _found(source, message_id)
    body: Body | None = None
    problem = "" if bodies else "bodies are not shown: the console runs with --no-bodies"
    if bodies:
        try:
            masked = source.mask.body(message.body)
        except MqError as error:
            problem = error.message
        else:
            if masked is None:
                problem = HIDDEN
            else:
                body = replace(body_of(masked, body_format), size=len(message.body))
    tracks, track_problem = await track(source, asking, message)
    return MessagePage(
        row=MessageRow.of(message, source.mask),
        origin_topic=message.origin_topic,
        origin_message_id=message.origin_message_id,
        failure_description=source.mask.text(
            properties.DLQ_REASON_DESCRIPTION, message.failure_description
        ),
        born_timestamp_ms=message.born_timestamp_ms,
        born_host=message.born_host,
        store_host=message.store_host,
        properties=source.mask.properties(dict(sorted(message.properties.items()))),
        body=body,
        body_problem=problem,
        tracks=tracks,
        track_problem=track_problem,
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


async def whole_body(source: Source, message_id: str) -> bytes:
    """Return the body of a message. Raises MqError like `message_page`, or if it is hidden."""
    body = source.mask.body((await _found(source, message_id))[1].body)
    if body is None:
        raise MqError(Code.NO_PERMISSION, HIDDEN)
    return body


async def _found(source: Source, message_id: str) -> tuple[Asking, ReceivedMessage]:
    asking = await source.ask()
    try:
        message = await asking.of(
            lambda silent: source.admin.get_message(message_id, silent=silent)
        )
    except MqError as error:
        if error.code is Code.QUERY_NOT_FOUND and asking.silent:
            raise _not_found(message_id, asking.silent) from None
        raise
    if message is None:
        raise _not_found(message_id, asking.silent)
    return asking, message


def _not_found(message_id: str, silent: tuple[Silent, ...]) -> MqError:
    names = ", ".join(each.broker_name for each in silent)
    return MqError(
        Code.QUERY_NOT_FOUND,
        f"no broker that answered has the message {message_id}; {names} did not answer and may "
        "have it: retry when it runs",
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """The result of a search, and the reasons of the brokers that did not answer."""

    result: SearchResult
    unanswered: Mapping[str, str]


async def searched(
    source: Source, asking: Asking, topic: str, *, max_messages: int = MAX_FOUND, **wanted: Any
) -> SearchResult | None:
    """Return the newest messages that meet the conditions `wanted` of `search_messages`.

    Return None if no broker answered. Raises MqError with the code TOPIC_NOT_EXIST if the topic has
    no route.
    """

    async def found() -> _Found:
        result = await source.admin.search_messages(
            topic, newest_first=True, max_messages=max_messages, **wanted
        )
        return _Found(result, {name: error.message for name, error in result.silent.items()})

    answered = await asking.merged(found)
    return answered.result if answered else None


async def search(
    source: Source,
    topic: str,
    *,
    key: str = "",
    tag: str = "",
    text: str = "",
    since_ms: int = 0,
    until_ms: int = 0,
) -> MessageList:
    """Return the newest messages of a topic that meet all conditions, with one call to each broker.

    Raises MqError with the code TOPIC_NOT_EXIST if the topic has no route.
    """
    asking = await source.ask()
    result = await searched(
        source,
        asking,
        topic,
        expression=tag or "*",
        key=key,
        text=text,
        begin_timestamp_ms=since_ms,
        end_timestamp_ms=until_ms,
        max_scanned=MAX_SCANNED,
    )
    stops = result.stops if result else {}
    return MessageList(
        rows=tuple(
            MessageRow.of(message, source.mask) for message in (result.messages if result else ())
        ),
        scanned=result.scanned if result else None,
        unreadable=result.unreadable if result else None,
        limits={name: stop for name, stop in sorted(stops.items()) if stop != "COMPLETE"},
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


async def queue_page(
    source: Source,
    topic: str,
    *,
    broker_name: str = "",
    queue_id: int | None = None,
    offset: int | None = None,
) -> QueuePage:
    """Return a page of a queue. It needs one call to each broker of the topic, and one read.

    Args:
        source: The cluster.
        topic: The name of the topic.
        broker_name: The broker of the queue. Default: that of the queue with the newest message.
        queue_id: The id of the queue.
        offset: The first offset. Default: so that the newest message is the last row.
    """
    asking = await source.ask()
    queues = await asking.of(lambda silent: source.admin.topic_status(topic, silent=silent)) or []
    queue = _chosen(queues, broker_name, queue_id)
    rows: tuple[MessageRow, ...] = ()
    corrupted, next_offset, start = 0, None, 0
    if queue is not None:
        chosen = queue
        start = max(queue.min_offset, queue.max_offset - BROWSE_ROWS if offset is None else offset)

        async def read(silent: list[MqError]) -> tuple[list[ReceivedMessage], int, int]:
            try:
                page = await source.admin.browse(
                    topic, chosen.broker_name, chosen.queue_id, start, max_messages=BROWSE_ROWS
                )
            except MqError as error:
                error.at_broker(chosen.broker_name)
                silent.append(error)
                raise
            return page.messages(), page.corrupted_count, page.next_begin_offset

        answered = await asking.of(read)
        if answered is not None:
            messages, corrupted, next_offset = answered
            rows = tuple(MessageRow.of(message, source.mask) for message in messages)
    at_end = queue is None or next_offset is None or next_offset >= queue.max_offset
    return QueuePage(
        topic=topic,
        queues=tuple(queues),
        queue=queue,
        rows=rows,
        corrupted=corrupted,
        previous_offset=(
            max(queue.min_offset, start - BROWSE_ROWS)
            if queue is not None and start > queue.min_offset
            else None
        ),
        next_offset=None if at_end else next_offset,
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


def _chosen(
    queues: list[QueueStatus], broker_name: str, queue_id: int | None
) -> QueueStatus | None:
    wanted = [
        queue
        for queue in queues
        if broker_name in ("", queue.broker_name) and queue_id in (None, queue.queue_id)
    ]
    return max(wanted, key=lambda queue: queue.latest_timestamp_ms, default=None)


# ---- track ----
#
# The track of a message: its state in each consumer group, as the brokers know it.


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
    def of(cls, tracked: TrackedMessage, mask: Mask) -> Track:
        return cls(
            topic=tracked.place.topic,
            broker_name=tracked.broker_name,
            queue_id=tracked.place.queue_id,
            queue_offset=tracked.place.queue_offset,
            due_timestamp_ms=tracked.due_timestamp_ms,
            uncommitted=tracked.uncommitted,
            groups=tuple(
                replace(
                    each,
                    failure_description=mask.text(
                        properties.DLQ_REASON_DESCRIPTION, each.failure_description
                    ),
                )
                for each in tracked.groups
            ),
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
    return tuple(Track.of(each, source.mask) for each in found), ""


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
