"""SendMessage: one message or several of one topic, each with an outcome of its own.

Codes: MULTIPLE_RESULTS, ILLEGAL_TOPIC, ILLEGAL_MESSAGE_TAG / KEY / GROUP / PROPERTY_KEY / ID,
ILLEGAL_DELIVERY_TIME, MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, MESSAGE_CORRUPTED, FORBIDDEN,
TOPIC_NOT_FOUND, MESSAGE_BODY_TOO_LARGE / EMPTY, MESSAGE_PROPERTIES_TOO_LARGE, PROXY_TIMEOUT,
MASTER_PERSISTENCE_TIMEOUT, TOO_MANY_REQUESTS. Differs from RocketMQ's proxy: several messages are
several entries, each with a recall handle of its own when it has a delivery time ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from aerobee.broker.v1.message_pb2 import Message as BrokerMessage
from aerobee.broker.v1.message_pb2 import SendResult
from apache.rocketmq.v2.definition_pb2 import Code, Message, MessageType
from apache.rocketmq.v2.service_pb2 import SendMessageRequest, SendMessageResponse, SendResultEntry

from aerobee_proxy.cluster.batcher import outcomes_of
from aerobee_proxy.cluster.broker_calls import Sent
from aerobee_proxy.cluster.queue_selector import queue_of_group
from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import Refused, overall, status
from aerobee_proxy.v2.routes import BrokerQueue, queues_of_priority
from aerobee_proxy.v2.rpc.pipeline import Caller, tell
from aerobee_proxy.v2.translate import to_broker
from aerobee_proxy.v2.validation import check_message, check_type, message_type, topic_of
from aerobee_wire import transaction_id
from aerobee_wire.transaction_id import TransactionId

_STORED = status()
_TRANSACTION, _ONLY_PRIORITY = MessageType.TRANSACTION, (MessageType.PRIORITY,)


async def send_message(
    parts: Parts, request: SendMessageRequest, caller: Caller
) -> SendMessageResponse:
    messages = request.messages
    topic = topic_of(messages)
    now_ms = parts.clock.now_ms()
    for message in messages:
        check_message(message, parts.options, now_ms)
    types = [message_type(message) for message in messages]
    route = parts.send_routes.of(topic, await parts.creation.route(topic))
    if parts.options.enable_topic_message_type_check:
        for one in types:
            check_type(one, route.accepted, topic)
    if _TRANSACTION in types:
        # So that it can be asked what became of them, whatever its settings say.
        caller.session.sent_half(topic, messages[0].topic)
    queues = route.queues
    if not queues:
        raise Refused(Code.FORBIDDEN, f"no writable queue: no broker takes messages of {topic}")
    by_priority, peer = route.accepted == _ONLY_PRIORITY, caller.peer
    sent = [
        _translated(
            parts,
            message,
            topic,
            queues_of_priority(queues, message.system_properties.priority)
            if by_priority
            else queues,
            peer,
        )
        for message in messages
    ]
    if parts.brokers.any_missed:
        for broker_name in {broker_name for broker_name, _ in sent}:
            await parts.brokers.wait_for(broker_name)
    # All placed before any is waited for: they keep their order and leave together.
    placed = [parts.brokers.place(broker_name, stored) for broker_name, stored in sent]
    outcomes = await outcomes_of(placed)
    entries = [
        _entry(message, outcome, topic, broker_name)
        for message, outcome, (broker_name, _) in zip(messages, outcomes, sent, strict=True)
    ]
    parts.counts.sent += len([one for one in outcomes if not isinstance(one, Exception)])
    return SendMessageResponse(status=overall([one.status for one in entries]), entries=entries)


def _translated(
    parts: Parts, message: Message, topic: str, queues: Sequence[BrokerQueue], peer: str
) -> tuple[str, BrokerMessage]:
    """The broker that takes the message, and the message as it takes it."""
    group = message.system_properties.message_group
    if group:
        queue = queue_of_group(group, queues)
    else:
        if parts.brokers.any_missed:
            there = [one for one in queues if not parts.brokers.is_missed(one.broker_name)]
            queues = there or queues
        queue = parts.turns.take(topic, queues)
    return queue.broker_name, to_broker(message, topic, queue.queue_id, peer)


def _entry(
    message: Message, outcome: Sent | Exception, topic: str, broker_name: str
) -> SendResultEntry:
    message_id = message.system_properties.message_id
    if isinstance(outcome, int):
        return SendResultEntry(status=_STORED, message_id=message_id, offset=outcome)
    if isinstance(outcome, SendResult):
        entry = SendResultEntry(
            status=_STORED,
            message_id=message_id,
            offset=outcome.queue_offset,
            recall_handle=outcome.recall_handle,
        )
        if outcome.transaction_id:
            named = TransactionId(broker_name, topic, outcome.transaction_id, outcome.queue_offset)
            entry.transaction_id = transaction_id.encode(named)
        return entry
    return SendResultEntry(status=tell(send_message, outcome), message_id=message_id)
