"""Keep the membership of one client in a consumer group, from start to close.

The member registers, rebalances, pulls and commits periodically. Its consumption processes the
messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Generic, TypeVar

from aerobee.broker.v1 import client_pb2

from aerobee_client import rebalance
from aerobee_client.cluster.broker_link import ignore_link
from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.cluster.expression_check import check_expression
from aerobee_client.consuming.offsets import OffsetTable
from aerobee_client.consuming.order.locked_queues import LockedQueues
from aerobee_client.consuming.pulled_queues import Consumption, PulledQueues
from aerobee_client.consuming.puller import OnFailure, TopicSubscription, ignore_failure
from aerobee_client.observing.assignment_callbacks import AssignmentCallbacks
from aerobee_client.observing.hooks import rebalance_listener
from aerobee_client.observing.statistics import ConsumerStatistics
from aerobee_client.options.consumer import ReadingOptions
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import retry_topic

log = logging.getLogger(__name__)

REBALANCE_INTERVAL_S = 20.0
REBALANCE_RETRY_S = 1.0  # after a failure to fetch a route or the list of members
REBALANCE_PAUSE_S = 0.1  # notices within this time cause one rebalance
COMMIT_INTERVAL_S = 5.0


C = TypeVar("C", bound=Consumption)


class Membership(Generic[C]):
    """A membership in a consumer group.

    `subscriptions` maps topics to subscriptions; the caller may change it while the membership
    lasts. `offsets` holds the offsets of messages that `consumption` has processed. `on_failure` is
    called with each pull that fails. `statistics` returns the statistics that a heartbeat reports.
    Assignment explains `locked_queues` and `callbacks`.
    """

    def __init__(
        self,
        consumer_group: str,
        instance: ClientInstance,
        subscriptions: Mapping[str, TopicSubscription],
        options: ReadingOptions,
        *,
        offsets: OffsetTable,
        consumption: C,
        consume_type: client_pb2.ConsumeType = client_pb2.PUSH,
        on_failure: OnFailure = ignore_failure,
        statistics: Callable[[], ConsumerStatistics],
        locked_queues: LockedQueues | None = None,
        callbacks: AssignmentCallbacks | None = None,
    ) -> None:
        self._consumer_group = consumer_group
        self._instance = instance
        self._subscriptions = subscriptions
        self._options = options
        self._offsets = offsets
        self.consumption = consumption
        self._consume_type = consume_type
        self._rebalance_now = asyncio.Event()
        self.pulled = PulledQueues(
            consumer_group,
            instance,
            subscriptions,
            options,
            offsets=offsets,
            consumption=consumption,
            request_rebalance=self.request_rebalance,
            on_failure=on_failure,
            locked_queues=locked_queues,
            callbacks=callbacks,
        )
        self.assignment = self.pulled.assignment
        self._on_rebalance = rebalance_listener(options.interceptors, consumer_group)
        self._locked_queues = locked_queues
        self._statistics = statistics
        self._announce = False
        self._tasks: list[asyncio.Task[None]] = []

    def request_rebalance(self) -> None:
        """Rebalance soon."""
        self._rebalance_now.set()

    async def start(self, commit_interval_s: float | None = None) -> None:
        """Join the group and acquire this member's share of the queues.

        `commit_interval_s` is the time between two commits; None means COMMIT_INTERVAL_S. If this
        method raises MqError, the caller must still call `close`.
        """
        await self._offsets.open()
        self._instance.start(
            self._heartbeat,
            self._on_notice,
            on_link=ignore_link if self._locked_queues is None else self._locked_queues.on_link,
            on_routes=self.request_rebalance,
        )
        await self._find_routes()
        for subscription in list(self._subscriptions.values()):
            await self.check(subscription)
        await self._instance.announce()
        if self._locked_queues is not None:
            await self._locked_queues.start()
        self.consumption.start()
        await self._divide()
        self._tasks = [
            asyncio.create_task(self._rebalance_forever(), name="rebalance"),
            asyncio.create_task(self._commit_forever(commit_interval_s), name="commit offsets"),
        ]
        self._rebalance_now.set()

    async def close(self, timeout_s: float) -> None:
        """Wait for running listeners, commit the offsets, and unregister.

        The last two steps also run if this call is cancelled. Heartbeats continue until the offsets
        are committed, so that no other member gets the queues earlier.
        """
        async with AsyncExitStack() as steps:  # they run in reverse order
            steps.push_async_callback(self._offsets.close)
            steps.push_async_callback(self._instance.close)
            if self._locked_queues is not None:
                steps.push_async_callback(self._locked_queues.close)
            steps.push_async_callback(self.assignment.release_all)
            steps.push_async_callback(self.consumption.close, timeout_s)
            steps.push_async_callback(self.assignment.stop_pulling)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def check(self, subscription: TopicSubscription) -> None:
        """Check that brokers can parse a subscription if it is in SQL92.

        Raises MqError with the code SUBSCRIPTION_PARSE_FAILED if they cannot.
        """
        if subscription.is_sql:
            await check_expression(self._instance, subscription.to_proto())

    def subscriptions_changed(self, topic: str) -> None:
        """Stop pulling `topic`, announce the subscriptions to the brokers, and rebalance soon.

        The old subscription may filter out messages that the new one selects.
        """
        self.assignment.on_subscription_changed(topic)
        self._announce = True
        self._rebalance_now.set()

    async def _find_routes(self) -> None:
        """Fetch the routes of the subscribed topics.

        A topic that does not exist yet is looked up again at every rebalance.
        """
        for topic in list(self._subscriptions):
            try:
                await self._instance.routes.route(topic)
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
                if topic != retry_topic(self._consumer_group):  # the first heartbeat creates it
                    log.warning("%s waits for topic %s: %s", self._consumer_group, topic, error)

    def _heartbeat(self) -> client_pb2.HeartbeatRequest:
        request = self._instance.new_heartbeat()
        request.consumers.add(
            consumer_group=self._consumer_group,
            consume_type=self._consume_type,
            message_model=self._offsets.message_model.value,
            consume_from_where=self._options.consume_from_where.value,
            subscriptions=[topic.to_proto() for topic in self._subscriptions.values()],
            strategy=rebalance.name_of(self._options.allocation()),
            statistics=self._statistics().to_proto(),
        )
        return request

    def _on_notice(self, address: str, notice: client_pb2.ClientNotice) -> None:
        """Rebalance if members changed, or if a stream to a broker was opened again.

        The notice of a reopened stream does not name a group.
        """
        changed = notice.HasField("group_members_changed")
        if not changed or notice.group_members_changed.consumer_group == self._consumer_group:
            self._rebalance_now.set()

    async def _rebalance_forever(self) -> None:
        while True:
            await asyncio.sleep(REBALANCE_PAUSE_S)
            self._rebalance_now.clear()
            complete = False
            try:
                complete = await self._rebalance()
            except Exception:
                log.exception("rebalance of %s failed", self._consumer_group)
            wait_s = REBALANCE_INTERVAL_S if complete else REBALANCE_RETRY_S
            # Not wait_for: in Python 3.11 it may swallow a cancellation.
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._rebalance_now.wait()

    async def _rebalance(self) -> bool:
        if self._announce:
            self._announce = False
            try:
                await self._find_routes()
                await self._instance.announce()
            except MqError as error:
                log.warning("subscriptions of %s not announced: %s", self._consumer_group, error)
                self._announce = True
                return False
        complete = await self._divide()
        if self.assignment.unregistered:  # a subscription may also set `_announce` in the meantime
            self._announce = True
        return complete

    async def _divide(self) -> bool:
        """Acquire this member's share of the queues. Return False if the caller must retry soon."""
        before = self.assignment.queues()
        complete = await self.assignment.rebalance(list(self._subscriptions))
        after = self.assignment.queues()
        if self._on_rebalance is not None and after != before:
            self._on_rebalance(after - before, before - after)
        return complete

    async def _commit_forever(self, interval_s: float | None) -> None:
        while True:
            await asyncio.sleep(interval_s or COMMIT_INTERVAL_S)
            try:
                await self._offsets.commit(on_topic_deleted=self.assignment.on_topic_deleted)
            except Exception:
                log.exception("offsets of %s not committed", self._consumer_group)
