"""Provide the methods that all consumers on lease share: close, receive, settle and renew."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar

from aerobee.broker.v1 import message_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.errors import ClientClosed, LeaseFailures
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.receiving.pops import Receive
from aerobee_client.leasing.renewal import Renewal
from aerobee_client.leasing.settlements import Leased, Settlements
from aerobee_client.observing.hooks import notify
from aerobee_client.observing.interceptors import Interceptor
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.bounds import check_duration
from aerobee_client.options.lease_consumer import MAX_INVISIBLE_S
from aerobee_client.requesting import Replier
from aerobee_client.runtime.facade import StartedFacade, blocking, on_loop
from aerobee_client.runtime.fork import PROCESS
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import properties as names
from aerobee_wire.handles import receipt_handle
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_group

# Limits of the broker for the description of a failure (see Failure in the .proto files).
REASON_BYTES = 256
DESCRIPTION_BYTES = 1_024

# A message, or the receipt handle of a message that another process received.
MessageOrHandle = LeasedMessage | str

POLL = timedelta(seconds=20)
INVISIBLE_DURATION = timedelta(seconds=60)


class Member(Protocol):
    """The part of a consumer that exists from its start to its close, as a member of its group."""

    @property
    def settlements(self) -> Settlements: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def receive(self, asked: Receive) -> list[LeasedMessage]: ...

    def take_back(self, messages: Sequence[LeasedMessage]) -> None: ...

    def statistics(self) -> ConsumerStatistics: ...


M = TypeVar("M", bound=Member)
C = TypeVar("C", bound="LeaseConsumer[Any]")


@checked_class
class LeaseConsumer(Replier, Generic[M]):
    def __init__(self, consumer_group: str, interceptors: Sequence[Interceptor]) -> None:
        super().__init__()
        check_group(consumer_group)
        self.consumer_group = consumer_group
        self._interceptors = tuple(interceptors)
        self._member: M | None = None
        self._last = ConsumerStatistics()  # of the member that was closed

    def _new_member(self) -> tuple[ClientInstance, M]:
        raise NotImplementedError

    async def _start(self) -> None:
        PROCESS.check()
        if self._member is not None:
            return
        instance, member = self._new_member()
        self._instance, self._member = instance, member
        try:
            await member.start()
        except BaseException:
            self._member = None
            await member.close()
            raise
        if self._member is not member:  # the consumer was closed during the start
            await member.close()
            raise ClientClosed("consumer")

    async def close(self) -> None:
        """End waiting receives, wait for settlements in flight, and unregister.

        May be called more than once. Waiting receives raise ClientClosed. Leases stay valid until
        they end.
        """
        if PROCESS.is_child:
            return  # the registration belongs to the parent process
        member, self._member, self._instance = self._member, None, None
        if member is not None:
            self._last = member.statistics()
            try:
                await member.close()
            finally:
                self._last = member.statistics()

    def _running(self) -> M:
        PROCESS.check()
        if self._member is None:
            raise ClientClosed("consumer")
        return self._member

    def statistics(self) -> ConsumerStatistics:
        """Return the statistics of this consumer since its last start; zeros before it.

        After `close` they include the settlements for which it has waited. `consumed` counts
        acknowledged messages, and `waiting` counts messages on lease. Each heartbeat reports the
        statistics to the brokers, and `aerobee group members` shows them.
        """
        return self._last if self._member is None else self._member.statistics()

    async def _receive(self, asked: Receive, *, renew: bool) -> list[LeasedMessage]:
        member, began_s = self._running(), now_s()
        messages = await member.receive(asked)
        if renew and messages:
            member.settlements.renew(Renewal(messages))
        if messages:
            event = (self.consumer_group, messages, now_s() - began_s)
            notify(self._interceptors, "after_receive", *event)
        return messages

    def _take_back(self, messages: Sequence[LeasedMessage]) -> None:
        """Return messages that did not reach the caller of a receive to the group.

        The messages are visible to the group at once. Their delivery does not count as an attempt.
        """
        if messages and self._member is not None:
            self._member.take_back(messages)

    def add_interceptor(self, interceptor: Interceptor) -> None:
        """Add an interceptor after the existing ones. It is notified of events from now on."""
        self._interceptors = (*self._interceptors, interceptor)

    async def ack(self, messages: MessageOrHandle | Sequence[MessageOrHandle]) -> None:
        """Acknowledge messages as consumed. The acknowledgement is durable when the call returns.

        A repeated acknowledgement succeeds. Acknowledgements in the same iteration of the event
        loop share a request.

        Args:
            messages: One message or receipt handle, or a sequence of them.

        Raises:
            MqError: With the code INVALID_RECEIPT_HANDLE if the lease has ended. The message is
                then redelivered.
            LeaseFailures: If `messages` is a sequence, with the failure of each message.
        """
        settlements, leased = self._leased(messages)
        began_s = now_s()
        self._settled("ack", messages, await settlements.acknowledge(leased), began_s)

    async def change_invisible_duration(
        self,
        messages: MessageOrHandle | Sequence[MessageOrHandle],
        invisible_duration: timedelta | None,
        *,
        counted: bool = True,
    ) -> None:
        """Make messages visible to the group after a time, and end their renewal.

        Args:
            messages: One message or receipt handle, or a sequence of them.
            invisible_duration: The time from now, 0 s to 12 h. 0 s returns the messages at once.
                None means the retry delay of the group.
            counted: False if this delivery does not count as an attempt.

        Raises:
            MqError: See `ack`.
            LeaseFailures: See `ack`.
        """
        duration_ms = None
        if invisible_duration is not None:
            longest_s = MAX_INVISIBLE_S
            seconds = check_duration("invisible_duration", invisible_duration, 0, longest_s)
            duration_ms = round(seconds * 1_000)
        settlements, leased = self._leased(messages)
        began_s = now_s()
        outcomes = await settlements.change(leased, duration_ms, counted=counted)
        self._settled("change_invisible_duration", messages, outcomes, began_s)

    async def dead_letter(
        self,
        messages: MessageOrHandle | Sequence[MessageOrHandle],
        reason: str | BaseException,
        description: str = "",
    ) -> None:
        """Move messages to the dead-letter topic of the group.

        The dead letters are durable when the call returns.

        Args:
            messages: One message or receipt handle, or a sequence of them.
            reason: The failure reason, or an exception whose class and text are stored.
            description: A description of the failure.

        Raises:
            MqError: See `ack`.
            LeaseFailures: See `ack`.
        """
        if isinstance(reason, BaseException):
            reason, description = type(reason).__name__, description or str(reason)
        failure = message_pb2.Failure(
            reason=names.cut(reason, REASON_BYTES),
            description=names.cut(description, DESCRIPTION_BYTES),
        )
        settlements, leased = self._leased(messages)
        began_s = now_s()
        outcomes = await settlements.dead_letter(leased, failure)
        self._settled("dead_letter", messages, outcomes, began_s)

    def _settled(
        self,
        operation: str,
        messages: MessageOrHandle | Sequence[MessageOrHandle],
        outcomes: Sequence[MqError | None],
        began_s: float,
    ) -> None:
        """Notify interceptors of the settled messages, but not of receipt handles.

        Raises MqError like `ack`.
        """
        error: MqError | None = None
        try:
            _raise_failures(messages, outcomes)
        except MqError as failure:
            error = failure
            raise
        finally:
            given = [messages] if isinstance(messages, str | LeasedMessage) else messages
            if leased := [message for message in given if isinstance(message, LeasedMessage)]:
                details = (self.consumer_group, operation, leased, now_s() - began_s, error)
                notify(self._interceptors, "after_settle", *details)

    @contextmanager
    def renewing(self, messages: LeasedMessage | Sequence[LeasedMessage]) -> Iterator[Renewal]:
        """Renew leases while the block runs, for at most three hours.

        Settling a message ends its renewal.

        Args:
            messages: One message or a sequence of messages.

        Yields:
            A Renewal. Its `lost` lists the messages whose lease has ended in spite of the renewal.

        Example:
            with consumer.renewing(message) as renewal:
                await work(message)
            if not renewal.lost:
                await consumer.ack(message)
        """
        renewal = self._renew(messages)
        try:
            yield renewal
        finally:
            self._stop_renewal(renewal)

    def _renew(self, messages: LeasedMessage | Sequence[LeasedMessage]) -> Renewal:
        renewal = Renewal([messages] if isinstance(messages, LeasedMessage) else messages)
        self._running().settlements.renew(renewal)
        return renewal

    def _stop_renewal(self, renewal: Renewal) -> None:
        if self._member is not None:
            self._member.settlements.stop_renewal(renewal)

    def _leased(
        self, messages: MessageOrHandle | Sequence[MessageOrHandle]
    ) -> tuple[Settlements, list[Leased]]:
        """Decode receipt handles.

        Raises MqError with the code INVALID_RECEIPT_HANDLE if a handle is invalid or of another
        group.
        """
        settlements = self._running().settlements
        found: list[Leased] = []
        for one in [messages] if isinstance(messages, LeasedMessage | str) else messages:
            leased = receipt_handle.decode(one) if isinstance(one, str) else one
            handle = leased.handle if isinstance(leased, LeasedMessage) else leased
            if handle.consumer_group != self.consumer_group:
                raise MqError(
                    Code.INVALID_RECEIPT_HANDLE,
                    f"the receipt handle is of group {handle.consumer_group}, not of "
                    f"{self.consumer_group}",
                )
            found.append(leased)
        return settlements, found


def now_s() -> float:
    """Return the time of the event loop in seconds."""
    return asyncio.get_running_loop().time()


def _raise_failures(
    messages: MessageOrHandle | Sequence[MessageOrHandle], outcomes: Sequence[MqError | None]
) -> None:
    failures = [outcome for outcome in outcomes if outcome is not None]
    if not failures:
        return
    raise failures[0] if isinstance(messages, LeasedMessage | str) else LeaseFailures(outcomes)


@checked_class
class LeaseFacade(StartedFacade[C]):
    """Base class of the plain classes of consumers on lease."""

    @property
    def consumer_group(self) -> str:
        return self._client.consumer_group

    statistics = on_loop(LeaseConsumer.statistics)
    add_interceptor = on_loop(LeaseConsumer.add_interceptor)
    ack = blocking(LeaseConsumer.ack)
    change_invisible_duration = blocking(LeaseConsumer.change_invisible_duration)
    dead_letter = blocking(LeaseConsumer.dead_letter)
    reply = blocking(LeaseConsumer.reply)
    _renew = on_loop(LeaseConsumer._renew)
    _stop_renewal = on_loop(LeaseConsumer._stop_renewal)

    @contextmanager
    def renewing(self, messages: LeasedMessage | Sequence[LeasedMessage]) -> Iterator[Renewal]:
        """Renew leases in the client's thread while the block runs, for at most three hours.

        Args:
            messages: One message or a sequence of messages.

        Yields:
            A Renewal. Its `lost` lists the messages whose lease has ended in spite of the renewal.
        """
        renewal = self._renew(messages)
        try:
            yield renewal
        finally:
            self._stop_renewal(renewal)
