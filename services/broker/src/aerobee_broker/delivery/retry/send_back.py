"""Send-back: stores messages again, by the retry policy, after a consumer failed to consume them.

The entries of a request are independent. If the message of one cannot be read, the others are still
stored. The stored messages are durable before the response, so the consumer may discard its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from aerobee_broker.commit.durable_log import DurableLog
from aerobee_broker.delivery.delay.router import DelayRouter
from aerobee_broker.delivery.retry import policy
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.errors import InvalidParameter, MessageNotFound
from aerobee_broker.metadata.subscription_groups import SubscriptionGroup
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.broker_permission import BrokerPermission
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces


@dataclass(frozen=True, slots=True)
class Entry:
    """A message to send back.

    `origin_topic` is the topic from which it was consumed, and is used only in error texts.
    """

    physical_offset: int
    origin_topic: str = ""
    # 0: the retry policy decides; above 0: retry after this delay level; below 0: dead-letter now.
    delay_level: int = 0
    # Overrides the group's retryMaxTimes.
    max_reconsume_times: int | None = None
    failure: Failure = field(default_factory=Failure)
    # The delay of the retry, used instead of the delay level if it is not None.
    delay_ms: int | None = None
    # Whether the failure counts as an attempt.
    counted: bool = True
    # The number of failures, if the consumer has counted its local retries; 0 if it has not.
    reconsume_times: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    error: MqError | None = None
    dead_lettered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SendBack:
    log: DurableLog
    topics: TopicRegistry
    groups: GroupRegistry
    delays: DelayRouter
    metrics: BrokerMetrics
    permission: BrokerPermission
    rng: random.Random
    traces: BrokerTraces | None = None

    async def send_back(
        self,
        consumer_group: str,
        entries: Sequence[Entry],
        *,
        readable: Callable[[str], bool] = lambda topic: True,
    ) -> list[Outcome]:
        """Store the messages of the entries again; return an outcome for each entry, in order.

        `readable` returns whether the caller may read a topic. Otherwise, a message of any topic
        could be copied to the retry topic of the caller's own group.

        Raises GroupNotExist, NoPermission, TooFewReplicas, TooMuchUnflushed, and the errors of
        MessageStore.append and Commit.sent.
        """
        begin_ns = self.traces.now_ns() if self.traces is not None else 0
        group = self.groups.get(consumer_group)
        self.permission.check_send_back()
        if group.retry_queue_count <= 0:  # the group has no retries: the message is dropped
            return [Outcome() for _ in entries]
        self.log.check_sends()
        retries = names.retry_topic(consumer_group)
        letters = names.dead_letter_topic(consumer_group)
        await self.topics.all_for_group({retries: group.retry_queue_count, letters: 1})
        group = self.groups.get(consumer_group)  # it may have been deleted meanwhile
        outcomes: list[Outcome] = []
        messages: list[NewMessage] = []
        for entry in entries:
            try:
                message, is_dead = self._next(group, entry, readable)
            except MqError as error:
                outcomes.append(Outcome(_read_error(entry, error)))
            else:
                messages.append(message)
                outcomes.append(Outcome(dead_lettered=is_dead))
        if messages:
            self.log.store.append(messages, reserve=True)
            await self.log.sent()
            self._count_dead_letters(group, outcomes)
            if self.traces is not None:
                stored = [each.dead_lettered for each in outcomes if each.error is None]
                for message, is_dead in zip(messages, stored, strict=True):
                    if is_dead:
                        operation, topic = "dead_letter", names.dead_letter_topic(consumer_group)
                    else:
                        operation, topic = "retry", names.retry_topic(consumer_group)
                    self.traces.stored_again(
                        operation, topic, consumer_group, message.properties, begin_ns
                    )
        return outcomes

    def _next(
        self, group: SubscriptionGroup, entry: Entry, readable: Callable[[str], bool]
    ) -> tuple[NewMessage, bool]:
        """Return the message to store, and whether it is a dead letter.

        A record that the caller may not read counts as missing. Raises the errors of
        MessageStore.get, and InvalidParameter, MessageIllegal or TooManyTimers
        if the delay is not accepted.
        """
        record = self.log.store.get(entry.physical_offset)
        if not readable(record.topic):
            raise MessageNotFound(f"there is no record at physical offset {entry.physical_offset}")
        attempt = max(record.reconsume_times + 1, entry.reconsume_times)
        if entry.delay_level < 0 or (
            entry.counted and policy.is_last_attempt(attempt, group, entry.max_reconsume_times)
        ):
            dead = policy.dead_lettered(record, group, failure=entry.failure, attempt=attempt)
            return dead, True
        retry, properties = policy.retry_of(
            record,
            group,
            queue_id=self.rng.randrange(group.retry_queue_count),
            failure=entry.failure,
            counted=entry.counted,
        )
        if entry.delay_ms is not None:
            return self._after(retry, properties, entry.delay_ms), False
        level = entry.delay_level
        queues = self.delays.queues
        return policy.delayed(retry, properties, attempt, group, queues, delay_level=level), False

    def _after(self, retry: NewMessage, properties: dict[str, str], delay_ms: int) -> NewMessage:
        if delay_ms < 0:
            raise InvalidParameter(f"delay_ms {delay_ms} is below 0")
        return self.delays.after(retry, properties, delay_ms) if delay_ms else retry

    def _count_dead_letters(self, group: SubscriptionGroup, outcomes: Sequence[Outcome]) -> None:
        dead = sum(outcome.dead_lettered for outcome in outcomes)
        if dead:
            self.metrics.dead_lettered(group.consumer_group, dead)
            structlog.get_logger().info("dead_lettered", group=group.consumer_group, messages=dead)


def _read_error(entry: Entry, error: MqError) -> MqError:
    """Return the error to report for a record that cannot be read.

    For a missing record, the code is SYSTEM_ERROR, as in RocketMQ. All other errors are returned
    unchanged.
    """
    if error.code is not Code.QUERY_NOT_FOUND:
        return error
    origin = f" (read from {entry.origin_topic})" if entry.origin_topic else ""
    return MqError(Code.SYSTEM_ERROR, f"cannot send back{origin}: {error.message}")


class RetryRouter:
    """Handles messages that a consumer sends to its retry topic with a normal send.

    RocketMQ's consumers do this if a send-back fails. Such a message is stored in the retry topic,
    or in the dead-letter topic after its last attempt.
    """

    def __init__(
        self, topics: TopicRegistry, groups: GroupRegistry, metrics: BrokerMetrics
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._metrics = metrics

    async def route(
        self, message: NewMessage, properties: dict[str, str], reconsume_times: int
    ) -> bool:
        """Redirect a message to the dead-letter topic if its last attempt has failed.

        Returns whether the message was redirected. If so, its decoded `properties` have changed,
        and the caller must encode them again. Raises GroupNotExist, InvalidParameter.
        """
        group = self._groups.get(names.group_of(message.topic) or "")
        if reconsume_times < 0:
            raise InvalidParameter(f"reconsume_times {reconsume_times} is below 0")
        message.reconsume_times = reconsume_times
        max_times = props.whole_number(properties.get(props.MAX_RECONSUME_TIMES, ""))
        if max_times is not None and max_times < 0:
            max_times = None
        if not policy.is_last_attempt(reconsume_times, group, max_times):
            return False
        topic = names.dead_letter_topic(group.consumer_group)
        await self._topics.for_group(topic)
        message.topic, message.queue_id = topic, 0
        properties.pop(props.DELAY, None)
        policy.with_dead_letter_origin(properties)
        self._metrics.dead_lettered(group.consumer_group, 1)
        return True
