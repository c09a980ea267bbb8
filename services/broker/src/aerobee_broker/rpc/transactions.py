"""TransactionService: EndTransaction.

Codes of an entry: SUCCESS, INVALID_TRANSACTION_ID, TOPIC_NOT_EXIST, MESSAGE_CORRUPTED. Codes of the
RPC: INVALID_PARAMETER, FLUSH_DISK_TIMEOUT, SERVICE_NOT_AVAILABLE, DISK_FULL.

Differences from Apache's server: a request ends any number of transactions. It is answered entry by
entry after the ends are durable. An end after the immunity time is valid too.
"""

from __future__ import annotations

from aerobee.broker.v1 import transaction_pb2 as pb

from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.rpc import convert
from aerobee_chassis.rpc.call import Call


class TransactionRpcs:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def end_transaction(
        self, request: pb.EndTransactionRequest, call: Call
    ) -> pb.EndTransactionResponse:
        outcomes = await self._transactions.end(
            [convert.transaction_end(end) for end in request.ends]
        )
        return pb.EndTransactionResponse(
            results=[
                pb.EndTransactionResult(**convert.code_and_message(error)) for error in outcomes
            ]
        )
