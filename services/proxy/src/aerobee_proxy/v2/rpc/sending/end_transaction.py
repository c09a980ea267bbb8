"""EndTransaction: a producer commits its half message or rolls it back.

The result is durable before the answer.

Codes: ILLEGAL_TOPIC, INVALID_TRANSACTION_ID, TOPIC_NOT_FOUND, PROXY_TIMEOUT,
MASTER_PERSISTENCE_TIMEOUT. Differences from RocketMQ's proxy: any proxy can end any open
transaction. For a transaction that is not open, the answer is INVALID_TRANSACTION_ID.
"""

from __future__ import annotations

from collections.abc import Mapping

from aerobee.broker.v1 import transaction_pb2 as broker
from apache.rocketmq.v2.definition_pb2 import TransactionResolution
from apache.rocketmq.v2.service_pb2 import EndTransactionRequest, EndTransactionResponse

from aerobee_proxy.cluster.batches import BrokerBatches
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.resources import topic_name
from aerobee_proxy.v2.rpc.pipeline import Caller
from aerobee_proxy.v2.status import status
from aerobee_proxy.v2.validation.messages import transaction_of

# Any other resolution means that the producer does not know yet.
_RESOLUTIONS: Mapping[int, broker.Resolution] = {
    TransactionResolution.COMMIT: broker.COMMIT,
    TransactionResolution.ROLLBACK: broker.ROLLBACK,
}


async def end_transaction(
    batches: BrokerBatches, counts: ProxyCounts, request: EndTransactionRequest, caller: Caller
) -> EndTransactionResponse:
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
