"""Getting messages to a broker: checks them, picks a queue, sends, and tries another broker when
that fails. The inside of a producer; its rules are told in `producer.py`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from aerobee.broker.v1 import message_pb2

from aerobee_client.backoff import Backoff
from aerobee_client.cluster import rpcs
from aerobee_client.cluster.client_instance import ClientInstance, local_ip
from aerobee_client.cluster.encoded_send import EncodedSend
from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.route import PublishInfo
from aerobee_client.errors import NamesrvUnreachable, PartialSend, RequestTimeout
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.send_result import SendResult
from aerobee_client.sending import send_request
from aerobee_wire import recall_handle
from aerobee_wire.message_id import UniqueIds
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import SEND_REFUSED_TOPICS

T = TypeVar("T")

log = logging.getLogger(__name__)

# Requests of one batch that are under way at once, when it may use several queues.
BATCH_WINDOW = 4

# Answers after which another broker is tried, as in RocketMQ's producer.
_RETRIED_CODES = frozenset(
    {
        Code.SYSTEM_ERROR,
        Code.SYSTEM_BUSY,
        Code.SERVICE_NOT_AVAILABLE,
        Code.NO_PERMISSION,
        Code.TOPIC_NOT_EXIST,
        Code.QUEUE_NOT_EXIST,
    }
)
# The broker is away or not ready: waiting may help.
_ABSENT_CODES = frozenset(
    {Code.BROKER_UNREACHABLE, Code.BROKER_NOT_EXIST, Code.SERVICE_NOT_AVAILABLE}
)


@dataclass(frozen=True, slots=True)
class SendOptions:
    producer_group: str
    timeout_s: float
    retries: int
    max_message_size: int
    default_queue_count: int


class Sender:
    """Sends through one client instance. `fault`: None when slow brokers are not avoided."""

    def __init__(
        self, instance: ClientInstance, options: SendOptions, fault: LatencyFault | None
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._routes = instance.routes
        self._options = options
        self._fault = fault
        self._unique_ids = UniqueIds(local_ip(), os.getpid(), random.getrandbits(32))

    def check(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Raises MESSAGE_ILLEGAL (too large), NO_PERMISSION (a topic of the system),
        INVALID_PARAMETER (a queue of another topic)."""
        if len(message.body) > self._options.max_message_size:
            raise MqError(
                Code.MESSAGE_ILLEGAL,
                f"the body of {len(message.body)} bytes is over the limit of "
                f"{self._options.max_message_size}: send it in parts, or raise maxMessageSize on "
                "the broker and max_message_size here",
            )
        if message.topic in SEND_REFUSED_TOPICS:
            raise MqError(
                Code.NO_PERMISSION,
                f"{message.topic} is a topic of the system: clients do not send to it",
            )
        if queue is not None and queue.topic != message.topic:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"the message is for topic {message.topic} and the queue is one of {queue.topic}: "
                "give a queue of the message's own topic",
            )

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that `topic` can be written to."""
        return list((await self._routes.publish_info(topic)).queues)

    async def next_queue(self, topic: str) -> MessageQueue:
        return (await self._routes.publish_info(topic)).choose()

    async def send_runs(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_s: float
    ) -> list[SendResult]:
        """Any messages, in as many requests as they take."""
        results: list[SendResult | None] = [None] * len(messages)
        failures: list[MqError] = []
        # One after the other when they share a queue: there the order counts.
        window = asyncio.Semaphore(BATCH_WINDOW if queue is None else 1)

        async def send(run: list[int]) -> None:
            async with window:
                if failures:
                    return
                try:
                    part = [messages[index] for index in run]
                    sent = await self.send_run(part, queue, timeout_s)
                except MqError as error:
                    failures.append(error)
                else:
                    for index, result in zip(run, sent, strict=True):
                        results[index] = result

        await asyncio.gather(*(send(run) for run in send_request.runs(messages)))
        if failures and all(result is None for result in results):
            raise failures[0]
        if failures:
            raise PartialSend(results, failures[0])
        return [result for result in results if result is not None]

    async def send_run(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        timeout_s: float,
    ) -> list[SendResult]:
        """One request: messages of one topic, all delayed or none."""
        request, message_ids = self._request(messages)
        sent_to, response = await self._deliver(request, messages[0].topic, queue, timeout_s)
        return send_request.results(response, message_ids, sent_to)

    def _request(self, messages: Sequence[Message]) -> tuple[EncodedSend, list[str]]:
        """With the message ids that it gives them."""
        now_ms = self._clock.now_ms()
        message_ids = [self._unique_ids.make(now_ms) for _ in messages]
        request = send_request.request(
            messages,
            message_ids,
            producer_group=self._options.producer_group,
            born_timestamp_ms=now_ms,
            default_queue_count=self._options.default_queue_count,
        )
        return request, message_ids

    async def _deliver(
        self,
        request: EncodedSend,
        topic: str,
        queue: MessageQueue | None,
        timeout_s: float,
    ) -> tuple[MessageQueue, message_pb2.SendResponse]:
        """Tries brokers until one has stored the request or the time is over."""
        clock = self._clock
        deadline_ms = clock.monotonic_ms() + int(timeout_s * 1000)
        backoff = Backoff(0.05, 0.5)
        refusals = 0
        avoid: str | None = None
        tried: set[str] = set()
        while True:
            info = await self._publish_info(topic, deadline_ms)
            target = queue or info.choose(avoid, self._fault, clock.monotonic_ms())
            try:
                remaining_s = (deadline_ms - clock.monotonic_ms()) / 1000
                response = await self._attempt(request, target, remaining_s, timeout_s)
            except MqError as error:
                refusals += error.code not in _ABSENT_CODES
                if not (error.retryable or error.code in _RETRIED_CODES):
                    raise
                if error.code is Code.QUEUE_NOT_EXIST and queue is not None:
                    raise  # the caller chose it
                # Another broker at once; the same one after a pause, if waiting helps.
                again = target.broker_name in tried or not _has_other(info.queues, target, queue)
                pause_s = _pause_s(error, backoff) if again else 0.0
                out_of_time = clock.monotonic_ms() + pause_s * 1000 >= deadline_ms
                if refusals > self._options.retries or out_of_time:
                    raise
                log.debug("send to %s failed, trying on: %s", target, error)
                avoid = target.broker_name
                tried.add(avoid)
                await asyncio.sleep(pause_s)
                # A topic that was made again with fewer queues: the route is known to be old.
                old = error.code is Code.QUEUE_NOT_EXIST
                refresh = self._routes.refresh_now if old else self._routes.refresh_soon
                try:
                    await self._in_time(refresh(topic), deadline_ms)
                except NamesrvUnreachable:
                    raise error from None  # the time is over
            else:
                return target, response

    async def _publish_info(self, topic: str, deadline_ms: int) -> PublishInfo:
        asking = self._routes.publish_info(topic)
        if self._routes.is_known(topic):
            return await asking
        return await self._in_time(asking, deadline_ms)

    async def _in_time(self, asking: Coroutine[Any, Any, T], deadline_ms: int) -> T:
        """What name servers answer until then. Raises NamesrvUnreachable when they are silent: each
        is given more time than a send may have."""
        remaining_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
        try:
            async with asyncio.timeout(max(remaining_s, 0)):
                return await asking
        except TimeoutError:
            raise NamesrvUnreachable(
                self._instance.namesrv.addresses, "no answer in the time that the call had"
            ) from None

    async def _attempt(
        self,
        request: EncodedSend,
        target: MessageQueue,
        remaining_s: float,
        timeout_s: float,
    ) -> message_pb2.SendResponse:
        started_ms = self._clock.monotonic_ms()
        failed = False
        try:
            address = self._routes.address_of(target.broker_name)
            if remaining_s <= 0:
                raise RequestTimeout(address, timeout_s)
            send_request.set_queue(request, target.queue_id)
            return await self._instance.transport.call(
                address, rpcs.SEND, request, timeout_s=remaining_s
            )
        except MqError as error:
            failed = error.retryable
            raise
        finally:
            if self._fault is not None:
                now_ms = self._clock.monotonic_ms()
                self._fault.record(target.broker_name, now_ms - started_ms, now_ms, failed=failed)

    async def recall(self, topic: str, handle: str, timeout_s: float) -> str:
        """Takes back a message that waits at the broker of the handle; returns its message id."""
        broker_name = recall_handle.decode(handle).broker_name
        await self._publish_info(topic, self._clock.monotonic_ms() + int(timeout_s * 1000))
        response = await self._instance.transport.call(
            self._routes.address_of(broker_name),
            rpcs.RECALL_MESSAGE,
            message_pb2.RecallMessageRequest(topic=topic, recall_handle=handle),
            timeout_s=timeout_s,
        )
        return response.unique_message_id

    async def post(self, message: Message, target: MessageQueue) -> None:
        """A one-way send: what goes wrong is only logged."""
        try:
            request, _ = self._request([message])
            timeout_s = self._options.timeout_s
            await self._attempt(request, target, timeout_s, timeout_s)
        except MqError as error:
            log.debug("one-way send to %s failed: %s", target, error)


def _pause_s(error: MqError, backoff: Backoff) -> float:
    """Before the same broker is asked again."""
    if error.retry_after_ms is not None:
        return error.retry_after_ms / 1000
    return backoff.next_s() if error.code in _ABSENT_CODES else 0.0


def _has_other(
    queues: Sequence[MessageQueue], target: MessageQueue, queue: MessageQueue | None
) -> bool:
    """Whether the send may go to another broker than `target`'s."""
    return queue is None and any(other.broker_name != target.broker_name for other in queues)
