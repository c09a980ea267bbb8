"""Track the requests of a producer that wait for their replies.

Before it sends a request, the producer holds a stream of notices open to every broker that may get
it. The reply arrives on the stream of the broker that got the request.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.errors import ClientClosed, RequestTimeout
from aerobee_client.message import Message
from aerobee_client.send_result import DroppedReplies, Reply
from aerobee_wire import properties as names
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

REMEMBERED = 4_096  # ended requests that are remembered, to classify late replies

# Sends a message within a timeout.
Send = Callable[[Message, timedelta], Awaitable[object]]


class Requests:
    """The requests of one producer, on one event loop. `check` raises if a message is invalid."""

    def __init__(
        self, instance: ClientInstance, send: Send, check: Callable[[Message], object]
    ) -> None:
        self.dropped = DroppedReplies()
        self._instance = instance
        self._send = send
        self._check = check
        self._waiting: dict[str, asyncio.Future[Reply]] = {}
        # Correlation id → whether there was a reply, oldest first.
        self._ended: OrderedDict[str, bool] = OrderedDict()

    async def request(self, message: Message, timeout_s: float) -> Reply:
        """Send a request and return the reply.

        Raises the errors of the send, RequestTimeout without a reply, and VERSION_NOT_SUPPORTED for
        a broker that does not pass replies on.
        """
        clock = self._instance.clock
        deadline_ms = clock.monotonic_ms() + int(timeout_s * 1000)
        correlation_id = str(uuid.uuid4())
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
        """Handle a reply that a broker passes on."""
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
            raise MqError(
                Code.VERSION_NOT_SUPPORTED,
                f"broker {broker_name} passes no replies on: bring it to the version of this "
                "client",
            )

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
    """Return the message as it is sent. Raises MESSAGE_ILLEGAL for a delayed message."""
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
