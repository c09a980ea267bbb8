"""Send messages in transactions: the public classes.

A message is stored as a half message, which is invisible to consumers. Then the program does its
own work, such as a transaction of its database, and commits or rolls back the message accordingly.
If the process or the connection dies before the broker gets this decision, the broker calls `check`
of any producer of the group. That producer may run in another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from aerobee.broker.v1 import client_pb2

from aerobee_client.errors import ClientClosed
from aerobee_client.message import Message, check_message
from aerobee_client.observing.hooks import notify
from aerobee_client.options.producer import ProducerSettings
from aerobee_client.producer import AsyncProducer, ProducerFacade
from aerobee_client.runtime.clock import Clock
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.kinds import checked_class
from aerobee_client.runtime.loop_thread import LoopThread
from aerobee_client.send_result import SendResult, TransactionResolution, TransactionSendResult
from aerobee_client.transactions.checks import Check, TransactionChecks, checked, is_coroutine
from aerobee_client.transactions.ends import HalfMessage, TransactionEnds, half
from aerobee_client.transactions.transaction import Transaction
from aerobee_cluster.transport import Transport
from aerobee_wire.status import MqError

AsyncExecute = Callable[[Message], TransactionResolution | Awaitable[TransactionResolution]]
Execute = Callable[[Message], TransactionResolution]


@checked_class
class AsyncTransactionProducer(AsyncProducer):
    """A producer that also sends messages in transactions, for asyncio.

    The broker may call `check` more than once, in another process than the sender, and for a
    message whose send failed. `check` must therefore decide by the message (its body, keys or
    message id), not by the memory of its process. If `check` raises or returns UNKNOWN, the broker
    asks again: by default every 30 s and up to 15 times. Then the broker discards the message.

    Args:
        producer_group: The group of producers that can decide about each other's transactions.
        check: A function or coroutine function that gets the half message as a ReceivedMessage and
            returns a TransactionResolution. A plain function runs on one of four threads.
        namesrv: See AsyncProducer.
        transport: Replaces the transport in tests.
        clock: Replaces the clock in tests.
        settings: See AsyncProducer.

    Example:
        def check(message):
            stored = database.has_order(message.keys[0])
            return TransactionResolution.COMMIT if stored else TransactionResolution.ROLLBACK

        async with AsyncTransactionProducer("orders", check) as producer:
            async with producer.transaction(Message("paid", b"17", keys="17")):
                await database.insert_order(17)
    """

    _whole_cluster = True

    def __init__(
        self,
        producer_group: str,
        check: Check,
        *,
        namesrv: str | Sequence[str] | None = None,
        transport: Transport | None = None,
        clock: Clock | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        super().__init__(
            producer_group, namesrv=namesrv, transport=transport, clock=clock, **settings
        )
        self._check = check
        self._running: set[str] = set()
        self._ends: TransactionEnds | None = None
        self._checks: TransactionChecks | None = None

    async def start(self) -> None:
        """Start the producer. From now on, every reachable broker of the cluster may call `check`.

        Raises:
            MqError: INVALID_PARAMETER if no name server is given.
        """
        await super().start()
        if self._ends is None and self._instance is not None:
            self._ends = TransactionEnds(self._instance, self.producer_group, self._ended)
            self._checks = TransactionChecks(
                self._check, self._ends, self._running, self._timeout_s
            )

    def _ended(
        self,
        half: HalfMessage,
        resolution: TransactionResolution,
        from_check: bool,
        error: BaseException | None,
    ) -> None:
        event = (half.transaction_id, resolution.name, error)
        notify(self._interceptors, "end_transaction", *event)
        if self._traces is not None and self._instance is not None and error is None:
            store_host = ""
            with suppress(MqError):  # the broker has left the routes
                store_host = self._instance.routes.address_of(half.broker_name)
            self._traces.transaction_ended(half, store_host, resolution.name, from_check=from_check)

    async def close(self) -> None:
        """Wait for sends and for commits and rollbacks in flight, then unregister and disconnect.

        Running checks are not awaited.
        """
        if PROCESS.is_child:
            return  # the sends in flight belong to the parent process
        ends, self._ends = self._ends, None
        checks, self._checks = self._checks, None
        async with AsyncExitStack() as finally_:
            finally_.push_async_callback(super().close)
            if ends is not None and checks is not None:
                finally_.push_async_callback(ends.abort)
                await checks.close()
                await ends.drain()

    def transaction(self, message: Message, *, timeout: timedelta | None = None) -> Transaction:
        """Return a context manager that sends `message` in a transaction.

        `async with producer.transaction(message) as tx:` stores the half message at the beginning
        of the block and commits at its end. If the block raises, it rolls back.

        Args:
            message: The message to send.
            timeout: The time limit for storing the half message, and the same limit for the commit
                or rollback.

        Returns:
            The transaction. Entering the block raises MqError like `send`, and leaving it raises
            MqError like `Transaction.commit`.

        Raises:
            ClientClosed: If the producer is not running.
        """
        check_message(message)
        if self._ends is None:
            raise ClientClosed("producer")
        send = partial(self.send, half(message), timeout=timeout)
        return Transaction(message, send, self._ends, self._running, self._seconds(timeout))

    async def send_in_transaction(
        self, message: Message, execute: AsyncExecute, *, timeout: timedelta | None = None
    ) -> TransactionSendResult:
        """Store the half message, call `execute(message)`, and end the transaction by its result.

        If `execute` raises, this call raises the same error, and the check decides later.

        Args:
            message: The message to send.
            execute: A coroutine function, or a function, which runs on a thread. It returns a
                TransactionResolution.
            timeout: See `transaction`.

        Returns:
            The result of the half message, and the decision.

        Raises:
            MqError: See `transaction`.
        """
        async with self.transaction(message, timeout=timeout) as tx:
            try:
                if is_coroutine(execute):
                    answer = await execute(message)  # type: ignore[misc]
                else:
                    answer = await asyncio.to_thread(execute, message)
                resolution = checked(answer, "execute")
            except BaseException:
                tx.unknown()
                raise
            await tx.end(resolution)
        return TransactionSendResult(tx.result, resolution)

    def _on_notice(self, address: str, notice: client_pb2.ClientNotice) -> None:
        super()._on_notice(address, notice)
        checks, instance = self._checks, self._instance
        if notice.HasField("transaction_check") and checks is not None and instance is not None:
            checks.ask(instance.routes.broker_at(address), notice.transaction_check)


@checked_class
class PlainTransaction:
    """A Transaction for programs without asyncio: `with producer.transaction(message) as tx:`."""

    def __init__(self, transaction: Transaction, loop: LoopThread) -> None:
        self._transaction = transaction
        self._loop = loop

    @property
    def message(self) -> Message:
        return self._transaction.message

    @property
    def result(self) -> SendResult:
        return self._transaction.result

    @property
    def message_id(self) -> str:
        return self._transaction.message_id

    def commit(self) -> None:
        self._loop.run(self._transaction.commit())

    def rollback(self) -> None:
        self._loop.run(self._transaction.rollback())

    def end(self, resolution: TransactionResolution) -> None:
        self._loop.run(self._transaction.end(resolution))

    def unknown(self) -> None:
        self._transaction.unknown()

    def __enter__(self) -> Self:
        self._loop.run(self._transaction.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._transaction.__aexit__(kind, error, traceback))


@checked_class
class TransactionProducer(ProducerFacade[AsyncTransactionProducer]):
    """A producer that also sends messages in transactions, for programs without asyncio.

    Arguments, results and errors are those of AsyncTransactionProducer.
    """

    def __init__(
        self,
        producer_group: str,
        check: Check,
        *,
        namesrv: str | Sequence[str] | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        super().__init__(
            AsyncTransactionProducer(producer_group, check, namesrv=namesrv, **settings)
        )

    def transaction(
        self, message: Message, *, timeout: timedelta | None = None
    ) -> PlainTransaction:
        """Return a context manager that sends `message` in a transaction.

        Args:
            message: The message to send.
            timeout: See AsyncTransactionProducer.transaction.

        Returns:
            The transaction.
        """
        return PlainTransaction(self._client.transaction(message, timeout=timeout), self._loop)

    def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout: timedelta | None = None
    ) -> TransactionSendResult:
        """Store the half message, call `execute(message)`, and end the transaction by its result.

        If `execute` raises, this call raises the same error, and the check decides later.

        Args:
            message: The message to send.
            execute: A function that returns a TransactionResolution. It runs in the thread of the
                caller.
            timeout: See AsyncTransactionProducer.transaction.

        Returns:
            The result of the half message, and the decision.
        """
        with self.transaction(message, timeout=timeout) as tx:
            try:
                resolution = checked(execute(message), "execute")
            except BaseException:
                tx.unknown()
                raise
            tx.end(resolution)
        return TransactionSendResult(tx.result, resolution)
