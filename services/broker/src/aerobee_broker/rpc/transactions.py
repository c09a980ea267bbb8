"""TransactionService: EndTransaction.

Codes: see transaction.proto. Differs from Apache's server: any number of transactions end in one
request, entry by entry; the answer comes when their ends are durable; an end that comes after the
time of immunity counts too.
"""

from __future__ import annotations

from aerobee.broker.v1 import transaction_pb2 as pb

from aerobee_broker.delivery.transaction.transactions import Transactions
from aerobee_broker.rpc import convert
from aerobee_chassis.rpc.call import Call
from aerobee_wire.status import Code, MqError


class TransactionRpcs:
    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def end_transaction(
        self, request: pb.EndTransactionRequest, call: Call
    ) -> pb.EndTransactionResponse:
        outcomes = await self._transactions.end([convert.end(one) for one in request.ends])
        return pb.EndTransactionResponse(results=map(_result, outcomes))


def _result(error: MqError | None) -> pb.EndTransactionResult:
    if error is None:
        return pb.EndTransactionResult(code=int(Code.SUCCESS))
    return pb.EndTransactionResult(code=int(error.code), message=error.message)
