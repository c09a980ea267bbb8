"""One simple consumer in its group, from start to close: its registration with brokers, and what
receives, settles and renews. The inside of `simple_consumer.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial

from aerobee.broker.v1 import client_pb2, message_pb2, pop_pb2

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.expression_check import check_expression
from aerobee_client.leasing.lease_calls import Change, Changed, DeadLetterEntry, LeaseCalls, Outcome
from aerobee_client.leasing.leased_message import LeasedMessage
from aerobee_client.leasing.on_lease import OnLease
from aerobee_client.leasing.order_check import warn_without_order
from aerobee_client.leasing.receiving import Receive, Receiver
from aerobee_client.leasing.renewal import LeaseRenewal, Renewal
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.reading import ConsumeFromWhere
from aerobee_client.options.simple_consumer import SimpleConsumerOptions
from aerobee_wire.handles.leases import key_of
from aerobee_wire.handles.receipt_handle import ReceiptHandle
from aerobee_wire.status import Code, MqError

log = logging.getLogger(__name__)

# A message that was received, or its receipt handle: of another process perhaps.
Leased = LeasedMessage | ReceiptHandle

_STARTS = {
    ConsumeFromWhere.LAST_OFFSET: pop_pb2.POP_START_AUTOMATIC,
    ConsumeFromWhere.FIRST_OFFSET: pop_pb2.POP_START_EARLIEST,
}


class LeasingMember:
    """`subscriptions`: by topic; the caller may change them meanwhile, and says so."""

    def __init__(
        self,
        consumer_group: str,
        instance: ClientInstance,
        subscriptions: Mapping[str, message_pb2.Subscription],
        options: SimpleConsumerOptions,
    ) -> None:
        self._consumer_group = consumer_group
        self._instance = instance
        self._subscriptions = subscriptions
        self._options = options
        self._calls = LeaseCalls(instance, options.request_timeout.total_seconds())
        self._receiver = Receiver(
            instance,
            consumer_group,
            self._calls,
            fifo=options.fifo,
            start=_STARTS[options.consume_from_where],
            machine_room=options.machine_room,
        )
        self._on_lease = OnLease(instance.clock)
        self._renewal = LeaseRenewal(self._calls, instance.clock, self._on_lease.extended)

    async def start(self) -> None:
        """Registers the member. Raises MqError; `close` is still to be called."""
        # The stream of notices tells brokers at once when this client is gone.
        self._instance.start(self._heartbeat, self._receiver.sources.on_notice)
        await self._announce()
        await self._receiver.sources.start()
        if self._options.fifo:
            await warn_without_order(self._instance, self._consumer_group, self._subscriptions)

    async def check(self, subscription: message_pb2.Subscription) -> None:
        """Raises SUBSCRIPTION_PARSE_FAILED for SQL92 that brokers do not understand."""
        if subscription.expression_type == message_pb2.Subscription.SQL92:
            await check_expression(self._instance, subscription)

    def subscriptions_changed(self) -> None:
        """Brokers are told before the next receive."""
        self._receiver.sources.announce_again()

    async def _announce(self) -> None:
        """Tells every broker what the group subscribes to. Raises a refusal that all give."""
        for topic, subscription in list(self._subscriptions.items()):
            await self.check(subscription)
            try:
                await self._instance.routes.route(topic)
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
                log.warning("%s waits for topic %s: %s", self._consumer_group, topic, error)
        await self._instance.announce()

    async def close(self) -> None:
        """Waits for receives and settlements that are under way, then unregisters, also when it is
        cancelled."""
        async with AsyncExitStack() as steps:  # run in reverse order
            steps.push_async_callback(self._instance.close)
            steps.push_async_callback(self._calls.drain)
            steps.push_async_callback(self._renewal.close)
            steps.push_async_callback(self._receiver.close)

    async def receive(self, asked: Receive) -> list[LeasedMessage]:
        messages = await self._receiver.receive(asked)
        if messages:
            self._on_lease.received(messages)
        return messages

    def statistics(self) -> ConsumerStatistics:
        return self._on_lease.statistics(self._receiver.failures)

    async def acknowledge(self, leased: Sequence[Leased]) -> list[Outcome]:
        """An outcome of each. A message that this client has settled before is a success."""
        return await self._settle(leased, self._calls.acknowledge, self._on_lease.consumed)

    async def dead_letter(
        self, leased: Sequence[Leased], failure: message_pb2.Failure
    ) -> list[Outcome]:
        """As `acknowledge`, after a copy to the dead-letter topic with this failure."""

        async def dead_letter(handles: Sequence[ReceiptHandle]) -> Sequence[Outcome]:
            return await self._calls.dead_letter([DeadLetterEntry(one, failure) for one in handles])

        return await self._settle(
            leased, dead_letter, partial(self._on_lease.failed, sent_back=True)
        )

    async def _settle(
        self,
        leased: Sequence[Leased],
        settle: Callable[[Sequence[ReceiptHandle]], Awaitable[Sequence[Outcome]]],
        count: Callable[[Sequence[ReceiptHandle]], None],
    ) -> list[Outcome]:
        outcomes: list[Outcome] = [None] * len(leased)
        places = [place for place, one in enumerate(leased) if not _is_settled(one)]
        with self._renewal.suspended(_messages(leased)) as ended:
            handles = [_handle(leased[place]) for place in places]
            answers = await settle(handles)
            self._count(handles, answers, count)
            for place, outcome in zip(places, answers, strict=True):
                one, outcomes[place] = leased[place], outcome
                if isinstance(one, LeasedMessage) and _has_ended(outcome):
                    ended.add(key_of(one.handle))
                    if outcome is None:
                        one.settle()
        return outcomes

    def _count(
        self,
        handles: Sequence[ReceiptHandle],
        outcomes: Sequence[object],
        count: Callable[[Sequence[ReceiptHandle]], None],
    ) -> None:
        """Of what was done to leases, by `count`, and of those that were over."""
        if not any(isinstance(outcome, MqError) for outcome in outcomes):
            count(handles)
            return
        asked = list(zip(handles, outcomes, strict=True))
        count([handle for handle, outcome in asked if not isinstance(outcome, MqError)])
        over = [
            handle
            for handle, outcome in asked
            if isinstance(outcome, MqError) and outcome.code is Code.INVALID_RECEIPT_HANDLE
        ]
        self._on_lease.failed(over, sent_back=False)

    async def change(
        self, leased: Sequence[Leased], duration_ms: int | None, *, counted: bool
    ) -> list[Outcome]:
        """Sets anew how long messages stay invisible, and ends their renewal. None: the retry delay
        of the group."""
        outcomes: list[Outcome] = []
        asked_ms = self._instance.clock.monotonic_ms()
        changes = [Change(_handle(one), duration_ms, counted) for one in leased]
        with self._renewal.suspended(_messages(leased)) as ended:
            answers = await self._calls.change(changes)
            self._count(
                [change.handle for change in changes],
                answers,
                partial(self._on_lease.changed, duration_ms=duration_ms, counted=counted),
            )
            for one, answer in zip(leased, answers, strict=True):
                outcomes.append(outcome := answer if isinstance(answer, MqError) else None)
                if isinstance(one, LeasedMessage) and _has_ended(outcome):
                    ended.add(key_of(one.handle))
                if isinstance(one, LeasedMessage) and isinstance(answer, Changed):
                    one.extend(*answer, asked_ms + answer.invisible_duration_ms)
                    self._on_lease.extended(one.handle, one.until_ms)
        return outcomes

    def renew(self, renewal: Renewal) -> None:
        self._renewal.track(renewal)

    def stop_renewal(self, renewal: Renewal) -> None:
        self._renewal.stop(renewal)

    def _heartbeat(self) -> client_pb2.HeartbeatRequest:
        request = self._instance.new_heartbeat()
        request.consumers.add(
            consumer_group=self._consumer_group,
            consume_type=client_pb2.POP,
            message_model=client_pb2.CLUSTERING,
            consume_from_where=self._options.consume_from_where.value,
            subscriptions=self._subscriptions.values(),
            statistics=self.statistics().to_proto(),
        )
        return request


def _is_settled(leased: Leased) -> bool:
    return isinstance(leased, LeasedMessage) and leased.is_settled


def _has_ended(outcome: Outcome) -> bool:
    """Whether there is nothing left to renew after a call."""
    return outcome is None or outcome.code is Code.INVALID_RECEIPT_HANDLE


def _handle(leased: Leased) -> ReceiptHandle:
    return leased.handle if isinstance(leased, LeasedMessage) else leased


def _messages(leased: Sequence[Leased]) -> list[LeasedMessage]:
    return [one for one in leased if isinstance(one, LeasedMessage)]
