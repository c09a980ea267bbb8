"""Request and reply: send a message whose producer waits for the reply of a consumer.

Before the producer sends a request, it opens a stream of notices to every broker that may get the
request. The consumer sends its reply to the broker that got the request, and the reply arrives on
the stream of that broker.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import NamedTuple

from aerobee.broker.v1 import client_pb2, message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.errors import ClientClosed, RequestTimeout
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.runtime.facade import StartedClient
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.kinds import checked_class
from aerobee_client.send_result import DroppedReplies, Reply
from aerobee_wire import properties as names
from aerobee_wire import rpcs
from aerobee_wire.backoff import Backoff
from aerobee_wire.status import Code, MqError, invalid_parameter

log = logging.getLogger(__name__)

REMEMBERED = 4_096  # ended requests that are remembered, to classify late replies

# Sends a message within a timeout.
Send = Callable[[Message, timedelta], Awaitable[object]]


class Requests:
    """The requests of one producer, on one event loop.

    `check` raises MqError if a message is invalid.
    """

    def __init__(
        self, instance: ClientInstance, send: Send, check: Callable[[Message], object]
    ) -> None:
        self.dropped = DroppedReplies()
        self._instance = instance
        self._send = send
        self._check = check
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        # True if the request got a reply, by correlation id, oldest first.
        self._ended: OrderedDict[str, bool] = OrderedDict()

    async def request(self, message: Message, timeout_s: float) -> Reply:
        """Send a request and return the reply.

        Raises the errors of the send, and RequestTimeout if no reply arrives. Raises MqError with
        the code VERSION_NOT_SUPPORTED if a broker does not support replies.
        """
        from uuid import uuid4

        clock = self._instance.clock
        deadline_ms = clock.monotonic_ms() + int(timeout_s * 1000)
        correlation_id = str(uuid4())
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        made = partial(
            request_message,
            message,
            correlation_id=correlation_id,
            client_id=self._instance.client_id,
        )
        self._check(made(ttl_ms=int(timeout_s * 1000)))
        try:
            async with asyncio.timeout(timeout_s):
                await self._watch(message.topic)
                self._waiting[correlation_id] = future
                left_ms = max(1, deadline_ms - clock.monotonic_ms())
                request = made(ttl_ms=left_ms)
                return await self._reply_to(request, future, timedelta(milliseconds=left_ms))
        except TimeoutError:
            raise RequestTimeout(f"a consumer of {message.topic}", timeout_s) from None
        finally:
            if self._waiting.pop(correlation_id, None) is not None:
                self._remember(correlation_id, answered=future.done() and not future.cancelled())

    def on_reply(self, reply: client_pb2.Reply) -> None:
        """Handle a reply that a broker forwards to this producer."""
        future = self._waiting.get(reply.correlation_id)
        if future is not None and not future.done():
            future.set_result(Reply(reply.body, dict(reply.properties)))
            return
        dropped = self.dropped
        answered = future is not None or self._ended.get(reply.correlation_id)
        if answered is None:
            kind, self.dropped = "foreign", dropped._replace(foreign=dropped.foreign + 1)
        elif answered:
            kind, self.dropped = "double", dropped._replace(double=dropped.double + 1)
        else:
            kind, self.dropped = "late", dropped._replace(late=dropped.late + 1)
        log.debug("a %s reply is dropped: %s", kind, reply.correlation_id)

    def close(self) -> None:
        """Fail every request without a reply with ClientClosed."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ClientClosed("producer"))

    async def _watch(self, topic: str) -> None:
        for broker_name in await self._instance.watch(topic):
            link = self._instance.link_of(broker_name)
            if link is None or not link.is_watching or client_pb2.REPLIES in link.capabilities:
                continue
            raise _too_old(broker_name)

    async def _reply_to(
        self, request: Message, future: asyncio.Future[Reply], timeout: timedelta
    ) -> Reply:
        try:
            await self._send(request, timeout)
        except MqError:
            if not future.done():  # otherwise only the answer of the broker was lost
                raise
        return await future

    def _remember(self, correlation_id: str, *, answered: bool) -> None:
        self._ended[correlation_id] = answered
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)


def request_message(
    message: Message, *, correlation_id: str, client_id: str, ttl_ms: int
) -> Message:
    """Return a copy of `message` with the properties of a request.

    Raises MqError with the code MESSAGE_ILLEGAL for a delayed message.
    """
    if message.delayed:
        raise MqError(
            Code.MESSAGE_ILLEGAL,
            "a request cannot be delayed: its producer waits for the reply",
        )
    return message.with_system_properties(
        {
            names.CORRELATION_ID: correlation_id,
            names.REPLY_TO_CLIENT: client_id,
            names.TTL: str(ttl_ms),
        }
    )


log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_S = 3.0
# At least one attempt is made, with this time limit, even if the request has expired by the
# clock of this machine.
LEAST_TIMEOUT_S = 1.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5


class Request(NamedTuple):
    """The properties of a request.

    `client_id` identifies the producer that waits for the reply. `expires_ms` is the time until
    which it waits, in milliseconds since the epoch.
    """

    correlation_id: str
    client_id: str
    expires_ms: int

    @classmethod
    def of(cls, message: ReceivedMessage) -> Request:
        """Read the properties of a request.

        Raises MqError with the code INVALID_PARAMETER if the message is not a request.
        """
        found = message.properties
        correlation_id = found.get(names.CORRELATION_ID, "")
        client_id = found.get(names.REPLY_TO_CLIENT, "")
        ttl_ms = names.whole_number(found.get(names.TTL, ""))
        if not correlation_id or not client_id or ttl_ms is None:
            raise invalid_parameter(
                f"{message} is not a request: reply to what a producer has sent by request()"
            )
        # The later of the times of the producer and the broker, because one clock may be slow.
        sent_ms = max(message.born_timestamp_ms, message.store_timestamp_ms)
        return cls(correlation_id, client_id, sent_ms + ttl_ms)


def is_past_ttl(message: ReceivedMessage, now_ms: int) -> bool:
    """Return whether the message is a request whose producer no longer waits for the reply."""
    if not message.is_request:
        return False
    try:
        return Request.of(message).expires_ms < now_ms
    except MqError:
        return False  # an invalid request goes to the listener, which may understand it


@checked_class
class Replier(StartedClient):
    """Base class of consumers, which can reply to requests."""

    def __init__(self) -> None:
        self._instance: ClientInstance | None = None

    async def reply(
        self,
        message: ReceivedMessage,
        body: bytes,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Reply to a request. Return when the broker has forwarded the reply to the producer.

        If the broker restarts or the producer reconnects, the call retries until the TTL of the
        request has expired.

        Args:
            message: The request.
            body: The body of the reply.
            properties: The properties of the reply.

        Raises:
            MqError: CONSUMER_NOT_ONLINE if the producer has disconnected, INVALID_PARAMETER if the
                message is not a request, MESSAGE_ILLEGAL if the reply is too large, or
                VERSION_NOT_SUPPORTED if the broker does not support replies. If the TTL expires
                before the broker answers, the error of the last attempt is raised.
        """
        PROCESS.check()
        if self._instance is None:
            raise ClientClosed("consumer")
        await _reply(self._instance, message, body, properties)


async def _reply(
    instance: ClientInstance,
    message: ReceivedMessage,
    body: bytes,
    properties: Mapping[str, str] | None,
) -> None:
    request = Request.of(message)
    sent = message_pb2.SendReplyRequest(
        client_id=request.client_id,
        correlation_id=request.correlation_id,
        body=body,
        properties=properties,
    )
    clock = instance.clock
    left_ms = request.expires_ms - instance.now_ms_at(message.broker_name)
    deadline_ms = clock.monotonic_ms() + left_ms
    backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
    while True:
        left_s = (deadline_ms - clock.monotonic_ms()) / 1000
        timeout_s = min(ATTEMPT_TIMEOUT_S, max(LEAST_TIMEOUT_S, left_s))
        try:
            await instance.call_broker(
                message.broker_name, rpcs.SEND_REPLY, sent, timeout_s=timeout_s
            )
            return
        except MqError as error:
            pause_s = backoff.next_s()
            if error.code is Code.REQUEST_CODE_NOT_SUPPORTED:
                raise _too_old(message.broker_name) from None
            if not error.retryable or pause_s >= left_s:
                raise
            log.debug("a reply is retried: %s", error)
        await asyncio.sleep(pause_s)
        await instance.routes.refresh_soon(message.stored_topic)


def _too_old(broker_name: str) -> MqError:
    return MqError(
        Code.VERSION_NOT_SUPPORTED,
        f"broker {broker_name} passes no replies on: bring it to the version of this client",
    )
