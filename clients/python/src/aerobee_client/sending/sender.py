"""Sending messages: checks them, chooses a queue, sends, and retries on another broker. The inside
of a producer, whose rules `producer.py` states.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance, local_ip
from aerobee_client.cluster.encoded_send import SEND, EncodedSend
from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.route_cache import PublishInfo
from aerobee_client.errors import NamesrvUnreachable, PartialSend, RequestTimeout
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options import ProducerOptions
from aerobee_client.send_result import SendResult
from aerobee_client.sending import send_request
from aerobee_client.sending.attempts import Attempts
from aerobee_wire import rpcs
from aerobee_wire.handles import recall_handle
from aerobee_wire.message_id import UniqueIds
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import SEND_REFUSED_TOPICS

T = TypeVar("T")

log = logging.getLogger(__name__)

# Requests of one batch that are in flight at once, unless all go to one queue.
BATCH_WINDOW = 4


class Sender:
    """Sends through one client instance. `fault`: remembers failed and slow brokers, which are
    avoided; None: none are."""

    def __init__(
        self,
        instance: ClientInstance,
        producer_group: str,
        options: ProducerOptions,
        fault: LatencyFault | None,
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._routes = instance.routes
        self._producer_group = producer_group
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
        """Stores any number of messages, in as many requests as that takes. Results in their order.
        Raises PartialSend when some were stored and others not."""
        results: list[SendResult | None] = [None] * len(messages)
        failures: list[MqError] = []
        # To one queue one request after the other: that keeps their order.
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
        """Stores, in one request, messages of one topic, all of them delayed or none."""
        request, message_ids = self._request(messages)
        sent_to, response = await self._deliver(request, messages[0].topic, queue, timeout_s)
        return send_request.results(response, message_ids, sent_to)

    def _request(self, messages: Sequence[Message]) -> tuple[EncodedSend, list[str]]:
        """The request for `messages`, and the message ids that it gives them."""
        now_ms = self._clock.now_ms()
        message_ids = [self._unique_ids.make(now_ms) for _ in messages]
        request = send_request.request(
            messages,
            message_ids,
            producer_group=self._producer_group,
            born_timestamp_ms=now_ms,
            default_queue_count=self._options.default_queue_count,
        )
        return request, message_ids

    async def _deliver(
        self, request: EncodedSend, topic: str, queue: MessageQueue | None, timeout_s: float
    ) -> tuple[MessageQueue, message_pb2.SendResponse]:
        """Tries one broker after the other until one has stored the request. Raises what the last
        one answered."""
        clock = self._clock
        deadline_ms = clock.monotonic_ms() + int(timeout_s * 1000)
        attempts = Attempts(queue, self._options.retries, deadline_ms)
        while True:
            info = await self._publish_info(topic, deadline_ms)
            target = queue or info.choose(attempts.avoid, self._fault, clock.monotonic_ms())
            try:
                remaining_s = (deadline_ms - clock.monotonic_ms()) / 1000
                return target, await self._send_to(target, request, remaining_s, timeout_s)
            except MqError as error:
                now_ms = clock.monotonic_ms()
                pause_s = attempts.pause_after(error, target, info.queues, now_ms)
                if pause_s is None:
                    raise
                log.debug("send to %s failed, trying again: %s", target, error)
                await asyncio.sleep(pause_s)
                await self._refresh_after(error, topic, deadline_ms)

    async def _refresh_after(self, error: MqError, topic: str, deadline_ms: int) -> None:
        """Refreshes the route of `topic`. Raises `error` when the deadline passes before that."""
        # The topic was created again with fewer queues: the cached route is known to be stale.
        stale = error.code is Code.QUEUE_NOT_EXIST
        refresh = self._routes.refresh_now if stale else self._routes.refresh_soon
        try:
            await self._in_time(refresh(topic), deadline_ms)
        except NamesrvUnreachable:
            raise error from None

    async def _publish_info(self, topic: str, deadline_ms: int) -> PublishInfo:
        asking = self._routes.publish_info(topic)
        if self._routes.is_known(topic):
            return await asking
        return await self._in_time(asking, deadline_ms)

    async def _in_time(self, asking: Coroutine[Any, Any, T], deadline_ms: int) -> T:
        """Awaits an answer of the name servers until the deadline. Raises NamesrvUnreachable then:
        the timeout of one name server alone may be longer than that of the send."""
        remaining_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
        try:
            async with asyncio.timeout(max(remaining_s, 0)):
                return await asking
        except TimeoutError:
            raise NamesrvUnreachable(
                self._instance.namesrv.addresses, "no answer within the timeout of the call"
            ) from None

    async def _send_to(
        self, target: MessageQueue, request: EncodedSend, remaining_s: float, timeout_s: float
    ) -> message_pb2.SendResponse:
        """One attempt, within `remaining_s`. `timeout_s`: of the whole send, for the error."""
        started_ms = self._clock.monotonic_ms()
        failed = False
        try:
            address = self._routes.address_of(target.broker_name)
            if remaining_s <= 0:
                raise RequestTimeout(address, timeout_s)
            send_request.set_queue(request, target.queue_id)
            return await self._instance.transport.call(
                address, SEND, request, timeout_s=remaining_s
            )
        except MqError as error:
            failed = error.retryable
            raise
        finally:
            if self._fault is not None:
                now_ms = self._clock.monotonic_ms()
                self._fault.record(target.broker_name, now_ms - started_ms, now_ms, failed=failed)

    async def recall(self, topic: str, handle: str, timeout_s: float) -> str:
        """Recalls a delayed message at the broker that its handle names; returns its message id."""
        broker_name = recall_handle.decode(handle).broker_name
        await self._publish_info(topic, self._clock.monotonic_ms() + int(timeout_s * 1000))
        request = message_pb2.RecallMessageRequest(topic=topic, recall_handle=handle)
        response = await self._instance.call_broker(
            broker_name, rpcs.RECALL_MESSAGE, request, timeout_s=timeout_s
        )
        return response.unique_message_id

    async def post(self, message: Message, target: MessageQueue) -> None:
        """A one-way send: one attempt; a failure is only logged."""
        try:
            request, _ = self._request([message])
            timeout_s = self._options.send_timeout.total_seconds()
            await self._send_to(target, request, timeout_s, timeout_s)
        except MqError as error:
            log.debug("one-way send to %s failed: %s", target, error)
