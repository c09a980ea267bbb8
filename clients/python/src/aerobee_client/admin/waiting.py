"""List what waits in brokers, and act on it: leases, transactions and delayed messages.

Part of AsyncAdminClient. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aerobee.broker.v1 import admin_pb2, transaction_pb2

from aerobee_client.admin.brokers import BrokerAdmin, numbers_fit
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.status import Code, MqError

R = TypeVar("R")

# The time limit of a search among leases: a broker may read 100,000 messages.
SEARCH_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A message on lease.

    Attributes:
        message_id: The id of the message; "" if its record cannot be read.
        message_group: Its message group; "" for none.
        client_id: The client that received it; "" if unknown, as after a restart of the broker.
        since_timestamp_ms: When it was received.
        expires_timestamp_ms: When it is delivered again, unless it is settled before.
    """

    topic: str
    broker_name: str
    queue_id: int
    queue_offset: int
    message_id: str
    lease_id: int
    attempt: int
    message_group: str
    client_id: str
    since_timestamp_ms: int
    expires_timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction that has not ended.

    Attributes:
        topic: The destination of its message.
        queue_offset: The queue offset of its half message, which names it on its broker.
        stored_timestamp_ms: When the half message was stored.
        checks: How many times a producer was asked for the outcome.
    """

    topic: str
    broker_name: str
    producer_group: str
    transaction_id: str
    queue_offset: int
    stored_timestamp_ms: int
    checks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedMessage:
    """A message that waits for its delivery time.

    Attributes:
        topic: The destination; None if the record cannot be read.
        message_id: The id of the message; None if the record cannot be read.
        due_timestamp_ms: When it is delivered.
        delay: The name of its delay queue, such as "level 3 (10 s)", or "timers" for a delivery
            time of its own.
        stored_timestamp_ms: When it was stored; None if the record cannot be read.
        body_size: The size of its body in bytes; None if the record cannot be read.
    """

    topic: str | None
    broker_name: str
    message_id: str | None
    due_timestamp_ms: int
    delay: str
    stored_timestamp_ms: int | None
    body_size: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Generic[R]):
    """Some of the rows that wait.

    Attributes:
        rows: The rows.
        total: The number of rows on all brokers; None if a broker did not answer. For delayed
            messages of one topic, it is None too if not all delayed messages were examined.
        lite_leases: For leases, the messages of lite topics on lease, which are not listed. None
            if a broker did not answer.
        unanswered: The reason why each broker did not answer, by broker name.
    """

    rows: tuple[R, ...]
    total: int | None
    lite_leases: int | None = 0
    unanswered: Mapping[str, str]


@checked_class
class WaitingAdmin(BrokerAdmin):
    async def list_leases(
        self,
        group: str,
        *,
        topic: str = "",
        client_id: str = "",
        message_id: str = "",
        limit: int = 100,
    ) -> Waiting[HeldLease]:
        """Return the messages that a group has on lease, the oldest lease first.

        Args:
            group: The consumer group.
            topic: Only messages of this topic.
            client_id: Only messages that this client received.
            message_id: Only messages with this id. Each broker then reads all leased messages of
                the group, for which it has 60 s.
            limit: The highest number of leases, 1 to 1,000.

        Returns:
            The leases. `unanswered` names the brokers that did not answer.

        Raises:
            MqError: SUBSCRIPTION_GROUP_NOT_EXIST if no broker has the group, INVALID_PARAMETER, or
                the failure of a broker if no broker answers.
        """
        with numbers_fit():
            request = admin_pb2.ListLeasesRequest(
                consumer_group=group,
                topic=topic,
                client_id=client_id,
                message_id=message_id,
                limit=limit,
            )
        answers, unanswered = await self._waiting(
            rpcs.LIST_LEASES,
            request,
            absent=Code.SUBSCRIPTION_GROUP_NOT_EXIST,
            timeout_s=SEARCH_TIMEOUT_S if message_id else None,
        )
        rows = [
            HeldLease(broker_name=name, **_fields(row))
            for name, answer in answers.items()
            for row in answer.leases
            # A broker of an earlier version does not filter by message id.
            if message_id in ("", row.message_id)
        ]
        complete = not unanswered
        return Waiting(
            rows=_first(rows, limit, lambda row: row.since_timestamp_ms),
            total=sum(each.total for each in answers.values()) if complete else None,
            lite_leases=sum(each.lite_leases for each in answers.values()) if complete else None,
            unanswered=unanswered,
        )

    async def release_lease(self, group: str, lease: HeldLease) -> None:
        """End a lease now, so that its message is delivered again with the same attempt number.

        Args:
            group: The consumer group that has the lease.
            lease: The lease, as `list_leases` returned it.

        Raises:
            MqError: INVALID_RECEIPT_HANDLE if the message is not on this lease any more, or
                BROKER_NOT_EXIST.
        """
        request = admin_pb2.ReleaseLeaseRequest(
            consumer_group=group,
            topic=lease.topic,
            queue_id=lease.queue_id,
            queue_offset=lease.queue_offset,
            lease_id=lease.lease_id,
        )
        await self._brokers.ask_named(lease.broker_name, rpcs.RELEASE_LEASE, request)

    async def list_transactions(
        self,
        *,
        topic: str = "",
        producer_group: str = "",
        transaction_id: str = "",
        limit: int = 100,
    ) -> Waiting[OpenTransaction]:
        """Return the transactions that have not ended, the oldest first.

        Args:
            topic: Only transactions with a message for this topic.
            producer_group: Only transactions of this group.
            transaction_id: Only the transaction with this id.
            limit: The highest number of transactions, 1 to 1,000.

        Returns:
            The transactions. `unanswered` names the brokers that did not answer.

        Raises:
            MqError: INVALID_PARAMETER, or the failure of a broker if no broker answers.
        """
        with numbers_fit():
            request = admin_pb2.ListTransactionsRequest(
                topic=topic,
                producer_group=producer_group,
                transaction_id=transaction_id,
                limit=limit,
            )
        answers, unanswered = await self._waiting(rpcs.LIST_TRANSACTIONS, request)
        rows = [
            OpenTransaction(broker_name=name, **_fields(row))
            for name, answer in answers.items()
            for row in answer.transactions
        ]
        return Waiting(
            rows=_first(rows, limit, lambda row: row.stored_timestamp_ms),
            total=None if unanswered else sum(each.total for each in answers.values()),
            unanswered=unanswered,
        )

    async def end_transaction(self, transaction: OpenTransaction, *, commit: bool) -> None:
        """Commit or roll back a transaction in place of its producer.

        Args:
            transaction: The transaction, as `list_transactions` returned it.
            commit: True to deliver its message, False to discard it.

        Raises:
            MqError: INVALID_TRANSACTION_ID if it has ended meanwhile, TOPIC_NOT_EXIST,
                MESSAGE_CORRUPTED, or BROKER_NOT_EXIST.
        """
        request = transaction_pb2.EndTransactionRequest()
        request.ends.add(
            transaction_id=transaction.transaction_id,
            queue_offset=transaction.queue_offset,
            producer_group=transaction.producer_group,
            resolution=transaction_pb2.COMMIT if commit else transaction_pb2.ROLLBACK,
        )
        broker = transaction.broker_name
        answer = await self._brokers.ask_named(broker, rpcs.END_TRANSACTION, request)
        (result,) = answer.results
        if result.code:
            raise MqError(Code(result.code), result.message)

    async def list_delayed(self, *, topic: str = "", limit: int = 100) -> Waiting[DelayedMessage]:
        """Return the messages that wait for a delivery time, the next ones first.

        Args:
            topic: Only messages for this topic. Each broker looks for them among its next 10,000.
            limit: The highest number of messages, 1 to 1,000.

        Returns:
            The messages. `unanswered` names the brokers that did not answer.

        Raises:
            MqError: INVALID_PARAMETER, or the failure of a broker if no broker answers.
        """
        with numbers_fit():
            request = admin_pb2.ListDelayedRequest(topic=topic, limit=limit)
        answers, unanswered = await self._waiting(rpcs.LIST_DELAYED, request)
        rows = [_delayed(name, row) for name, answer in answers.items() for row in answer.messages]
        total = None if unanswered else sum(each.total for each in answers.values())
        if topic and total is not None:
            examined = all(each.examined >= each.total for each in answers.values())
            total = len(rows) if examined else None
        return Waiting(
            rows=_first(rows, limit, lambda row: row.due_timestamp_ms),
            total=total,
            unanswered=unanswered,
        )

    async def _waiting(
        self,
        rpc: Any,
        request: Any,
        absent: Code | None = None,
        timeout_s: float | None = None,
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask all masters. Return the answers, and the reasons of the others, by broker name.

        A broker that refuses with the code `absent` has no rows. If no broker answers, raises the
        failure of one.
        """
        masters, missing = await self._brokers.masters_and_missing()
        answers, refused = await self._brokers.ask_answering(
            masters, rpc, request, timeout_s=timeout_s
        )
        for error in refused.values():
            if error.code is Code.INVALID_PARAMETER:
                raise error
        silent = {name: error for name, error in refused.items() if error.code is not absent}
        if not answers:
            raise [*silent.values(), *missing.values(), *refused.values()][0]
        errors: dict[str, MqError] = missing | silent
        return answers, {name: errors[name].message for name in sorted(errors)}


def _fields(row: Any) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.DESCRIPTOR.fields_by_name}


def _delayed(broker_name: str, row: admin_pb2.DelayedMessage) -> DelayedMessage:
    readable = bool(row.topic)
    return DelayedMessage(
        topic=row.topic or None,
        broker_name=broker_name,
        message_id=row.message_id or None,
        due_timestamp_ms=row.due_timestamp_ms,
        delay=row.delay,
        stored_timestamp_ms=row.stored_timestamp_ms if readable else None,
        body_size=row.body_size if readable else None,
    )


def _first(rows: Iterable[R], limit: int, key: Callable[[R], int]) -> tuple[R, ...]:
    ordered = sorted(rows, key=key)
    return tuple(ordered[:limit] if limit else ordered)
