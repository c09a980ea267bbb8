"""Handle SendMessage, RecallMessage and EndTransaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aerobee.broker.v1 import transaction_pb2 as broker
from aerobee.broker.v1.message_pb2 import RecallMessageRequest as BrokerRequest
from aerobee.broker.v1.message_pb2 import SendResult
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import (
    Message,
    SystemProperties,
    TransactionResolution,
)
from aerobee_foreign.apache.rocketmq.v2.service_pb2 import (
    EndTransactionRequest,
    EndTransactionResponse,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
)

from aerobee_chassis.clock import Clock
from aerobee_proxy.cluster.batches import BrokerBatches, SendOutcome
from aerobee_proxy.cluster.broker_calls import FLUSH_TIMEOUT_S, BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_proxy.cluster.send import MessageSender, SendRoute
from aerobee_proxy.cluster.topic_route import (
    DELAY,
    TRANSACTION,
    BrokerQueue,
    accepted_types,
    check_type,
)
from aerobee_proxy.config import CurrentOptions
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.resources import topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import overall, status, status_for
from aerobee_proxy.v2.translate import message_type, to_broker
from aerobee_proxy.v2.validation import (
    check_message,
    recall_handle_of,
    topic_of,
    transaction_of,
)
from aerobee_wire.handles import transaction_id
from aerobee_wire.handles.transaction_id import TransactionId
from aerobee_wire.rpcs import RECALL_MESSAGE
from aerobee_wire.status import Code as BrokerCode
from aerobee_wire.status import MqError

_STORED = status()


async def send_message(
    sender: MessageSender,
    current: CurrentOptions,
    clock: Clock,
    request: SendMessageRequest,
    caller: Caller,
) -> SendMessageResponse:
    """Handle SendMessage: send one or several messages of one topic.

    Codes: MULTIPLE_RESULTS, ILLEGAL_TOPIC, ILLEGAL_MESSAGE_TAG / KEY / GROUP / PROPERTY_KEY / ID,
    ILLEGAL_DELIVERY_TIME, MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, MESSAGE_CORRUPTED, FORBIDDEN,
    TOPIC_NOT_FOUND, MESSAGE_BODY_TOO_LARGE / EMPTY, MESSAGE_PROPERTIES_TOO_LARGE, PROXY_TIMEOUT,
    MASTER_PERSISTENCE_TIMEOUT, SLAVE_PERSISTENCE_TIMEOUT, HA_NOT_AVAILABLE, TOO_MANY_REQUESTS.

    The response has one entry with a status for each message, unlike that of RocketMQ's proxy. The
    entry of a message with a future delivery time contains a recall handle.
    """
    options = current()
    messages = request.messages
    topic = topic_of(messages)
    now_ms = clock.now_ms()
    for message in messages:
        check_message(message, options, now_ms)
    types = [message_type(message) for message in messages]
    route = await sender.route(topic, caller.session.user)
    if options.enable_topic_message_type_check:
        if route.untyped_brokers and types[0] in route.accepted_types:
            route = await sender.specified_route(route, types[0])
        for kind in types:
            check_type(kind, route.accepted_types, topic)
    if TRANSACTION in types:
        # Checks of the half message may go to this client even if its settings lack the topic.
        caller.session.sent_half(topic, messages[0].topic)
    peer, outgoing = caller.call.peer, []
    for message, kind in zip(messages, types, strict=True):
        system = message.system_properties
        queue = sender.choose_queue(route, _line(system), system.priority)
        outgoing.append((queue, to_broker(message, kind, topic, queue.queue_id, peer)))
    outcomes = await sender.send(outgoing)
    if any(isinstance(outcome, MqError) for outcome in outcomes):
        again = await _places_elsewhere(sender, route, messages, outgoing, outcomes)
        for n, queue in again.items():
            resent = outgoing[n][1]
            resent.queue_id = queue.queue_id
            outgoing[n] = queue, resent
        resends = await sender.send([outgoing[n] for n in again])
        for n, outcome in zip(again, resends, strict=True):
            outcomes[n] = outcome
    entries = [
        _entry(message, outcome, topic, queue.broker_name)
        for message, outcome, (queue, _) in zip(messages, outcomes, outgoing, strict=True)
    ]
    return SendMessageResponse(status=overall([entry.status for entry in entries]), entries=entries)


async def _places_elsewhere(
    sender: MessageSender,
    route: SendRoute,
    messages: Sequence[Message],
    sent: Sequence[tuple[BrokerQueue, object]],
    outcomes: Sequence[SendOutcome | Exception],
) -> dict[int, BrokerQueue]:
    """Choose queues on other brokers for messages that their first broker refused.

    Return the queue for each index in `messages`. Messages that were stored, or that other brokers
    would refuse too, are left out.
    """
    found: dict[int, BrokerQueue] = {}
    # The broker of these messages is draining, or does not allow writes to the topic any longer.
    refused = [n for n, each in enumerate(outcomes) if _is(each, BrokerCode.NO_PERMISSION)]
    if refused and (changed := await sender.changed_route(route)):
        for n in refused:
            system = messages[n].system_properties
            found[n] = sender.choose_queue(changed, _line(system), system.priority)
    # The broker of these messages has too few replicas in sync. Messages of a message group or lite
    # topic stay with their broker, because their order matters.
    for n in [n for n, each in enumerate(outcomes) if _is(each, BrokerCode.SLAVE_NOT_AVAILABLE)]:
        system = messages[n].system_properties
        if not _line(system):
            queue = sender.choose_queue(route, "", system.priority)
            if queue.broker_name != sent[n][0].broker_name:
                found[n] = queue
    return found


def _line(system: SystemProperties) -> str:
    """Return the message group or the lite topic, which keep messages in one queue, or ""."""
    return system.message_group or system.lite_topic


def _is(outcome: SendOutcome | Exception, code: BrokerCode) -> bool:
    return isinstance(outcome, MqError) and outcome.code is code


def _entry(
    message: Message, outcome: SendOutcome | Exception, topic: str, broker_name: str
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
            transaction = TransactionId(
                broker_name, topic, outcome.transaction_id, outcome.queue_offset
            )
            entry.transaction_id = transaction_id.encode(transaction)
        return entry
    return SendResultEntry(status=status_for("send_message", outcome), message_id=message_id)


async def recall_message(
    calls: BrokerCalls,
    route_cache: RouteCache,
    current: CurrentOptions,
    request: RecallMessageRequest,
    caller: Caller,
) -> RecallMessageResponse:
    """Handle RecallMessage: cancel a delayed message before its delivery time.

    The recall is durable before the answer.

    Codes:

        ILLEGAL_TOPIC
        TOPIC_NOT_FOUND
        MESSAGE_PROPERTY_CONFLICT_WITH_TYPE   the topic does not accept delayed messages
        BAD_REQUEST                           the recall handle is invalid or of another topic, or
                                              the message has been delivered or recalled
        PROXY_TIMEOUT
        MASTER_PERSISTENCE_TIMEOUT

    Differences from RocketMQ's proxy: the RPC is on by default, and a second recall fails. The code
    for an invalid handle is BAD_REQUEST, not an internal error.
    """
    options = current()
    topic = topic_name(request.topic)
    handle = recall_handle_of(request.recall_handle, topic)
    if options.enable_topic_message_type_check:
        check_type(DELAY, accepted_types(await route_cache.route(topic)), topic)
    answer = await calls.call(
        handle.broker_name,
        RECALL_MESSAGE,
        BrokerRequest(topic=topic, recall_handle=request.recall_handle),
        timeout_s=FLUSH_TIMEOUT_S,
    )
    return RecallMessageResponse(status=status(), message_id=answer.unique_message_id)


# Any other resolution means that the producer does not know the result of the transaction yet.
_RESOLUTIONS: Mapping[int, broker.Resolution] = {
    TransactionResolution.COMMIT: broker.COMMIT,
    TransactionResolution.ROLLBACK: broker.ROLLBACK,
}


async def end_transaction(
    batches: BrokerBatches, counts: ProxyCounts, request: EndTransactionRequest, caller: Caller
) -> EndTransactionResponse:
    """Handle EndTransaction: commit a producer's half message, or roll it back.

    The result is durable before the answer.

    Codes: ILLEGAL_TOPIC, INVALID_TRANSACTION_ID, TOPIC_NOT_FOUND, PROXY_TIMEOUT,
    MASTER_PERSISTENCE_TIMEOUT. Differences from RocketMQ's proxy: any proxy can end any open
    transaction. For a transaction that is not open, the answer is INVALID_TRANSACTION_ID.
    """

    topic = topic_name(request.topic)
    transaction = transaction_of(request.transaction_id, topic)
    end = broker.TransactionEnd(
        transaction_id=transaction.transaction_id,
        queue_offset=transaction.queue_offset,
        producer_group=transaction.producer_group,
        # `request.source` is ignored: some SDKs leave it out.
        resolution=_RESOLUTIONS.get(request.resolution, broker.RESOLUTION_UNSPECIFIED),
    )
    await batches.end_transaction(transaction.broker_name, end)
    counts.transactions_ended += 1
    return EndTransactionResponse(status=status())
