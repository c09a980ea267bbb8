"""Handle QueryMessage and AdminSendMessage."""

from __future__ import annotations

import base64
import binascii
import json
import os
import secrets

from aerobee.broker.v1.message_pb2 import Subscription
from aerobee.broker.v1.search_pb2 import QueueRange, SearchMessagesRequest
from aerobee_foreign.apache.rocketmq.v2 import admin_pb2 as pb
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code, Message
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import SendMessageRequest

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.administration import Administration, Left
from aerobee_proxy.cluster.send import MessageSender
from aerobee_proxy.config import CurrentOptions
from aerobee_proxy.v2.admin.calls import Operator
from aerobee_proxy.v2.resources import topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.rpc.send import send_message
from aerobee_proxy.v2.sessions import Session
from aerobee_proxy.v2.status import Refused, status
from aerobee_proxy.v2.translate import LITE_TOPIC, from_record, record_of
from aerobee_proxy.v2.validation import check_lite_topic, milliseconds
from aerobee_wire.message_id import UniqueIds
from aerobee_wire.properties import KEY_SEPARATOR

DEFAULT_MESSAGES = 32
MOST_MESSAGES = 1_000  # of one answer
MOST_SKIPPED = 10_000  # messages before a page; a scroll id has no such limit
MAX_SCROLL_ID = 64 * 1024


class MessageRpcs:
    def __init__(
        self,
        administration: Administration,
        sender: MessageSender,
        options: CurrentOptions,
        clock: Clock,
    ) -> None:
        self._administration = administration
        self._sender = sender
        self._options = options
        self._clock = clock
        self._ids = UniqueIds("127.0.0.1", os.getpid(), secrets.randbits(32))

    async def query_message(
        self, request: pb.ListMessageRequest, operator: Operator
    ) -> pb.ListMessageResponse:
        """Return stored messages of a topic that meet the conditions. Nothing is consumed.

        `subscription` is an expression of tags. The messages of one broker come in the order of
        their storage, the brokers one after the other. `scroll_id` continues the search; an answer
        without one was the last. An answer may have no messages and a scroll id. Found by an id or
        key, the messages have no scroll id.

        Codes: ILLEGAL_TOPIC, TOPIC_NOT_FOUND, ILLEGAL_LITE_TOPIC, ILLEGAL_FILTER_EXPRESSION,
        PROXY_TIMEOUT, BAD_REQUEST for a number that is out of range, an unknown broker or queue, or
        a scroll id of another topic.
        """
        topic = topic_name(request.topic)
        most, skipped = _page(request)
        wanted = SearchMessagesRequest(
            topic=topic,
            key=request.message_id or request.message_key,
            begin_timestamp_ms=max(0, milliseconds(request.begin_timestamp)),
            end_timestamp_ms=max(0, milliseconds(request.end_timestamp)),
        )
        if request.subscription:
            wanted.subscription.expression = request.subscription
        elif request.lite_topic:
            check_lite_topic(request.lite_topic, self._options())
            wanted.subscription.expression = f"{LITE_TOPIC} = '{request.lite_topic}'"
            wanted.subscription.expression_type = Subscription.SQL92
        if request.scroll_id:
            left = _read_scroll_id(request.scroll_id)
        else:
            left = await self._whole(topic, request)
        page = await self._administration.search(wanted, left, most + skipped)
        messages = [
            from_record(
                record_of(stored),
                namespace=request.topic.resource_namespace,
                max_body_size=self._options().max_message_size,
            )
            for stored in page.messages[skipped:]
        ]
        scroll_id = _scroll_id(page.left) if page.left else ""
        return pb.ListMessageResponse(status=status(), messages=messages, scroll_id=scroll_id)

    async def _whole(self, topic: str, request: pb.ListMessageRequest) -> Left:
        brokers = await self._administration.brokers_of(topic)
        if request.broker_name:
            if request.broker_name not in brokers:
                raise Refused(
                    Code.BAD_REQUEST,
                    f"broker {request.broker_name[:64]!r} does not serve topic {topic!r}: use one "
                    f"of {', '.join(brokers)}",
                )
            brokers = [request.broker_name]
        queues = [QueueRange(queue_id=request.queue_id)] if request.HasField("queue_id") else []
        return dict.fromkeys(brokers, queues)

    async def admin_send_message(
        self, request: pb.AdminSendMessageRequest, operator: Operator
    ) -> pb.AdminSendMessageResponse:
        """Send one message, with a new message id if the request has none.

        `tag` and `key` stand above those of the system properties. ext_info has no effect. Codes:
        those of SendMessage.
        """
        message = Message(
            topic=request.topic,
            body=request.body,
            user_properties=request.user_properties,
            system_properties=request.system_properties,
        )
        system = message.system_properties
        if request.tag:
            system.tag = request.tag
        if request.key:
            system.keys[:] = request.key.split(KEY_SEPARATOR)
        if not system.message_id:
            system.message_id = self._ids.make(self._clock.now_ms())
        if not system.HasField("born_timestamp"):
            system.born_timestamp.FromMilliseconds(self._clock.now_ms())
        name = "" if operator.user is None else operator.user.name
        session = Session("", self._clock.real.monotonic_ms(), user=name)  # not a client
        caller = Caller("", session, operator.call, operator.user)
        answer = await send_message(
            self._sender,
            self._options,
            self._clock,
            SendMessageRequest(messages=[message]),
            caller,
        )
        if answer.status.code == Code.OK:
            operator.did("message_sent", topic=request.topic.name, message_id=system.message_id)
        return pb.AdminSendMessageResponse(status=answer.status, message_id=system.message_id)


def _page(request: pb.ListMessageRequest) -> tuple[int, int]:
    """Return how many messages to answer with, and how many to skip before them."""
    most = request.page_size or request.max_message_nums or DEFAULT_MESSAGES
    if not 1 <= most <= MOST_MESSAGES:
        raise Refused(Code.BAD_REQUEST, f"{most} messages are asked for: ask for 1 to 1000")
    skipped = max(0, request.page_num - 1) * most
    if skipped > MOST_SKIPPED:
        raise Refused(
            Code.BAD_REQUEST,
            f"page {request.page_num} is beyond {MOST_SKIPPED} messages: use scroll_id",
        )
    return most, skipped


def _scroll_id(left: Left) -> str:
    """Return a text that says where a search continues."""
    parts = {
        broker: [
            [
                each.queue_id,
                each.begin_offset,
                each.end_offset if each.HasField("end_offset") else -1,
            ]
            for each in ranges
        ]
        for broker, ranges in left.items()
    }
    return base64.urlsafe_b64encode(json.dumps(parts, separators=(",", ":")).encode()).decode()


def _read_scroll_id(text: str) -> Left:
    """Return where a search continues. Raises Refused with the code BAD_REQUEST."""
    try:
        parts = json.loads(base64.urlsafe_b64decode(text[:MAX_SCROLL_ID].encode()))
        return {
            str(broker): [
                QueueRange(
                    queue_id=queue_id,
                    begin_offset=begin,
                    end_offset=end if end >= 0 else None,
                )
                for queue_id, begin, end in ranges
            ]
            for broker, ranges in parts.items()
        }
    except (binascii.Error, ValueError, TypeError, AttributeError):
        raise Refused(
            Code.BAD_REQUEST, "invalid scroll_id: use that of the last answer, or none"
        ) from None
