"""EndTransaction: a producer commits its half message or rolls it back; durable when answered.

Codes: ILLEGAL_TOPIC, INVALID_TRANSACTION_ID, TOPIC_NOT_FOUND, PROXY_TIMEOUT,
MASTER_PERSISTENCE_TIMEOUT. Differs from RocketMQ's proxy: any proxy ends any transaction, as long
as it is open; a transaction that is not open is told as such.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.v1 import transaction_pb2 as broker
from apache.rocketmq.v2.definition_pb2 import TransactionResolution
from apache.rocketmq.v2.service_pb2 import EndTransactionRequest, EndTransactionResponse

from aerobee_proxy.v2.context import Parts
from aerobee_proxy.v2.errors import status
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.validation import topic_name, transaction_of

# Anything else: not known yet.
_RESOLUTIONS: Mapping[int, broker.Resolution] = {
    TransactionResolution.COMMIT: broker.COMMIT,
    TransactionResolution.ROLLBACK: broker.ROLLBACK,
}


async def end_transaction(
    parts: Parts, request: EndTransactionRequest, caller: Caller
) -> EndTransactionResponse:
    topic = topic_name(request.topic)
    named = transaction_of(request.transaction_id, topic)
    end = broker.TransactionEnd(
        transaction_id=named.transaction_id,
        queue_offset=named.queue_offset,
        producer_group=named.producer_group,
        # Of the source nothing hangs: some SDKs leave it out.
        resolution=_RESOLUTIONS.get(request.resolution, broker.RESOLUTION_UNSPECIFIED),
    )
    await parts.brokers.end(named.broker_name, end)
    parts.counts.transactions_ended += 1
    return EndTransactionResponse(status=status())
