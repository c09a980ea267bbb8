"""Batch requests to brokers: messages, acks, changes of invisible durations, ends of transactions.

A broker returns a result for each ack, change and end. It stores a batch of messages as a whole or
not at all. If a broker refuses a batch of messages, they are sent one by one, so that only invalid
messages fail.

After some failures, such as a timeout, the batch may be stored. All messages of the batch then
fail, because sending them again could create duplicates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from aerobee.broker.v1.message_pb2 import Message, SendRequest, SendResult
from aerobee.broker.v1.pop_pb2 import (
    AckRequest,
    ChangeInvisibleDurationRequest,
    InvisibleChange,
    InvisibleChangeResult,
    LeaseSet,
)
from aerobee.broker.v1.transaction_pb2 import (
    EndTransactionRequest,
    EndTransactionResult,
    TransactionEnd,
)

from aerobee_cluster.batcher import Batchers
from aerobee_cluster.leases import ack_failures
from aerobee_proxy.cluster.broker_calls import FLUSH_TIMEOUT_S, BrokerCalls
from aerobee_proxy.cluster.route_cache import RouteCache
from aerobee_wire.rpcs import ACK, CHANGE_INVISIBLE_DURATION, END_TRANSACTION, SEND
from aerobee_wire.status import Code, MqError, failure_of

# Approximate sizes on the wire: a message without its body, one lease, one end of a transaction.
MESSAGE_OVERHEAD_BYTES = 512
LEASE_BYTES = 128
END_BYTES = 256

# With these codes, no message of the batch was stored, and a single message may be the reason.
REFUSALS = frozenset(
    {
        Code.MESSAGE_ILLEGAL,
        Code.INVALID_PARAMETER,
        Code.NO_PERMISSION,
        Code.TOPIC_NOT_EXIST,
        Code.FLOW_CONTROL,
    }
)

# The queue offset of a message that was sent, or its whole result if the broker returns more.
SendOutcome: TypeAlias = int | SendResult
# The errors of the leases that were not acknowledged, by their index in a lease set.
LeaseFailures: TypeAlias = Mapping[int, MqError]


class BrokerBatches:
    """Batches the requests to all brokers. At most one batch of each kind is in flight per broker.

    Broker names in receipt handles and transaction ids come from clients. Each unknown name is
    therefore checked at the name servers before a batcher is created for it.
    """

    def __init__(self, calls: BrokerCalls, route_cache: RouteCache) -> None:
        self._calls = calls
        self._route_cache = route_cache
        self._sends: Batchers[Message, SendOutcome] = Batchers(self._send)
        self._acks: Batchers[LeaseSet, LeaseFailures] = Batchers(self._ack)
        self._changes: Batchers[InvisibleChange, InvisibleChangeResult] = Batchers(self._change)
        self._ends: Batchers[TransactionEnd, EndTransactionResult] = Batchers(self._end)

    def send(self, broker_name: str, message: Message) -> asyncio.Future[SendOutcome]:
        """Queue a message for a broker, and return a future for its outcome.

        The broker must be from a route. The future raises MqError.
        """
        return self._sends[broker_name].submit(message, len(message.body) + MESSAGE_OVERHEAD_BYTES)

    async def acknowledge(
        self, broker_name: str, lease_sets: Sequence[LeaseSet]
    ) -> Sequence[LeaseFailures | Exception]:
        """Acknowledge leases. Return the failures of each lease set, in order.

        For a lease that has ended, the failure has the code INVALID_RECEIPT_HANDLE. Raises MqError
        if the outcome of all leases is unknown.
        """
        if broker_name not in self._acks:
            await self._route_cache.address_of(broker_name)
        leases = sum(len(lease_set.queue_offsets) for lease_set in lease_sets)
        return await self._acks[broker_name].submit_all(lease_sets, leases * LEASE_BYTES)

    async def change_invisible_duration(
        self, broker_name: str, change: InvisibleChange
    ) -> InvisibleChangeResult:
        """Change the invisible duration of a message.

        Raises MqError, with the code INVALID_RECEIPT_HANDLE if the lease has ended.
        """
        if broker_name not in self._changes:
            await self._route_cache.address_of(broker_name)
        return await self._changes[broker_name].submit(change, LEASE_BYTES)

    async def end_transaction(self, broker_name: str, end: TransactionEnd) -> None:
        """Commit or roll back a transaction.

        Raises MqError, with the code INVALID_TRANSACTION_ID if the transaction is not open.
        """
        if broker_name not in self._ends:
            await self._route_cache.address_of(broker_name)
        await self._ends[broker_name].submit(end, END_BYTES)

    async def close(self) -> None:
        every = (self._sends, self._acks, self._changes, self._ends)
        closing = [batcher.close() for batchers in every for batcher in batchers.values()]
        await asyncio.gather(*closing)

    async def _send(
        self, broker_name: str, messages: Sequence[Message]
    ) -> Sequence[SendOutcome | Exception]:
        try:
            return await self._send_together(broker_name, messages)
        except MqError as error:
            if len(messages) == 1 or error.code not in REFUSALS:
                raise
        return await self._send_each(broker_name, messages)

    async def _send_each(
        self, broker_name: str, messages: Sequence[Message]
    ) -> Sequence[SendOutcome | Exception]:
        """Send messages one after the other, so that only the messages at fault fail.

        If the broker fails for a reason that is not about one message, the later messages get the
        same error without being sent. Otherwise they would wait for a broker that hangs, each for
        the whole timeout.
        """
        outcomes: list[SendOutcome | Exception] = []
        for message in messages:
            try:
                outcomes += await self._send_together(broker_name, [message])
            except MqError as error:
                outcomes.append(error)
                if error.code not in REFUSALS:
                    outcomes += [error] * (len(messages) - len(outcomes))
                    break
        return outcomes

    async def _send_together(
        self, broker_name: str, messages: Sequence[Message]
    ) -> Sequence[SendOutcome]:
        request = SendRequest(messages=messages, brief=True)
        answer = await self._calls.call(broker_name, SEND, request, timeout_s=FLUSH_TIMEOUT_S)
        return answer.queue_offsets or answer.results

    async def _ack(
        self, broker_name: str, lease_sets: Sequence[LeaseSet]
    ) -> Sequence[LeaseFailures]:
        request = AckRequest(lease_sets=lease_sets)
        answer = await self._calls.call_patiently(broker_name, ACK, request)
        return ack_failures(answer, len(lease_sets), broker_name=broker_name, caller="proxy")

    async def _change(
        self, broker_name: str, changes: Sequence[InvisibleChange]
    ) -> Sequence[InvisibleChangeResult | Exception]:
        request = ChangeInvisibleDurationRequest(changes=changes)
        answer = await self._calls.call_patiently(broker_name, CHANGE_INVISIBLE_DURATION, request)
        return [failure_of(result) or result for result in answer.results]

    async def _end(
        self, broker_name: str, ends: Sequence[TransactionEnd]
    ) -> Sequence[EndTransactionResult | Exception]:
        request = EndTransactionRequest(ends=ends)
        answer = await self._calls.call_patiently(
            broker_name, END_TRANSACTION, request, timeout_s=FLUSH_TIMEOUT_S
        )
        return [failure_of(result) or result for result in answer.results]
