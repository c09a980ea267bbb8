"""Brokers by name: asks them, and puts sends and settlements for one broker together.

Settlements are answered entry by entry. A batch of messages is stored all or none: when a broker
refuses one, its messages are sent one by one, so that only those fail that are to blame. A failure
after which nobody knows what was stored goes to every sender, because sending again would make
duplicates.

A broker that went away is mostly starting again. Settlements, and sends that no other broker can
take, wait for it as long as SDKs can wait for an answer; who polls waits as long as it would have
waited for messages. A send waits before it is asked for: none is sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import structlog
from aerobee.broker.v1.admin_pb2 import GetGroupRequest
from aerobee.broker.v1.message_pb2 import (
    Message,
    RecallMessageRequest,
    SendRequest,
    SendResult,
)
from aerobee.broker.v1.pop_pb2 import (
    AckRequest,
    ChangeInvisibleDurationRequest,
    DeadLetterEntry,
    DeadLetterRequest,
    InvisibleChange,
    InvisibleChangeResult,
    LeaseSet,
)
from aerobee.broker.v1.transaction_pb2 import (
    EndTransactionRequest,
    EndTransactionResult,
    TransactionEnd,
)
from google.protobuf.message import Message as Proto

from aerobee_proxy.cluster.batcher import Coalescer
from aerobee_proxy.cluster.route_cache import Topology
from aerobee_proxy.cluster.transport import Transport
from aerobee_wire.rpcs import (
    ACK,
    CHANGE_INVISIBLE_DURATION,
    DEAD_LETTER,
    END_TRANSACTION,
    GET_GROUP,
    RECALL_MESSAGE,
    SEND,
    Rpc,
)
from aerobee_wire.status import Code, MqError

Q = TypeVar("Q", bound=Proto)
R = TypeVar("R", bound=Proto)

TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 8.0  # beyond the 5 s in which a broker says that it cannot flush
# Below the 3 s that SDKs give a request, and counted from when the broker was first missed: what
# comes later is told at once, so that no line grows of requests that nobody waits for any more.
PATIENCE_S = 2.0
AGAIN_AFTER_S, AGAIN_AFTER_MOST_S = 0.1, 0.5
# After this long without a sign, a broker that was missed is tried again although others are there.
AVOID_S = 2.0
OVERHEAD_BYTES = 512  # of a message beside its body, roughly
LEASE_BYTES = 128
END_BYTES = 256

# What is told without the broker having said it.
UNHEARD = frozenset(
    {
        Code.BROKER_UNREACHABLE,
        Code.BROKER_NOT_EXIST,
        Code.REQUEST_TIMEOUT,
        Code.NAMESRV_UNREACHABLE,
    }
)
# Nothing of the batch was stored, and one message may be the reason.
REFUSALS = frozenset(
    {
        Code.MESSAGE_ILLEGAL,
        Code.INVALID_PARAMETER,
        Code.NO_PERMISSION,
        Code.TOPIC_NOT_EXIST,
        Code.FLOW_CONTROL,
    }
)


# What became of a message that was sent: its queue offset, and where there is more to tell, all.
Sent: TypeAlias = int | SendResult
# Why leases of a set were not settled, by their place in it.
Refusals: TypeAlias = Mapping[int, MqError]


class _Result(Protocol):
    """What a broker says of one entry."""

    code: int
    message: str


class Brokers:
    def __init__(self, transport: Transport, topology: Topology) -> None:
        self._transport = transport
        self._topology = topology
        self._sends: dict[str, Coalescer[Message, Sent]] = {}
        self._acks: dict[str, Coalescer[LeaseSet, Refusals]] = {}
        self._changes: dict[str, Coalescer[InvisibleChange, InvisibleChangeResult]] = {}
        self._ends: dict[str, Coalescer[TransactionEnd, EndTransactionResult]] = {}
        self._answered: set[str] = set()  # brokers that did so far; no name that was made up
        # In the loop's time, first and last, until they answer.
        self._missed: dict[str, tuple[float, float]] = {}
        self._waits: dict[str, asyncio.Task[None]] = {}  # for those that are missed

    async def ask(
        self, broker_name: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float = TIMEOUT_S
    ) -> R:
        """Raises MqError, BROKER_NOT_EXIST among others."""
        try:
            address = await self._topology.address_of(broker_name)
            answer = await self._transport.call(address, rpc, request, timeout_s=timeout_s)
        except MqError as error:
            if error.code is Code.BROKER_UNREACHABLE:
                self._topology.forget_address(broker_name)
            if self.is_away(broker_name, error):
                now = asyncio.get_running_loop().time()
                first, _ = self._missed.get(broker_name, (now, now))
                self._missed[broker_name] = (first, now)
            elif error.code not in UNHEARD:
                self._heard(broker_name)
            raise
        self._heard(broker_name)
        return answer

    def _heard(self, broker_name: str) -> None:
        self._answered.add(broker_name)
        self._missed.pop(broker_name, None)

    async def ask_until(
        self,
        broker_name: str,
        rpc: Rpc[Q, R],
        attempt: Callable[[float], tuple[Q, float]],
        *,
        ends: float,
    ) -> R:
        """`ask`, again and again while the broker is away, until the loop's time is `ends`.

        `attempt`: seconds left → request and timeout in seconds.
        """
        time, pause_s = asyncio.get_running_loop().time, AGAIN_AFTER_S
        while True:
            request, timeout_s = attempt(max(0.0, ends - time()))
            try:
                return await self.ask(broker_name, rpc, request, timeout_s=timeout_s)
            except MqError as error:
                if time() + pause_s >= ends or not self.is_away(broker_name, error):
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_AFTER_MOST_S)

    def is_away(self, broker_name: str, error: MqError) -> bool:
        """Whether that is why a question failed: no answer, or gone from the name servers'
        tables, of a broker that answered before."""
        return broker_name in self._answered and error.code in (
            Code.BROKER_UNREACHABLE,
            Code.BROKER_NOT_EXIST,
        )

    @property
    def any_missed(self) -> bool:
        """Whether `is_missed` needs to be asked at all."""
        return bool(self._missed)

    def is_missed(self, broker_name: str) -> bool:
        """Whether it was found away a moment ago, and not heard of since."""
        if broker_name not in self._missed:
            return False
        _, last = self._missed[broker_name]
        return asyncio.get_running_loop().time() - last < AVOID_S

    async def wait_for(self, broker_name: str) -> None:
        """Waits until a broker that is missed answers again, PATIENCE_S at most."""
        if not self.is_missed(broker_name):
            return
        wait = self._waits.get(broker_name)
        if wait is None:
            wait = self._waits[broker_name] = asyncio.create_task(self._look_for(broker_name))
            wait.add_done_callback(lambda _: self._waits.pop(broker_name))
        await asyncio.wait([wait], timeout=PATIENCE_S)

    async def _look_for(self, broker_name: str) -> None:
        """Any answer will do: none knows the group that is asked about."""
        ends = asyncio.get_running_loop().time() + PATIENCE_S
        try:
            await self.ask_until(
                broker_name, GET_GROUP, lambda left_s: (GetGroupRequest(), left_s + 1), ends=ends
            )
        except MqError as error:
            if self.is_away(broker_name, error):
                structlog.get_logger().warning(
                    "broker is away", broker=broker_name, reason=error.message
                )

    async def _ask_patiently(
        self, broker_name: str, rpc: Rpc[Q, R], request: Q, *, timeout_s: float = TIMEOUT_S
    ) -> R:
        now = asyncio.get_running_loop().time()
        first, _ = self._missed.get(broker_name, (now, now))
        ends = first + PATIENCE_S
        return await self.ask_until(broker_name, rpc, lambda _: (request, timeout_s), ends=ends)

    def place(self, broker_name: str, message: Message) -> asyncio.Future[Sent]:
        """Puts a message in line; the future has what became of it, or raises MqError."""
        sends = self._sends.get(broker_name)
        if sends is None:
            sends = self._sends[broker_name] = Coalescer(
                lambda messages: self._send(broker_name, messages)
            )
        return sends.place(message, len(message.body) + OVERHEAD_BYTES)

    async def ack(
        self, broker_name: str, lease_sets: Sequence[LeaseSet]
    ) -> Sequence[Refusals | Exception]:
        """Settles messages. Of each set those that are not settled, INVALID_RECEIPT_HANDLE when the
        lease is over. Raises MqError when nothing is known of any."""
        acks = self._acks.get(broker_name)
        if acks is None:
            await self._topology.address_of(broker_name)  # no line for a name that was made up
            acks = self._acks.setdefault(
                broker_name, Coalescer(lambda waiting: self._ack(broker_name, waiting))
            )
        leases = sum(len(one.queue_offsets) for one in lease_sets)
        return await acks.put_all(lease_sets, leases * LEASE_BYTES)

    async def change(self, broker_name: str, change: InvisibleChange) -> InvisibleChangeResult:
        """Sets anew how long a message stays invisible. Raises MqError like `ack`."""
        changes = self._changes.get(broker_name)
        if changes is None:
            await self._topology.address_of(broker_name)
            changes = self._changes.setdefault(
                broker_name, Coalescer(lambda entries: self._change(broker_name, entries))
            )
        return await changes.put(change, LEASE_BYTES)

    async def dead_letter(self, broker_name: str, entry: DeadLetterEntry) -> None:
        """Moves a message to the dead letters of its group. Raises MqError like `ack`."""
        request = DeadLetterRequest(entries=[entry])
        answer = await self._ask_patiently(broker_name, DEAD_LETTER, request)
        failure = _failure(answer.results[0])
        if failure is not None:
            raise failure

    async def end(self, broker_name: str, end: TransactionEnd) -> None:
        """Ends a transaction. Raises MqError, INVALID_TRANSACTION_ID when it is not open."""
        ends = self._ends.get(broker_name)
        if ends is None:
            await self._topology.address_of(broker_name)
            ends = self._ends.setdefault(
                broker_name, Coalescer(lambda entries: self._end(broker_name, entries))
            )
        await ends.put(end, END_BYTES)

    async def recall(self, broker_name: str, topic: str, recall_handle: str) -> str:
        """Takes back a message that waits; returns its id. Raises MqError, ILLEGAL_OPERATION when
        it does not wait any more."""
        request = RecallMessageRequest(topic=topic, recall_handle=recall_handle)
        answer = await self.ask(broker_name, RECALL_MESSAGE, request, timeout_s=SEND_TIMEOUT_S)
        return answer.unique_message_id

    async def close(self) -> None:
        await asyncio.gather(
            *(line.close() for line in self._sends.values()),
            *(line.close() for line in self._acks.values()),
            *(line.close() for line in self._changes.values()),
            *(line.close() for line in self._ends.values()),
        )
        for wait in list(self._waits.values()):
            wait.cancel()

    async def _ack(self, broker_name: str, lease_sets: Sequence[LeaseSet]) -> Sequence[Refusals]:
        answer = await self._ask_patiently(broker_name, ACK, AckRequest(lease_sets=lease_sets))
        if answer.lease_sets != len(lease_sets):  # its answer is empty, as if all were settled
            raise MqError(
                Code.VERSION_NOT_SUPPORTED,
                f"broker {broker_name} settles no sets of leases: it is older than this proxy, so "
                "bring it to the same version",
            )
        refusals: list[dict[int, MqError]] = [{} for _ in lease_sets]
        for one in answer.failures:
            failure = _failure(one.result)
            if failure is not None:
                refusals[one.lease_set][one.place] = failure
        return refusals

    async def _change(
        self, broker_name: str, changes: Sequence[InvisibleChange]
    ) -> Sequence[InvisibleChangeResult | Exception]:
        request = ChangeInvisibleDurationRequest(changes=changes)
        answer = await self._ask_patiently(broker_name, CHANGE_INVISIBLE_DURATION, request)
        return [_failure(result) or result for result in answer.results]

    async def _end(
        self, broker_name: str, ends: Sequence[TransactionEnd]
    ) -> Sequence[EndTransactionResult | Exception]:
        request = EndTransactionRequest(ends=ends)
        answer = await self._ask_patiently(
            broker_name, END_TRANSACTION, request, timeout_s=SEND_TIMEOUT_S
        )
        return [_failure(result) or result for result in answer.results]

    async def _send(
        self, broker_name: str, messages: Sequence[Message]
    ) -> Sequence[Sent | Exception]:
        try:
            return await self._send_together(broker_name, messages)
        except MqError as error:
            if len(messages) == 1 or error.code not in REFUSALS:
                raise
        return [await self._send_alone(broker_name, message) for message in messages]

    async def _send_alone(self, broker_name: str, message: Message) -> Sent | Exception:
        try:
            return (await self._send_together(broker_name, [message]))[0]
        except MqError as error:
            return error

    async def _send_together(self, broker_name: str, messages: Sequence[Message]) -> Sequence[Sent]:
        request = SendRequest(messages=messages, brief=True)
        answer = await self.ask(broker_name, SEND, request, timeout_s=SEND_TIMEOUT_S)
        return answer.queue_offsets or answer.results


def _failure(result: _Result) -> MqError | None:
    if result.code == Code.SUCCESS:
        return None
    try:
        code = Code(result.code)
    except ValueError:  # of a newer broker
        code = Code.SYSTEM_ERROR
    return MqError(code, result.message)
