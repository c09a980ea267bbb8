"""Pull one message queue by long polls that fill its process queue.

The puller pauses while the process queue is full, and after failures. It ends when the process
queue is dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consuming.offsets import OffsetTable
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.message import ReceivedMessage, received
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import Sql
from aerobee_wire import rpcs
from aerobee_wire.backoff import Backoff
from aerobee_wire.queues.replica_choice import ReplicaChoice
from aerobee_wire.route import MASTER_ID
from aerobee_wire.status import Code, MqError
from aerobee_wire.tags import parse_expression

log = logging.getLogger(__name__)

SUSPEND_TIMEOUT_MS = 15_000  # the broker may hold a pull for this time
# If an empty answer arrives sooner, the pull was not held: longPollingEnable is off.
LEAST_HELD_MS = 500
CALL_TIMEOUT_S = 30.0
MAX_BYTES = 256 * 1024
BUSY_PAUSE_S = 0.02  # unless the broker specifies a pause
FAILURE_PAUSE_S = 3.0
# While a process queue is full, the broker is asked this often whether the group's offset was
# reset. It remembers a reset for one minute.
RESET_CHECK_INTERVAL_S = 20.0

_ABSENT_CODES = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.BROKER_NOT_EXIST,
        Code.SERVICE_NOT_AVAILABLE,
        Code.REQUEST_TIMEOUT,
        Code.QUEUE_LOCK_NOT_HELD,
    }
)
_BUSY_CODES = frozenset({Code.SYSTEM_BUSY, Code.FLOW_CONTROL})


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """The subscription of a topic.

    `tags` are in UTF-8; an empty set selects every message. `version` is the time of the
    subscription, in milliseconds since the epoch. If `is_sql` is true, only the broker decides
    which messages match.
    """

    topic: str
    expression: str
    tags: frozenset[bytes]
    version: int
    is_sql: bool = False

    @classmethod
    def of(cls, topic: str, expression: str | Sql, version: int) -> Self:
        """Parse an expression. Do not check SQL92, because only a broker can parse it.

        Raises MqError with the code SUBSCRIPTION_PARSE_FAILED for an invalid expression of tags.
        """
        if isinstance(expression, Sql):
            return cls(topic, expression.expression, frozenset(), version, is_sql=True)
        tags = frozenset(tag.encode() for tag in parse_expression(expression))
        return cls(topic, expression, tags, version)

    def to_proto(self) -> message_pb2.Subscription:
        kinds = message_pb2.Subscription
        return message_pb2.Subscription(
            topic=self.topic,
            expression=self.expression,
            expression_type=kinds.SQL92 if self.is_sql else kinds.TAG,
            version=self.version,
        )


OnMessages = Callable[[ProcessQueue, list[ReceivedMessage]], None]
OnOffsetMoved = Callable[[ProcessQueue, int], None]
OnTopicDeleted = Callable[[MessageQueue], None]
OnFailure = Callable[[MessageQueue, MqError], None]


def ignore_failure(_queue: MessageQueue, _error: MqError) -> None:
    """Do nothing after a failure, because the puller has logged it."""


@dataclass(frozen=True, slots=True)
class Puller:
    """Pulls message queues.

    `on_messages` is called after each pull, with the messages that were put into a process queue;
    the list may be empty. `on_offset_moved` is called with the new offset if the broker moves the
    offset, and then the loop ends. `on_topic_deleted` is called when the broker no longer has the
    topic, and then the loop ends too. `on_failure` is called with each failure. `consumer_group` is
    "" to read without a group.
    """

    instance: ClientInstance
    offsets: OffsetTable
    consumer_group: str
    batch_size: int
    on_messages: OnMessages
    on_offset_moved: OnOffsetMoved
    on_topic_deleted: OnTopicDeleted
    on_failure: OnFailure = ignore_failure

    async def run(
        self, process_queue: ProcessQueue, subscription: TopicSubscription, queue_offset: int
    ) -> None:
        """Pull from `queue_offset` on until the queue is dropped. Retry failed pulls."""
        backoff = Backoff(0.1, 1.0)
        logged = ""  # the last failure, so that a lasting one is logged once
        source = PullSource(self.instance, process_queue.queue)
        while True:
            room = await _has_room(process_queue)
            if process_queue.dropped:
                return
            try:
                request = self._request(process_queue, subscription, queue_offset, room)
                response = await source.pull(request, only_master=request.locked or not room)
                moved = response.status == message_pb2.OFFSET_MOVED
                # A reset to the same offset still discards the messages that wait here.
                if moved and (response.next_begin_offset != queue_offset or len(process_queue)):
                    self.on_offset_moved(process_queue, response.next_begin_offset)
                    return
                if room:
                    queue_offset = self._take(process_queue, subscription, response, queue_offset)
            except MqError as error:
                self.on_failure(process_queue.queue, error)
                if error.code is Code.TOPIC_NOT_EXIST:
                    self.on_topic_deleted(process_queue.queue)
                    return
                if error.message != logged:
                    log.warning("pulling %s fails: %s", process_queue.queue, error)
                    logged = error.message
                await asyncio.sleep(_pause_s(error, backoff))
                await self.instance.routes.refresh_soon(process_queue.queue.topic)
            except Exception:
                log.exception("pulling %s failed", process_queue.queue)
                await asyncio.sleep(FAILURE_PAUSE_S)
            else:
                logged = ""
                # Moved to the same offset: a reset to this offset, or a queue that cannot be read.
                if moved or source.is_spent:
                    await asyncio.sleep(backoff.next_s())
                else:
                    backoff.reset()

    def _request(
        self,
        process_queue: ProcessQueue,
        subscription: TopicSubscription,
        queue_offset: int,
        room: bool,
    ) -> message_pb2.PullRequest:
        """Return a pull request.

        If `room` is false, the request only detects OFFSET_MOVED: it asks for one message and does
        not wait for new messages.
        """
        queue = process_queue.queue
        return message_pb2.PullRequest(
            consumer_group=self.consumer_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            max_messages=self.batch_size if room else 1,
            max_bytes=MAX_BYTES,
            commit_offset=self.offsets.commit_with_pull(queue),
            suspend_timeout_ms=SUSPEND_TIMEOUT_MS if room else 0,
            subscription=subscription.to_proto(),
            browse=not self.consumer_group,
            client_id=self.instance.client_id,
            locked=self.offsets.locked,
        )

    def _take(
        self,
        process_queue: ProcessQueue,
        subscription: TopicSubscription,
        response: message_pb2.PullResponse,
        queue_offset: int,
    ) -> int:
        """Put the messages of a response into the process queue. Return the offset to pull next."""
        if process_queue.dropped:
            return queue_offset
        queue = process_queue.queue
        if response.corrupted_count:
            log.error(
                "the broker leaves out %d corrupted messages of %s between offsets %d and %d",
                response.corrupted_count,
                queue,
                queue_offset,
                response.next_begin_offset,
            )
        messages = received(
            response.records, queue.broker_name, tags=subscription.tags, origin_topics=True
        )
        process_queue.put(messages, response.next_begin_offset, response.max_offset)
        self.on_messages(process_queue, messages)
        if not len(process_queue):
            # Every message was filtered out and none waits: the offset may move past them.
            self.offsets.advance(queue, response.next_begin_offset)
        return response.next_begin_offset


class PullSource:
    """Chooses the replica from which one message queue is pulled: the master or a slave.

    `is_spent` is true if the last answer was empty and the broker did not wait for messages. A
    slave may not wait.
    """

    def __init__(self, instance: ClientInstance, queue: MessageQueue) -> None:
        self.is_spent = False
        self._instance = instance
        self._queue = queue
        self._choice = ReplicaChoice()

    async def pull(
        self, request: message_pb2.PullRequest, *, only_master: bool
    ) -> message_pb2.PullResponse:
        """Pull from the first replica that serves the queue.

        Raises the MqError of the master, or MqError with the code BROKER_NOT_EXIST if there is no
        master.
        """
        instance, queue, choice = self._instance, self._queue, self._choice
        while True:
            known = instance.routes.addresses_of(queue.broker_name)
            chosen = None if only_master else choice.choose(known, instance.clock.monotonic_ms())
            replica = MASTER_ID if chosen is None else chosen
            address = instance.routes.address_of(queue.broker_name, replica)
            asked_ms = instance.clock.monotonic_ms()
            try:
                response = await instance.transport.call(
                    address, rpcs.PULL, request, timeout_s=CALL_TIMEOUT_S
                )
            except MqError as error:
                if replica == MASTER_ID:
                    raise
                log.info("replica %d of %s is not read: %s", replica, queue.broker_name, error)
                choice.failed(replica, instance.clock.monotonic_ms())
                continue
            now_ms = instance.clock.monotonic_ms()
            choice.answered(replica, response.suggested_broker_id, now_ms)
            nothing = response.status == message_pb2.NO_NEW_MESSAGE
            by_slave, held = replica != MASTER_ID, now_ms - asked_ms >= LEAST_HELD_MS
            self.is_spent = nothing and (by_slave or (request.suspend_timeout_ms > 0 and not held))
            if nothing and by_slave:  # there may be a master again by now
                await instance.routes.refresh_soon(queue.topic)
            return response


async def _has_room(process_queue: ProcessQueue) -> bool:
    """Wait for room, up to RESET_CHECK_INTERVAL_S. Return False if there is still no room.

    Return True at once if the process queue is dropped.
    """
    if process_queue.has_room():
        return True
    with suppress(TimeoutError):
        async with asyncio.timeout(RESET_CHECK_INTERVAL_S):
            await process_queue.wait_for_room()
            return True
    return False


def _pause_s(error: MqError, backoff: Backoff) -> float:
    if error.code in _ABSENT_CODES:
        return backoff.next_s()
    if error.code in _BUSY_CODES:
        return (error.retry_after_ms or BUSY_PAUSE_S * 1000) / 1000
    return FAILURE_PAUSE_S
