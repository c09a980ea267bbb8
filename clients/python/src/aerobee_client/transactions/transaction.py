"""One transaction of a producer, as its program sees it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from types import TracebackType
from typing import Self

from aerobee_client.message import Message
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.send_result import SendResult, TransactionResolution
from aerobee_client.transactions.ends import TransactionEnds
from aerobee_client.transactions.half_message import HalfMessage
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)


class _State(Enum):
    NEW = auto()
    OPEN = auto()
    COMMITTED = auto()  # from the moment that it was asked for
    ROLLED_BACK = auto()
    UNKNOWN = auto()


_RESOLVED = {
    TransactionResolution.COMMIT: _State.COMMITTED,
    TransactionResolution.ROLLBACK: _State.ROLLED_BACK,
}


class Transaction:
    """`async with` stores the half message at its beginning and ends the transaction: it commits at
    the end of the block, and rolls back when the block raises.

    An end that does not reach the broker until its deadline, and a process that dies inside the
    block, leave the transaction to the check-back. `send`: stores the half message. `running`: the
    ids of the transactions whose blocks run. `timeout_s`: of storing it, and again of its end.
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
        """Of storing the half message. Raises ILLEGAL_OPERATION before the block."""
        if self._result is None:
            raise self._illegal("has not begun: use it in a with block")
        return self._result

    @property
    def message_id(self) -> str:
        """Of the message, and of the transaction. Raises as `result`."""
        return self.result.message_id

    async def commit(self) -> None:
        """Shows the message to consumers; durable when it returns. Raises MqError:
        INVALID_TRANSACTION_ID (it was ended by a check, or given up), TOPIC_NOT_EXIST, what kept
        the broker from answering in time (then it may be committed, or the broker asks)."""
        await self._end(TransactionResolution.COMMIT)

    async def rollback(self) -> None:
        """Discards the message; durable when it returns. Raises as `commit`."""
        await self._end(TransactionResolution.ROLLBACK)

    async def end(self, resolution: TransactionResolution) -> None:
        """Commits, rolls back, or leaves it to the check-back. Raises as `commit`."""
        if resolution is TransactionResolution.UNKNOWN:
            self.unknown()
        else:
            await self._end(resolution)

    def unknown(self) -> None:
        """Leaves it to the check-back, whatever happens in the rest of the block."""
        self._leave_open(_State.UNKNOWN)
        self._ends.left_open(HalfMessage.stored(self.result))

    async def __aenter__(self) -> Self:
        if self._state is not _State.NEW:
            raise self._illegal("has begun before: make another for the next message")
        result = await self._send()
        self._result = result
        HalfMessage.stored(result)
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
            except MqError as failure:  # the block's own error counts for its caller
                log.warning("not rolled back, the broker will ask: %s: %s", self, failure)
        finally:
            self._running.discard(self.result.transaction_id)

    async def _end(self, resolution: TransactionResolution) -> None:
        self._leave_open(_RESOLVED[resolution])
        await self._ends.end(HalfMessage.stored(self.result), resolution, self._timeout_s)

    def _leave_open(self, state: _State) -> None:
        """From now on the block does not end it."""
        PROCESS.check()
        if self._state is _State.NEW:
            raise self._illegal("has not begun: use it in a with block")
        if self._state is not _State.OPEN:
            raise self._illegal(f"is {self._state.name}: it ends once")
        self._state = state

    def _illegal(self, problem: str) -> MqError:
        return MqError(Code.ILLEGAL_OPERATION, f"the transaction of {self.message!r} {problem}")
