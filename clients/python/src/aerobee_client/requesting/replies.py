"""Send the replies of a consumer, each to the broker that has the request."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import NamedTuple

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.errors import ClientClosed
from aerobee_client.message import ReceivedMessage
from aerobee_client.runtime.facade import StartedClient
from aerobee_client.runtime.fork import PROCESS
from aerobee_cluster.backoff import Backoff
from aerobee_wire import properties as names
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT_S = 3.0
# The time limit of the one attempt that is always made, even if the request has expired by the
# clock of this machine.
LEAST_TIMEOUT_S = 1.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5


class Request(NamedTuple):
    """A request.

    `client_id`: the producer that waits. `expires_ms`: the end of its wait, in milliseconds since
    the epoch.
    """

    correlation_id: str
    client_id: str
    expires_ms: int

    @classmethod
    def of(cls, message: ReceivedMessage) -> Request:
        """Read a request. Raises INVALID_PARAMETER for another message."""
        found = message.properties
        correlation_id = found.get(names.CORRELATION_ID, "")
        client_id = found.get(names.REPLY_TO_CLIENT, "")
        ttl_ms = names.whole_number(found.get(names.TTL, ""))
        if not correlation_id or not client_id or ttl_ms is None:
            raise MqError(
                Code.INVALID_PARAMETER,
                f"{message} is not a request: reply to what a producer has sent by request()",
            )
        # By the later one of the producer's and the broker's clock: one of them may be slow.
        sent_ms = max(message.born_timestamp_ms, message.store_timestamp_ms)
        return cls(correlation_id, client_id, sent_ms + ttl_ms)


def is_past_ttl(message: ReceivedMessage, now_ms: int) -> bool:
    """Return whether it is a request whose producer no longer waits."""
    if not message.is_request:
        return False
    try:
        return Request.of(message).expires_ms < now_ms
    except MqError:
        return False  # an invalid request goes to the listener, which may understand it


class Replier(StartedClient):
    """Base of consumers, which reply to requests."""

    def __init__(self) -> None:
        self._instance: ClientInstance | None = None

    async def reply(
        self,
        message: ReceivedMessage,
        body: bytes,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Reply to a request. Return when its broker has passed the reply on to the producer.

        If a broker restarts or a producer reconnects, the call waits for it until the TTL of the
        request.

        Args:
            message: The request.
            body: The body of the reply.
            properties: The properties of the reply.

        Raises:
            MqError: CONSUMER_NOT_ONLINE if the producer has disconnected, INVALID_PARAMETER if the
                message is not a request, MESSAGE_ILLEGAL if the reply is too large, or
                VERSION_NOT_SUPPORTED. The last error is raised if the broker has not answered in
                time.
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
    if not isinstance(body, bytes):
        raise TypeError(f"a body is bytes, not {type(body).__name__}: encode it")
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
            log.debug("a reply is tried again: %s", error)
        await asyncio.sleep(pause_s)
        await instance.routes.refresh_soon(message.stored_topic)


def _too_old(broker_name: str) -> MqError:
    return MqError(
        Code.VERSION_NOT_SUPPORTED,
        f"broker {broker_name} passes no replies on: bring it to the version of this client",
    )
