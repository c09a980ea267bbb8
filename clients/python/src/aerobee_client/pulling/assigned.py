"""Read message queues that the caller chose, without regard to other readers.

The consumer is not a member of a group, and there is no rebalance. This module keeps the chosen
queues owned and commits offsets periodically.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import AsyncExitStack, suppress

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consuming.pulled_queues import PulledQueues
from aerobee_client.consuming.puller import TopicSubscription
from aerobee_client.message_queue import MessageQueue
from aerobee_client.options.consumer import PullConsumerOptions
from aerobee_client.pulling.offsets import PullOffsets
from aerobee_client.pulling.unread import UnreadMessages
from aerobee_wire.status import MqError

log = logging.getLogger(__name__)

RETRY_S = 1.0  # after a failure to fetch a route or an offset


class Assigned:
    """Pulls the chosen queues.

    `subscriptions` is by topic. After the caller has changed `chosen` or `subscriptions`, it calls
    `changed`.
    """

    def __init__(
        self,
        consumer_group: str,
        instance: ClientInstance,
        chosen: Collection[MessageQueue],
        subscriptions: Mapping[str, TopicSubscription],
        options: PullConsumerOptions,
        *,
        offsets: PullOffsets,
        consumption: UnreadMessages,
    ) -> None:
        self._instance = instance
        self._chosen = chosen
        self._options = options
        self._offsets = offsets
        self._now = asyncio.Event()
        self._acquiring = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self.consumption = consumption
        self.pulled = PulledQueues(
            consumer_group,
            instance,
            subscriptions,
            options,
            offsets=offsets,
            consumption=consumption,
            request_rebalance=self._now.set,
            on_failure=consumption.failed,
        )
        self.assignment = self.pulled.assignment

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._acquire_forever(), name="assigned queues"),
            asyncio.create_task(self._commit_forever(), name="commit offsets"),
        ]

    def changed(self) -> None:
        self._now.set()

    def wants(self, queue: MessageQueue) -> bool:
        return queue in self._chosen

    async def acquire(self) -> None:
        """Acquire the chosen queues and release all other queues.

        Raises MqError if a chosen queue cannot be acquired. All others are acquired first, and the
        failed queue is retried later.
        """
        async with self._acquiring:
            failure: MqError | None = None
            found: set[str] = set()
            for topic in sorted({queue.topic for queue in self._chosen}):
                try:
                    await self._instance.routes.route(topic)
                    found.add(topic)
                except MqError as error:
                    failure = error
            await self.assignment.own([queue for queue in self._chosen if queue.topic in found])
        if failure is not None:
            raise failure

    async def close(self, timeout_s: float) -> None:
        async with AsyncExitStack() as steps:  # they run in reverse order
            steps.push_async_callback(self._instance.close)
            steps.push_async_callback(self.assignment.release_all)
            steps.push_async_callback(self.consumption.close, timeout_s)
            steps.push_async_callback(self.assignment.stop_pulling)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _acquire_forever(self) -> None:
        logged = ""
        while True:
            self._now.clear()
            wait_s: float | None = None
            try:
                await self.acquire()
                logged = ""
            except MqError as error:
                wait_s = RETRY_S
                if error.message != logged:
                    log.warning("not all assigned queues can be read: %s", error)
                    logged = error.message
                for queue in set(self._chosen) - self.assignment.queues():
                    self.consumption.failed(queue, error)
                    await self._instance.routes.refresh_soon(queue.topic)
            except Exception:
                wait_s = RETRY_S
                log.exception("assigned queues not acquired")
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._now.wait()

    async def _commit_forever(self) -> None:
        while True:
            await asyncio.sleep(self._options.auto_commit_interval.total_seconds())
            try:
                await self._offsets.commit(on_topic_deleted=self.assignment.on_topic_deleted)
            except Exception:
                log.exception("offsets not committed")
