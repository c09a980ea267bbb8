"""Define a transaction of a producer, as the program uses it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from types import TracebackType
from typing import Self

from aerobee_client.message import Message
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.kinds import checked_class
from aerobee_client.send_result import SendResult, TransactionResolution
from aerobee_client.transactions.ends import HalfMessage, TransactionEnds
from aerobee_wire.status import MqError, illegal_operation

log = logging.getLogger(__name__)


class _State(Enum):
    NEW = auto()
    OPEN = auto()
    COMMITTED = auto()  # set when the commit is requested
    ROLLED_BACK = auto()
    UNKNOWN = auto()


_RESOLVED = {
    TransactionResolution.COMMIT: _State.COMMITTED,
    TransactionResolution.ROLLBACK: _State.ROLLED_BACK,
}


@checked_class
class Transaction:
    """A transaction. Its `async with` block stores the half message and ends the transaction.

    The transaction commits at the end of the block, and rolls back if the block raises. If neither
    reaches the broker before the deadline, or if the process dies inside the block, the check
    decides.

    Args:
        message: The message.
        send: Stores the half message.
        ends: Sends the commit or rollback to the broker.
        running: The ids of the transactions whose blocks run.
        timeout_s: The time limit, in seconds, for storing the half message, and the same limit
            for the commit or rollback.
    """

    def __init__(
        self,
        message: Message,
        send: Callable[[], Awaitable[SendResult]],
        ends: TransactionEnds,
        running: set[str],
        timeout_s: float,
    ) -> None:
        self.message = message
        self._send = send
        self._ends = ends
        self._running = running
        self._timeout_s = timeout_s
        self._state = _State.NEW
        self._result: SendResult | None = None

    def __repr__(self) -> str:
        return f"Transaction({self.message!r}, {self._state.name})"

    @property
    def result(self) -> SendResult:
        """The result of storing the half message.

        Raises MqError with the code ILLEGAL_OPERATION before the block begins.
        """
        if self._result is None:
            raise self._illegal("has not begun: use it in a with block")
        return self._result

    @property
    def message_id(self) -> str:
        """The id of the message and of the transaction.

        Raises MqError with the code ILLEGAL_OPERATION before the block begins.
        """
        return self.result.message_id

    async def commit(self) -> None:
        """Make the message visible to consumers. The commit is durable when the call returns.

        Raises:
            MqError: INVALID_TRANSACTION_ID if the transaction was ended by a check or given up,
                TOPIC_NOT_EXIST, or the last error if the broker has not answered in time. In the
                last case, it may be committed, or the check decides.
        """
        await self._end(TransactionResolution.COMMIT)

    async def rollback(self) -> None:
        """Discard the message. The rollback is durable when the call returns.

        Raises:
            MqError: See `commit`.
        """
        await self._end(TransactionResolution.ROLLBACK)

    async def end(self, resolution: TransactionResolution) -> None:
        """Commit, roll back, or leave the transaction to the check.

        Args:
            resolution: COMMIT, ROLLBACK or UNKNOWN.

        Raises:
            MqError: See `commit`.
        """
        if resolution is TransactionResolution.UNKNOWN:
            self.unknown()
        else:
            await self._end(resolution)

    def unknown(self) -> None:
        """Leave the transaction to the check, even if the block raises afterwards."""
        self._leave_open(_State.UNKNOWN)
        self._ends.left_open(HalfMessage.stored(self.result, self.message))

    async def __aenter__(self) -> Self:
        if self._state is not _State.NEW:
            raise self._illegal("has begun before: make another for the next message")
        result = await self._send()
        self._result = result
        HalfMessage.stored(result, self.message)
        self._running.add(result.transaction_id)
        self._state = _State.OPEN
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._state is not _State.OPEN:
                return
            if kind is None:
                await self.commit()
                return
            try:
                await self.rollback()
            except MqError as failure:  # the caller gets the block's own error
                log.warning("not rolled back, the broker will ask: %s: %s", self, failure)
        finally:
            self._running.discard(self.result.transaction_id)

    async def _end(self, resolution: TransactionResolution) -> None:
        self._leave_open(_RESOLVED[resolution])
        await self._ends.end(
            HalfMessage.stored(self.result, self.message), resolution, self._timeout_s
        )

    def _leave_open(self, state: _State) -> None:
        """Record the new state, so that the block does not end the transaction again."""
        PROCESS.check()
        if self._state is _State.NEW:
            raise self._illegal("has not begun: use it in a with block")
        if self._state is not _State.OPEN:
            raise self._illegal(f"is {self._state.name}: it ends once")
        self._state = state

    def _illegal(self, problem: str) -> MqError:
        return illegal_operation(f"the transaction of {self.message!r} {problem}")
