"""Combine an assignment of message queues with the puller that fills their process queues.

A rebalance or the caller determines which queues are assigned.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Protocol

from aerobee_client.cluster.client_instance import ClientInstance
from aerobee_client.consuming.assignment import Assignment
from aerobee_client.consuming.offsets import OffsetTable
from aerobee_client.consuming.order.locked_queues import LockedQueues
from aerobee_client.consuming.process_queue import ProcessQueue
from aerobee_client.consuming.puller import OnFailure, Puller, TopicSubscription, ignore_failure
from aerobee_client.message import ReceivedMessage
from aerobee_client.message_queue import MessageQueue
from aerobee_client.observing.assignment_callbacks import AssignmentCallbacks
from aerobee_client.observing.statistics import ConsumerStatistics, Tally
from aerobee_client.options.consumer import ReadingOptions
from aerobee_wire.status import MqError


class Consumption(Protocol):
    """Processes the pulled messages."""

    def start(self) -> None: ...

    def submit(self, process_queue: ProcessQueue, messages: list[ReceivedMessage]) -> None:
        """Accept `messages`, which are in `process_queue`; the list may be empty."""

    async def close(self, timeout_s: float) -> None:
        """Close the consumption. Wait up to `timeout_s` for messages that are being consumed."""


class PulledQueues:
    """The queues that a client pulls.

    `subscriptions` maps topics to subscriptions; the caller may change it. `consumption` gets the
    messages. `on_failure` is called with each pull that fails, and `request_rebalance` when a queue
    was lost between two rebalances. Assignment explains `locked_queues` and `callbacks`. `failures`
    counts failed pulls.
    """

    def __init__(
        self,
        consumer_group: str,
        instance: ClientInstance,
        subscriptions: Mapping[str, TopicSubscription],
        options: ReadingOptions,
        *,
        offsets: OffsetTable,
        consumption: Consumption,
        request_rebalance: Callable[[], None],
        on_failure: OnFailure = ignore_failure,
        locked_queues: LockedQueues | None = None,
        callbacks: AssignmentCallbacks | None = None,
    ) -> None:
        self.failures = 0
        self._subscriptions = subscriptions
        self._on_failure = on_failure
        self.assignment = Assignment(
            instance,
            offsets,
            consumer_group,
            options,
            pull=self._pull,
            request_rebalance=request_rebalance,
            locked_queues=locked_queues,
            callbacks=callbacks,
        )
        self._puller = Puller(
            instance,
            offsets,
            consumer_group,
            batch_size=options.pull_batch_size,
            on_messages=consumption.submit,
            on_offset_moved=self.assignment.on_offset_moved,
            on_topic_deleted=self.assignment.on_topic_deleted,
            on_failure=self._failed,
        )

    def _pull(self, process_queue: ProcessQueue, queue_offset: int) -> Coroutine[None, None, None]:
        subscription = self._subscriptions[process_queue.queue.topic]
        return self._puller.run(process_queue, subscription, queue_offset)

    def _failed(self, queue: MessageQueue, error: MqError) -> None:
        self.failures += 1
        self._on_failure(queue, error)


def statistics_of(
    tally: Tally, pulled: PulledQueues, *, sent_back: int = 0, passed_over: int = 0
) -> ConsumerStatistics:
    """Return the statistics of a consumer from its `tally` and its pulled queues."""
    consumed_per_second, failed_per_second, average_ms = tally.rates()
    held = pulled.assignment.process_queues()
    return ConsumerStatistics(
        consumed=tally.succeeded,
        failed=tally.failed,
        sent_back=sent_back,
        passed_over=passed_over,
        consumed_per_second=consumed_per_second,
        failed_per_second=failed_per_second,
        average_ms=average_ms,
        waiting=sum(map(len, held)),
        waiting_bytes=sum(queue.size_bytes for queue in held),
        queues=len(held),
        lag=sum(queue.max_offset - queue.consumed_to for queue in held),
        failed_requests=pulled.failures,
    )
