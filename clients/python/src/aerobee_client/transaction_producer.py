"""Sending messages in transactions: the public classes.

A message is stored as a half message, which no consumer sees. Then the program does its own work,
for example commits a transaction of its database, and the message is committed or rolled back with
it. Where a broker is not told which, because the process or the connection died, it asks any
producer of the group (`check`), which may be another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from aerobee.broker.v1 import client_pb2

from aerobee_client.cluster.transport import Transport
from aerobee_client.errors import ClientClosed
from aerobee_client.message import Message, check_message
from aerobee_client.observing.hooks import tell
from aerobee_client.options.producer import ProducerSettings
from aerobee_client.plain_producer import ProducerFacade
from aerobee_client.producer import AsyncProducer
from aerobee_client.runtime.clock import Clock
from aerobee_client.runtime.facade import LoopThread
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.send_result import SendResult, TransactionResolution, TransactionSendResult
from aerobee_client.transactions.checks import Check, TransactionChecks, checked, is_coroutine
from aerobee_client.transactions.ends import TransactionEnds
from aerobee_client.transactions.half_message import half
from aerobee_client.transactions.transaction import Transaction

AsyncExecute = Callable[[Message], TransactionResolution | Awaitable[TransactionResolution]]
Execute = Callable[[Message], TransactionResolution]


class AsyncTransactionProducer(AsyncProducer):
    """A producer that also sends messages in transactions; for asyncio.

    `producer_group`: the producers that can answer for one another's transactions. `check`: a
    function or a coroutine function of one ReceivedMessage, the half message, that returns a
    TransactionResolution. It may be asked in another process than the one that sent the message,
    about a message whose sender was told of a failure, and more than once: so it decides by the
    message (its body, keys or message id), not by what this process remembers. When it raises or
    returns UNKNOWN, the broker asks again, every 30 s and 15 times by default; then it gives the
    message up. A function runs on one of four threads. Other arguments: AsyncProducer.
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
        """Raises INVALID_PARAMETER when no name server is given. From now on every broker of the
        cluster may ask, as soon as it can be reached."""
        await super().start()
        if self._ends is None and self._instance is not None:
            self._ends = TransactionEnds(self._instance, self.producer_group, self._ended)
            self._checks = TransactionChecks(
                self._check, self._ends, self._running, self._timeout_s
            )

    def _ended(self, message_id: str, resolution: str, error: BaseException | None) -> None:
        tell(self._interceptors, "end_transaction", message_id, resolution, error)

    async def close(self) -> None:
        """Waits for sends and ends in flight, not for checks, unregisters and disconnects."""
        if PROCESS.is_child:
            return  # what is under way is the parent's
        ends, self._ends = self._ends, None
        checks, self._checks = self._checks, None
        async with AsyncExitStack() as finally_:
            finally_.push_async_callback(super().close)
            if ends is not None and checks is not None:
                finally_.push_async_callback(ends.abort)
                await checks.close()
                await ends.drain()

    def transaction(self, message: Message, *, timeout: timedelta | None = None) -> Transaction:
        """`async with producer.transaction(message) as tx:` stores the half message at its
        beginning, commits at the end of the block, and rolls back when the block raises.

        `timeout`: of storing it, and again of its end. The block raises MqError like `send` at its
        beginning, and like Transaction.commit at its end.
        """
        check_message(message)
        if self._ends is None:
            raise ClientClosed("producer")
        send = partial(self.send, half(message), timeout=timeout)
        return Transaction(message, send, self._ends, self._running, self._seconds(timeout))

    async def send_in_transaction(
        self, message: Message, execute: AsyncExecute, *, timeout: timedelta | None = None
    ) -> TransactionSendResult:
        """Stores the half message, calls `execute(message)`, and ends the transaction as that
        returns. When it raises, the transaction is left to the check-back, and so does this.

        `execute`: a coroutine function, or a function, which runs on a thread.
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


class TransactionProducer(ProducerFacade[AsyncTransactionProducer]):
    """A producer that also sends messages in transactions; for programs without asyncio. Arguments,
    results and errors are those of AsyncTransactionProducer."""

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
        """`with producer.transaction(message) as tx:`, as AsyncTransactionProducer.transaction."""
        return PlainTransaction(self._client.transaction(message, timeout=timeout), self._loop)

    def send_in_transaction(
        self, message: Message, execute: Execute, *, timeout: timedelta | None = None
    ) -> TransactionSendResult:
        """As AsyncTransactionProducer.send_in_transaction; `execute` runs in the thread of the
        caller."""
        with self.transaction(message, timeout=timeout) as tx:
            try:
                resolution = checked(execute(message), "execute")
            except BaseException:
                tx.unknown()
                raise
            tx.end(resolution)
        return TransactionSendResult(tx.result, resolution)
