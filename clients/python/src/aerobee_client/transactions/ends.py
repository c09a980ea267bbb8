"""Identify half messages, and send commits and rollbacks of their transactions to the brokers.

A commit or rollback is called an end here. Ends that are requested in one iteration of the event
loop travel to their broker in one request. The broker answers each end when it is durable. An end
that failed, or whose answer was lost, is retried until its deadline. If an answer was lost and a
retry finds the transaction no longer open, the first attempt has succeeded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from aerobee.broker.v1 import transaction_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.errors import ClientClosed, RequestTimeout
from aerobee_client.message import Message
from aerobee_client.send_result import SendResult, TransactionResolution
from aerobee_wire import properties as names
from aerobee_wire import rpcs
from aerobee_wire.backoff import Backoff
from aerobee_wire.status import RETRYABLE, Code, MqError, failure_of

log = logging.getLogger(__name__)

WIRE_RESOLUTIONS = {
    TransactionResolution.COMMIT: transaction_pb2.COMMIT,
    TransactionResolution.ROLLBACK: transaction_pb2.ROLLBACK,
}


class HalfMessage(NamedTuple):
    """Identifies a half message.

    `queue_offset` is the offset of its first copy among the half messages of that broker. Tag and
    keys are those of the message.
    """

    topic: str
    broker_name: str
    transaction_id: str
    queue_offset: int
    tag: str = ""
    keys: tuple[str, ...] = ()

    @classmethod
    def stored(cls, result: SendResult, message: Message) -> HalfMessage:
        """Create a HalfMessage from the result of a send.

        Raises MqError with the code VERSION_NOT_SUPPORTED if the broker stored a normal message.
        """
        queue = result.queue
        if not result.transaction_id:
            raise MqError(
                Code.VERSION_NOT_SUPPORTED,
                f"broker {queue.broker_name} does not support transactions and has stored a normal "
                "message: upgrade it to the version of this client",
            )
        return cls(
            queue.topic,
            queue.broker_name,
            result.transaction_id,
            result.queue_offset,
            message.tag,
            message.keys,
        )


def half(message: Message) -> Message:
    """Return the half message that is sent when a transaction begins.

    Raises MqError with the code MESSAGE_ILLEGAL for a message of a message group or lite topic.
    """
    if message.order_key:
        raise MqError(
            Code.MESSAGE_ILLEGAL,
            f"a transaction does not support message_group and lite_topic ({message.order_key!r}), "
            "because the message gets its place only at the commit: send it without them",
        )
    return message.with_system_properties({names.TRANSACTION_PREPARED: "true"})


# The maximum for one request. Further ends go into the next one.
MAX_ENDS = 512
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.5
# After these failures, the broker may have executed the request.
_LOST_ANSWERS = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.REQUEST_TIMEOUT,
        Code.FLUSH_DISK_TIMEOUT,
        Code.FLUSH_SLAVE_TIMEOUT,
    }
)


OnEnd = Callable[[HalfMessage, TransactionResolution, bool, BaseException | None], None]


class _End:
    """A commit or rollback of a transaction.

    `may_be_done` is true if an answer was lost. `failure` is the error of the last attempt.
    """

    __slots__ = ("deadline_ms", "failure", "future", "half", "may_be_done", "resolution")

    def __init__(
        self,
        half: HalfMessage,
        resolution: TransactionResolution,
        deadline_ms: int,
        future: asyncio.Future[None],
    ) -> None:
        self.half = half
        self.resolution = resolution
        self.deadline_ms = deadline_ms
        self.future = future
        self.may_be_done = False
        self.failure: MqError | None = None

    def attempt_failed(self, error: MqError) -> bool:
        """Return whether to retry the end after `error`. Otherwise set the result of the future."""
        if error.code is Code.INVALID_TRANSACTION_ID and self.may_be_done:
            self.succeed()
            return False
        if not (error.retryable or error.code in RETRYABLE or error.code in _LOST_ANSWERS):
            self.fail(error)
            return False
        self.may_be_done = self.may_be_done or error.code in _LOST_ANSWERS
        self.failure = error
        return True

    def succeed(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class TransactionEnds:
    """Sends the commits and rollbacks of one producer. Runs on its event loop.

    `on_end` is called after each of them with the half message, the resolution, whether a check
    decided, and the error or None.
    """

    def __init__(
        self,
        instance: ClientInstance,
        producer_group: str,
        on_end: OnEnd | None = None,
    ) -> None:
        self._instance = instance
        self._clock = instance.clock
        self._producer_group = producer_group
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._next: dict[str, list[_End]] = {}  # by broker name, not sent yet
        self._tasks: dict[asyncio.Task[None], list[_End]] = {}
        self._closed = False

    def end(
        self,
        half: HalfMessage,
        resolution: TransactionResolution,
        timeout_s: float,
        *,
        from_check: bool = False,
    ) -> asyncio.Future[None]:
        """Commit or roll back a transaction, even if the caller does not wait for the future.

        The future raises MqError with the code INVALID_TRANSACTION_ID if the transaction is not
        open, and TOPIC_NOT_EXIST if the topic was deleted. If the broker has not answered before
        the deadline, the future raises the last error.
        """
        future: asyncio.Future[None] = self._loop.create_future()
        if self._on_end is not None:
            future.add_done_callback(partial(self._notify, half, resolution, from_check))
        if self._closed:
            future.set_exception(ClientClosed("producer"))
            return future
        end = _End(half, resolution, self._clock.monotonic_ms() + int(timeout_s * 1000), future)
        if half.broker_name in self._next:
            self._next[half.broker_name].append(end)
        else:
            self._next[half.broker_name] = [end]
            self._loop.call_soon(self._leave, half.broker_name)
        return future

    def left_open(self, half: HalfMessage) -> None:
        """Report that the producer leaves the transaction to the check. No request is sent."""
        if self._on_end is not None:
            self._on_end(half, TransactionResolution.UNKNOWN, False, None)

    def _notify(
        self,
        half: HalfMessage,
        resolution: TransactionResolution,
        from_check: bool,
        done: asyncio.Future[None],
    ) -> None:
        assert self._on_end is not None
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        self._on_end(half, resolution, from_check, error)

    async def drain(self) -> None:
        """Wait until all ends have succeeded or failed. Do not accept further ends."""
        self._closed = True
        while self._next or self._tasks:
            await asyncio.sleep(0)
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def abort(self) -> None:
        """Fail all pending ends with ClientClosed. The brokers will then check the transactions."""
        self._closed = True
        under_way = dict(self._tasks)
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        # Ends whose task had not begun fail too.
        for ends in (*under_way.values(), *self._next.values()):
            _fail_all(ends, ClientClosed("producer"))
        self._next.clear()

    def _leave(self, broker_name: str) -> None:
        ends = self._next.pop(broker_name, [])
        for start in range(0, len(ends), MAX_ENDS):
            part = ends[start : start + MAX_ENDS]
            task = self._loop.create_task(self._deliver(broker_name, part))
            self._tasks[task] = part
            task.add_done_callback(self._tasks.pop)

    async def _deliver(self, broker_name: str, ends: list[_End]) -> None:
        """Send ends and retry them until each has succeeded or failed."""
        backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        try:
            while ends := await self._attempt(broker_name, ends):
                pause_s = backoff.next_s()
                ends = self._in_time(ends, broker_name, int(pause_s * 1000))
                if ends:
                    await asyncio.sleep(pause_s)
                    await self._instance.routes.refresh_soon(ends[0].half.topic)
        except asyncio.CancelledError:
            _fail_all(ends, ClientClosed("producer"))
            raise
        except Exception as error:  # otherwise the callers would wait forever
            log.exception("%d transactions were not ended", len(ends))
            _fail_all(ends, error)

    async def _attempt(self, broker_name: str, ends: list[_End]) -> list[_End]:
        """Send ends once. Return the ends to retry."""
        ends = self._in_time(ends, broker_name, 0)
        if not ends:
            return []
        left_ms = min(end.deadline_ms for end in ends) - self._clock.monotonic_ms()
        try:
            response = await self._instance.call_broker(
                broker_name,
                rpcs.END_TRANSACTION,
                self._request(ends),
                timeout_s=max(left_ms, 1) / 1000,
            )
        except MqError as error:
            return [end for end in ends if end.attempt_failed(error)]
        again = []
        for end, result in zip(ends, response.results, strict=True):
            failure = failure_of(result)
            if failure is None:
                end.succeed()
            elif end.attempt_failed(failure):
                again.append(end)
        return again

    def _request(self, ends: Sequence[_End]) -> transaction_pb2.EndTransactionRequest:
        return transaction_pb2.EndTransactionRequest(
            ends=[
                transaction_pb2.TransactionEnd(
                    transaction_id=end.half.transaction_id,
                    queue_offset=end.half.queue_offset,
                    producer_group=self._producer_group,
                    resolution=WIRE_RESOLUTIONS[end.resolution],
                )
                for end in ends
            ]
        )

    def _in_time(self, ends: list[_End], broker_name: str, pause_ms: int) -> list[_End]:
        """Return the ends whose deadlines are after the next pause. Fail the other ends."""
        by_ms = self._clock.monotonic_ms() + pause_ms
        left = []
        for end in ends:
            if end.deadline_ms > by_ms:
                left.append(end)
            else:
                end.fail(end.failure or RequestTimeout(f"broker {broker_name}", 0))
        return left


def _fail_all(ends: Sequence[_End], error: BaseException) -> None:
    for end in ends:
        end.fail(error)
