"""Implement MessageService: Send, SendBack, RecallMessage, SendReply.

The RPCs Pull, GetMessage and QueryMessages are in `reads.py`.

Codes (message.proto lists them for each RPC): MESSAGE_ILLEGAL, INVALID_PARAMETER, QUEUE_NOT_EXIST,
TOPIC_NOT_EXIST, NO_PERMISSION, SUBSCRIPTION_GROUP_NOT_EXIST, SUBSCRIPTION_NOT_EXIST,
SUBSCRIPTION_PARSE_FAILED, QUEUE_LOCK_NOT_HELD, QUERY_NOT_FOUND, MESSAGE_CORRUPTED,
ILLEGAL_OPERATION (a recall), CONSUMER_NOT_ONLINE (a reply), FLUSH_DISK_TIMEOUT,
SERVICE_NOT_AVAILABLE, DISK_FULL, FLOW_CONTROL, SYSTEM_BUSY, SYSTEM_ERROR.

Differences from Apache's server:

- A Send carries many messages.
- SendBack is answered entry by entry.
- A send checks the write permission of its topic.
- A pull from an offset outside the queue is answered with OFFSET_MOVED, which is not an error.
"""

from __future__ import annotations

from aerobee.broker.v1 import message_pb2 as pb
from aerobee.broker.v1 import transaction_pb2

from aerobee_broker.cluster.identity import Identity
from aerobee_broker.delivery.delay.timer_recall import TimerRecall
from aerobee_broker.delivery.retry.send_back import Outcome, SendBack
from aerobee_broker.delivery.send.batch import BatchSender
from aerobee_broker.delivery.send.send import Sender, SendResult
from aerobee_broker.delivery.statistics.latency import SendLatency
from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.errors import InvalidParameter
from aerobee_broker.registry.reply_streams import ReplyStreams
from aerobee_broker.rpc import convert
from aerobee_chassis.rpc.call import Call
from aerobee_wire.access.policies import PUB, SUB, topic_need
from aerobee_wire.handles import recall_handle
from aerobee_wire.handles.recall_handle import RecallHandle
from aerobee_wire.message_id import offset_message_id, pack_host


class MessageRpcs:
    def __init__(
        self,
        *,
        sender: Sender,
        batch_sender: BatchSender,
        send_back: SendBack,
        timer_recall: TimerRecall,
        replies: ReplyStreams,
        identity: Identity,
        send_latency: SendLatency,
    ) -> None:
        self._send_latency = send_latency
        self._sender = sender
        self._batch_sender = batch_sender
        self._send_back = send_back
        self._timer_recall = timer_recall
        self._replies = replies
        self._broker_name = identity.broker_name
        self._store_host = identity.store_host
        self._packed_store_host = pack_host(identity.store_host)

    async def send(self, request: pb.SendRequest, call: Call) -> pb.SendResponse:
        begin = self._send_latency.begin()
        response = await self._stored(request, call)
        self._send_latency.end(begin)
        return response

    async def _stored(self, request: pb.SendRequest, call: Call) -> pb.SendResponse:
        if request.HasField("batch") == bool(request.messages):
            raise InvalidParameter("give either messages or batch, and at least one message")
        response = pb.SendResponse(broker_name=self._broker_name, store_host=self._store_host)
        peer, queue_count = call.peer, request.default_queue_count
        if request.HasField("batch"):
            batch = convert.send_batch(request.batch, peer)
            stored = await self._batch_sender.send(batch, queue_count, convert.creator(call))
            response.batch_result.queue_id = stored.queue_id
            response.batch_result.first_queue_offset = stored.first_queue_offset
            response.batch_result.physical_offsets.extend(stored.physical_offsets)
            return response
        if request.brief:
            encoded = [convert.new_message(message, peer) for message in request.messages]
            appended = await self._sender.send_fast(encoded, queue_count, convert.creator(call))
            if appended is not None:
                response.queue_offsets.extend([offsets.queue_offset for offsets in appended])
                return response
        messages = convert.send_messages(request.messages, request.producer_group, peer)
        results = await self._sender.send(messages, queue_count, convert.creator(call))
        for message, result in zip(messages, results, strict=True):
            response.results.add(
                queue_id=result.queue_id,
                queue_offset=result.queue_offset,
                physical_offset=result.physical_offset,
                offset_message_id=offset_message_id(
                    self._packed_store_host, result.physical_offset
                ),
                unique_message_id=result.unique_message_id,
                transaction_id=result.transaction_id,
                recall_handle=self._recall_handle(message.topic, result),
            )
        return response

    def _recall_handle(self, topic: str, result: SendResult) -> str:
        if not result.deliver_ms:
            return ""
        return recall_handle.encode(
            RecallHandle(topic, self._broker_name, result.deliver_ms, result.unique_message_id)
        )

    async def recall_message(
        self, request: pb.RecallMessageRequest, call: Call
    ) -> pb.RecallMessageResponse:
        handle = recall_handle.decode(request.recall_handle)
        for noun, given, in_handle in (
            ("topic", request.topic, handle.topic),
            ("broker", self._broker_name, handle.broker_name),
        ):
            if given != in_handle:
                raise InvalidParameter(
                    f"the recall handle belongs to {noun} {in_handle!r}, not {given!r}: give the "
                    "topic that the message was sent to, and ask the broker that stored it"
                )
        await self._timer_recall.recall(handle.topic, handle.deliver_ms, handle.unique_key)
        return pb.RecallMessageResponse(unique_message_id=handle.unique_key)

    async def send_reply(self, request: pb.SendReplyRequest, call: Call) -> pb.SendReplyResponse:
        await self._replies.pass_on(request.client_id, convert.reply(request))
        return pb.SendReplyResponse()

    async def send_back(self, request: pb.SendBackRequest, call: Call) -> pb.SendBackResponse:
        entries = [convert.send_back_entry(entry) for entry in request.entries]
        outcomes = await self._send_back.send_back(
            request.consumer_group,
            entries,
            readable=lambda topic: call.caller.may(topic_need(topic, SUB)),
        )
        return pb.SendBackResponse(results=map(_send_back_result, outcomes))


def _send_back_result(outcome: Outcome) -> pb.SendBackResult:
    result = convert.code_and_message(outcome.error)
    return pb.SendBackResult(**result, dead_lettered=outcome.dead_lettered)


class TransactionRpcs:
    """Implement TransactionService: EndTransaction.

    Codes of an entry: SUCCESS, INVALID_TRANSACTION_ID, NO_PERMISSION, TOPIC_NOT_EXIST,
    MESSAGE_CORRUPTED. Codes of the RPC: INVALID_PARAMETER, FLUSH_DISK_TIMEOUT,
    SERVICE_NOT_AVAILABLE, DISK_FULL.

    Differences from Apache's server: a request ends any number of transactions, and has one result
    for each. It is answered after the ends are durable. An end after the immunity time is valid
    too.
    """

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def end_transaction(
        self, request: transaction_pb2.EndTransactionRequest, call: Call
    ) -> transaction_pb2.EndTransactionResponse:
        outcomes = await self._transactions.end(
            [convert.transaction_end(end) for end in request.ends],
            may_end=lambda topic: call.caller.may(topic_need(topic, PUB)),
        )
        return transaction_pb2.EndTransactionResponse(
            results=[
                transaction_pb2.EndTransactionResult(**convert.code_and_message(error))
                for error in outcomes
            ]
        )
