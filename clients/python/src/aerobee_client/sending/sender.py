"""Check messages, choose a queue, send, and retry on another broker.

Producers use this module. `producer.py` describes the rules.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeGuard, TypeVar

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance, local_ip
from aerobee_client.cluster.encoded_send import SEND, EncodedSend
from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.route_cache import PublishInfo
from aerobee_client.errors import ClientClosed, NamesrvUnreachable, RequestTimeout
from aerobee_client.message import Message
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.statistics import Tally
from aerobee_client.options.producer import ProducerOptions
from aerobee_client.send_result import SendResult
from aerobee_client.sending import send_request
from aerobee_client.sending.accumulator import AnyFuture, Batch, SingleSend
from aerobee_client.sending.attempts import Attempts
from aerobee_client.sending.send_request import Compressor, Outgoing, Run, outgoing_of, run_of
from aerobee_wire import rpcs
from aerobee_wire.handles import recall_handle
from aerobee_wire.message_id import UniqueIds
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import SEND_REFUSED_TOPICS

T = TypeVar("T")

log = logging.getLogger(__name__)

# A function that returns a request of the sends that still wait for an outcome, or None.
RequestNow = Callable[[], EncodedSend | None]
# The topic and the priority of the messages of a request.
Destination = tuple[str, int | None]
# A function that is called at the end of each request. Its arguments are the topic, the number of
# messages, the seconds that the request took, and the error or None.
OnRequest = Callable[[str, int, float, BaseException | None], None]

# The number of ids that are made with one reading of the clock. Up to 65,536 are distinct per
# millisecond.
IDS_AT_ONCE = 4_096

# These codes refuse one message. Every other code refuses all messages of a request.
REFUSALS_OF_A_MESSAGE = frozenset({Code.MESSAGE_ILLEGAL, Code.INVALID_PARAMETER})
# These codes refuse a queue: the broker drains or has closed the topic, or the topic has fewer
# queues there. The messages are not stored.
REFUSALS_OF_A_QUEUE = frozenset({Code.NO_PERMISSION, Code.QUEUE_NOT_EXIST})


class Sender:
    """Sends messages through one client instance.

    `fault` remembers failed and slow brokers, which are avoided. If it is None, no broker is
    avoided. `on_request` is called at the end of each request.
    """

    def __init__(
        self,
        instance: ClientInstance,
        producer_group: str,
        options: ProducerOptions,
        fault: LatencyFault | None,
        on_request: OnRequest,
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self.tally = Tally(instance.clock)
        self._routes = instance.routes
        self._producer_group = producer_group
        self._options = options
        self._fault = fault
        self._on_request = on_request
        self._time_s = asyncio.get_running_loop().time
        self._compressor: Compressor | None = None
        if options.compression is not None:
            self._compressor = Compressor(
                options.compression, options.compress_over, options.compression_level
            )
        self._unique_ids = UniqueIds(local_ip(), os.getpid(), random.getrandbits(32))

    def check(self, message: Message, queue: MessageQueue | None = None) -> None:
        """Check a message and its queue.

        Raises MqError with the code MESSAGE_ILLEGAL (too large), NO_PERMISSION (a system topic), or
        INVALID_PARAMETER (a queue of another topic, or an invalid queue).
        """
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
                about="queue",
            )
        if queue is not None and queue.queue_id < 0:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"the id of {queue} is below 0: give 0 or more",
                about="queue",
            )

    def check_whole(self, message: Message) -> None:
        """Check a message and its properties. Raises MqError like `prepare`."""
        self.check(message)
        message.encoded_properties(self._unique_ids.make(self._clock.now_ms()))

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that accept messages."""
        return list((await self._routes.publish_info(topic)).queues)

    async def next_queue(self, message: Message) -> MessageQueue:
        info = await self._routes.publish_info(message.topic)
        return (info.of_priority(message.priority) if info.by_priority else info).choose()

    def prepare(
        self, message: Message, queue: MessageQueue | None = None, added: str = ""
    ) -> Outgoing:
        """Prepare a message for a request, and compress its body if the options require it.

        `added` is passed to `Message.encoded_properties`. Raises MqError like `check`, and with the
        code MESSAGE_ILLEGAL if the properties are too large.
        """
        is_usual = queue is None and len(message.body) <= self._options.max_message_size
        if not is_usual or message.topic in SEND_REFUSED_TOPICS:
            self.check(message, queue)
        if self._compressor is not None:
            message = self._compressor.compressed(message)
        message_id = self._unique_ids.make(self._clock.now_ms())
        return outgoing_of((message, message_id, message.encoded_properties(message_id, added)))

    def prepare_batch(self, messages: Sequence[Message], queue: MessageQueue | None = None) -> Run:
        """Prepare a batch as `prepare` does. Errors name the index of the message."""
        message_ids: list[str] = []
        for made in range(0, len(messages), IDS_AT_ONCE):
            number = min(IDS_AT_ONCE, len(messages) - made)
            message_ids += self._unique_ids.make_batch(self._clock.now_ms(), number)
        properties: list[bytes] = []
        longest, topics = self._options.max_message_size, set[str]()  # topics that were checked
        index = 0
        try:
            for index, message in enumerate(messages):
                if message.topic not in topics or len(message.body) > longest:
                    self.check(message, queue)
                    topics.add(message.topic)
                properties.append(message.encoded_properties(message_ids[index]))
        except MqError as error:
            error.add_context(f"message {index} of the batch, of which nothing was sent")
            raise
        if self._compressor is not None:
            messages = [self._compressor.compressed(message) for message in messages]
        return Run(messages, message_ids, properties)

    async def send_run(
        self, run: Run, queue: MessageQueue | None, timeout_s: float
    ) -> list[SendResult]:
        """Store messages that may share a request, such as a run of `send_request.runs`."""
        first, size = run.messages[0], len(run.messages)
        destination = (first.topic, first.priority)
        stored = await self.send_request(self._request(run), destination, size, queue, timeout_s)
        return send_request.results(stored[1], run.message_ids, stored[0])

    async def send_request(
        self,
        request: EncodedSend,
        destination: Destination,
        size: int,
        queue: MessageQueue | None,
        timeout_s: float,
    ) -> tuple[MessageQueue, message_pb2.SendResponse]:
        """Store the `size` messages of an encoded request, in `queue` if it is given.

        Return the queue that stores them, and the response of the broker.
        """
        topic, began_s = destination[0], self._time_s()
        deadline_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)
        attempts = Attempts(queue, self._options, deadline_ms)
        try:
            delivered = await self._deliver(
                lambda: request, destination, queue, attempts, timeout_s
            )
        except MqError as error:
            self._count(topic, size, began_s, error)
            raise
        self._count(topic, size, began_s)
        assert delivered is not None, "there is always a request"
        return delivered

    def single(
        self,
        message: Message,
        queue: MessageQueue | None,
        timeout_s: float,
        future: AnyFuture,
        added: str = "",
    ) -> SingleSend:
        """Return a send that may share a request. `added` and errors are those of `prepare`."""
        outgoing = self.prepare(message, queue, added)
        deadline_ms = self._clock.monotonic_ms() + int(timeout_s * 1000)
        return SingleSend(outgoing, message.size, future, deadline_ms, timeout_s)

    def known_route(self, topic: str) -> PublishInfo | None:
        """Return the route of a topic, or None if a name server must be asked."""
        return self._routes.known_publish_info(topic)

    async def route_of(self, send: SingleSend) -> PublishInfo:
        """Return the route of the topic of a send. Raises MqError like `send_run`."""
        return await self._publish_info(send.outgoing.message.topic, send.deadline_ms)

    async def changed_route(self, topic: str) -> PublishInfo:
        """Fetch a route from the name servers. Raises MqError like `RouteCache.publish_info`."""
        await self._routes.refresh_now(topic)
        return await self._routes.publish_info(topic)

    def no_route(self) -> NamesrvUnreachable:
        """Return the error for a send whose route no name server returned before its deadline."""
        return NamesrvUnreachable(
            self._instance.namesrv.addresses, "no answer within the timeout of the call"
        )

    async def deliver(self, batch: Batch) -> None:
        """Send a batch and set the outcome of each of its sends.

        If a queue refuses a batch of message groups, the refusal is stored in the batch, and its
        sends get no outcome yet.
        """
        sends = [send for send in batch.sends if send.leaves()]
        began_s = self._time_s()
        try:
            await self._deliver_sends(sends, batch)
        except asyncio.CancelledError:
            for send in sends:
                send.fail(ClientClosed("producer"))
            raise
        except Exception as error:
            if batch.key.is_group and _is_of_a_queue(error):
                batch.refuse(error)
                return
            self._count(batch.key.topic, len(sends), began_s, error)
            for send in sends:
                send.fail(error)
            if not isinstance(error, MqError):
                log.exception("a batch of %d sends to %s failed", len(sends), batch.queue)

    async def _deliver_sends(self, sends: list[SingleSend], batch: Batch) -> None:
        """Send messages in one request, which the broker stores as a whole or not at all.

        If the broker refuses one of the messages, each half is sent again, and so on until only
        that message fails. Raises MqError if all messages fail.
        """
        if not sends:
            return
        try:
            await self._deliver_together(sends, batch)
        except MqError as error:
            left = [send for send in sends if not send.future.done()]
            if error.code not in REFUSALS_OF_A_MESSAGE or len(left) < 2:
                raise
            for half in (left[: len(left) // 2], left[len(left) // 2 :]):
                began_s = self._time_s()
                try:
                    await self._deliver_sends(half, batch)
                except MqError as refusal:
                    self._count(batch.key.topic, len(half), began_s, refusal)
                    for send in half:
                        send.fail(refusal)

    async def _deliver_together(self, sends: list[SingleSend], batch: Batch) -> None:
        request: EncodedSend | None = None

        def current() -> EncodedSend | None:
            """Return a request without cancelled and expired sends, or None if no send is left."""
            nonlocal request, sends
            left = [send for send in sends if not send.future.done()]
            if request is None or len(left) < len(sends):
                sends = left
                request = self._request(run_of([send.outgoing for send in left])) if left else None
            return request

        timeout_s = max([send.timeout_s for send in sends])
        began_s = self._time_s()
        if batch.key.is_one_way:
            delivered = await self._deliver_once(current, batch.queue, timeout_s)
        else:
            deadline_ms = max([send.deadline_ms for send in sends])
            key = batch.key
            attempts = Attempts(key.queue, self._options, deadline_ms, batch.attempt_failed)
            delivered = await self._deliver(
                current, (key.topic, key.priority), batch.queue, attempts, timeout_s
            )
        if delivered is not None:
            self._count(batch.key.topic, len(sends), began_s)
            message_ids = [send.outgoing.message_id for send in sends]
            stored = send_request.results(delivered[1], message_ids, delivered[0])
            for send, result in zip(sends, stored, strict=True):
                send.succeed(result)

    async def _deliver_once(
        self, request_now: RequestNow, target: MessageQueue, timeout_s: float
    ) -> tuple[MessageQueue, message_pb2.SendResponse] | None:
        request = request_now()
        if request is None:
            return None
        return target, await self._send_to(target, request, timeout_s, timeout_s)

    def _count(
        self, topic: str, messages: int, began_s: float, error: BaseException | None = None
    ) -> None:
        """Count the messages of a request that has ended."""
        elapsed_s = self._time_s() - began_s
        stored = 0 if error is not None else messages
        self.tally.add(stored, messages - stored, int(elapsed_s * 1000))
        if stored:
            self._instance.publishes(topic)
        try:
            self._on_request(topic, messages, elapsed_s, error)
        except (SystemExit, KeyboardInterrupt) as left:  # raised by an interceptor
            # The exception ends the loop one iteration later, when each send of the request has its
            # outcome.
            asyncio.get_running_loop().call_soon(_leave, left)

    def _request(self, run: Run) -> EncodedSend:
        return send_request.request(
            run,
            producer_group=self._producer_group,
            born_timestamp_ms=self._clock.now_ms(),
            default_queue_count=self._options.default_queue_count,
        )

    async def _deliver(
        self,
        request_now: RequestNow,
        destination: Destination,
        first: MessageQueue | None,
        attempts: Attempts,
        timeout_s: float,
    ) -> tuple[MessageQueue, message_pb2.SendResponse] | None:
        """Send a request, with retries at other brokers, and return the queue and the response.

        Return None if all sends of the request were cancelled or have expired. Raises the last
        broker's answer.
        """
        clock, deadline_ms = self._clock, attempts.deadline_ms
        topic, priority = destination
        target = first
        while True:
            info = await self._publish_info(topic, deadline_ms)
            if info.by_priority:
                info = info.of_priority(priority)
            if target is None:
                target = info.choose(attempts.avoid, self._fault, clock.monotonic_ms())
            request = request_now()
            if request is None:
                return None
            try:
                remaining_s = (deadline_ms - clock.monotonic_ms()) / 1000
                return target, await self._send_to(target, request, remaining_s, timeout_s)
            except MqError as error:
                now_ms = clock.monotonic_ms()
                pause_s = attempts.pause_after(error, target, info.queues, now_ms)
                if pause_s is None:
                    raise
                log.debug("send to %s failed, trying again: %s", target, error)
                self.tally.retried()
                await asyncio.sleep(pause_s)
                await self._refresh_after(error, topic, deadline_ms)
                target = attempts.queue

    async def _refresh_after(self, error: MqError, topic: str, deadline_ms: int) -> None:
        """Refresh the route of `topic`. Raise `error` if the deadline passes before that."""
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
        """Wait for an answer of the name servers. Raise NamesrvUnreachable after the deadline.

        This is needed because the timeout of a single name server may be longer than that of the
        send.
        """
        remaining_s = (deadline_ms - self._clock.monotonic_ms()) / 1000
        try:
            async with asyncio.timeout(max(remaining_s, 0)):
                return await asking
        except TimeoutError:
            raise self.no_route() from None

    async def _send_to(
        self, target: MessageQueue, request: EncodedSend, remaining_s: float, timeout_s: float
    ) -> message_pb2.SendResponse:
        """Make one attempt within `remaining_s`. Error texts name `timeout_s`, the send's limit."""
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
        """Recall a delayed message at the broker that its recall handle names.

        Return the message id.
        """
        broker_name = recall_handle.decode(handle).broker_name
        await self._publish_info(topic, self._clock.monotonic_ms() + int(timeout_s * 1000))
        request = message_pb2.RecallMessageRequest(topic=topic, recall_handle=handle)
        response = await self._instance.call_broker(
            broker_name, rpcs.RECALL_MESSAGE, request, timeout_s=timeout_s
        )
        return response.unique_message_id

    async def post(self, outgoing: Outgoing, target: MessageQueue) -> None:
        """Send a message one-way with a single attempt. Only log a failure."""
        timeout_s = self._options.send_timeout.total_seconds()
        topic, began_s = outgoing.message.topic, self._time_s()
        try:
            await self._send_to(target, self._request(run_of([outgoing])), timeout_s, timeout_s)
        except MqError as error:
            log.debug("one-way send to %s failed: %s", target, error)
            self._count(topic, 1, began_s, error)
        else:
            self._count(topic, 1, began_s)


def _is_of_a_queue(error: Exception) -> TypeGuard[MqError]:
    return isinstance(error, MqError) and error.code in REFUSALS_OF_A_QUEUE


def _leave(left: BaseException) -> None:
    raise left
