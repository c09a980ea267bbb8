"""Send thousands of messages that a program, such as a Spark task, has as one block of bytes.

One such program is a Spark task. The messages are sent without an object for each, and only errors
are returned. Unlike a producer, the sender does not batch single sends or keep their order. The
caller makes requests of a suitable size. If order matters, the caller sends one request after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from aerobee.broker.v1 import client_pb2, message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.encoded_send import EncodedSend
from aerobee_client.cluster.latency_fault import LatencyFault
from aerobee_client.cluster.route_cache import RouteCache
from aerobee_client.errors import ClientClosed
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.producer import ProducerOptions
from aerobee_client.runtime.facade import StartedClient, StartedFacade, blocking
from aerobee_client.sending.sender import Sender
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_group, is_retry


@dataclass(frozen=True, slots=True)
class Columns:
    """One or more messages of one topic.

    Attributes:
        topic: The topic.
        bodies: The bodies of all messages, concatenated.
        body_sizes: The size of each body in bytes.
        properties: The properties strings of all messages, concatenated. Each contains a UNIQ_KEY.
        properties_sizes: The size of each properties string in bytes.
        flags: The flag of each message; empty if all flags are 0.
        sys_flag: The bits for the compression of all bodies.
    """

    topic: str
    bodies: memoryview
    body_sizes: Sequence[int]
    properties: memoryview
    properties_sizes: Sequence[int]
    flags: Sequence[int] = ()
    sys_flag: int = 0

    def __len__(self) -> int:
        return len(self.body_sizes)


class TopicQueues(NamedTuple):
    """The queues of a topic.

    `in_order` are the queues among which message groups are divided. They include queues of brokers
    that have just become unavailable.
    """

    writable: tuple[MessageQueue, ...]
    in_order: tuple[MessageQueue, ...]


class AsyncColumnSender(StartedClient):
    """Sends messages in columns, for asyncio.

    `async with AsyncColumnSender(...)` starts and closes it. Options for single sends have no
    effect. The constructor raises MqError with the code INVALID_PARAMETER for an invalid group
    name.
    """

    def __init__(
        self, producer_group: str, *, namesrv: str | Sequence[str] | None, options: ProducerOptions
    ) -> None:
        check_group(producer_group)
        self._producer_group = producer_group
        self._namesrv = namesrv
        self._options = options
        self._timeout_s = options.send_timeout.total_seconds()
        self._instance: ClientInstance | None = None
        self._sender: Sender | None = None

    async def start(self) -> None:
        """Start the sender. Its first send connects to a broker.

        Raises MqError with the code INVALID_PARAMETER if no name server is given.
        """
        if self._instance is not None:
            return
        self._instance = ClientInstance(
            self._namesrv, tls=self._options.tls, credentials=self._options.credentials
        )
        self._instance.start(partial(self._heartbeat, self._instance), watches=False)
        self._sender = Sender(
            self._instance,
            self._producer_group,
            self._options,
            LatencyFault(self._options.latency_table_ms),
            lambda *_: None,
        )

    async def close(self) -> None:
        """Unregister and disconnect. May be called more than once."""
        instance, self._instance, self._sender = self._instance, None, None
        if instance is not None:
            await instance.close()

    async def queues(self, topic: str, *, fresh: bool = False) -> TopicQueues:
        """Return the queues of a topic. If `fresh`, ask the name servers instead of the cache.

        Raises MqError with the code TOPIC_NOT_EXIST, even if brokers create topics automatically.
        This error is retryable if brokers of the topic are unavailable. Raises MqError with the
        code NO_PERMISSION if no queue is writable, or NamesrvUnreachable.
        """
        instance, sender = self._running()
        if fresh:
            await sender.changed_route(topic)
        info = await instance.routes.publish_info(topic)
        if info.is_default:
            await _check_exists(instance.routes, topic)
            info = await instance.routes.publish_info(topic)
        now_ms = instance.clock.monotonic_ms()
        return TopicQueues(tuple(info.queues), tuple(info.queues_in_order(now_ms)))

    async def send(
        self, columns: Columns, queue: MessageQueue | None = None, priority: int | None = None
    ) -> None:
        """Send messages in one request. The broker stores all of them or none.

        Args:
            columns: The messages.
            queue: The queue that stores them. Default: one queue of any broker. After a failure, a
                queue of another broker is used.
            priority: The priority of all messages, in a topic of the type PRIORITY.

        Raises:
            MqError: If the broker refuses the messages.
            BrokerUnreachable: If no broker can be reached.
            RequestTimeout: If no answer arrives in time. The messages may have been stored.
        """
        instance, sender = self._running()
        request = _request(columns, self._producer_group, instance.clock.now_ms())
        destination = (columns.topic, priority)
        await sender.send_request(request, destination, len(columns), queue, self._timeout_s)

    def _running(self) -> tuple[ClientInstance, Sender]:
        if self._instance is None or self._sender is None:
            raise ClientClosed("sender")
        return self._instance, self._sender

    def _heartbeat(self, instance: ClientInstance) -> client_pb2.HeartbeatRequest:
        request = instance.new_heartbeat()
        request.producer_groups.append(self._producer_group)
        return request


class ColumnSender(StartedFacade[AsyncColumnSender]):
    """Sends messages in columns, for programs without asyncio. Any thread may use it."""

    def __init__(
        self, producer_group: str, *, namesrv: str | Sequence[str] | None, options: ProducerOptions
    ) -> None:
        client = AsyncColumnSender(producer_group, namesrv=namesrv, options=options)
        super().__init__(client, "aerobee column sender")

    queues = blocking(AsyncColumnSender.queues)

    def send(
        self, columns: Columns, queue: MessageQueue | None = None, priority: int | None = None
    ) -> Future[None]:
        """Start a send as `AsyncColumnSender.send` does. The future raises its errors."""
        return self._loop.submit(self._client.send(columns, queue, priority))


async def _check_exists(routes: RouteCache, topic: str) -> None:
    """Check that a topic exists for which the default route was used.

    Raises MqError with the code TOPIC_NOT_EXIST if the topic does not exist.
    """
    try:
        await routes.route(topic)
    except MqError as error:
        if error.code is not Code.TOPIC_NOT_EXIST or error.retryable:
            raise
        raise MqError(
            Code.TOPIC_NOT_EXIST,
            f"topic {topic!r} does not exist: run `aerobee topic create {topic}`",
            about="topic",
        ) from None


def _request(columns: Columns, producer_group: str, born_timestamp_ms: int) -> EncodedSend:
    head = message_pb2.SendRequest(producer_group=producer_group)
    if is_retry(columns.topic):  # a retry topic does not accept batches
        head.messages.extend(_messages(columns, born_timestamp_ms))
        return EncodedSend(head)
    batch = head.batch
    batch.topic = columns.topic
    batch.body_sizes.extend(columns.body_sizes)
    batch.properties_sizes.extend(columns.properties_sizes)
    batch.flags.extend(columns.flags)
    batch.sys_flag = columns.sys_flag
    batch.born_timestamp_ms = born_timestamp_ms
    return EncodedSend(head, [columns.bodies], [columns.properties])


def _messages(columns: Columns, born_timestamp_ms: int) -> list[message_pb2.Message]:
    messages, body_at, properties_at = [], 0, 0
    flags = columns.flags or [0] * len(columns)
    for body_size, size, flag in zip(
        columns.body_sizes, columns.properties_sizes, flags, strict=True
    ):
        message = message_pb2.Message(
            topic=columns.topic,
            body=bytes(columns.bodies[body_at : body_at + body_size]),
            encoded_properties=bytes(columns.properties[properties_at : properties_at + size]),
            flag=flag,
            sys_flag=columns.sys_flag,
            born_timestamp_ms=born_timestamp_ms,
        )
        messages.append(message)
        body_at += body_size
        properties_at += size
    return messages
