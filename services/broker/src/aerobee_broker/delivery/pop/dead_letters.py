"""Moves leased messages to the dead-letter topic of their consumer group.

This happens if a consumer or an administrator requests it, or if the last attempt of a message has
failed. One append to the log both stores the dead letter and settles the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aerobee_broker.delivery.pop.acks import Acknowledgements, Settlement
from aerobee_broker.delivery.pop.lease_table import (
    LeasedMessage,
    LeaseName,
    LeaseTable,
    invalid_lease,
)
from aerobee_broker.delivery.pop.selector import stored_record
from aerobee_broker.delivery.retry import policy
from aerobee_broker.errors import MessageNotFound
from aerobee_broker.metrics import BrokerMetrics
from aerobee_broker.registry.groups import GroupRegistry
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.messages import LeasableQueues, NewMessage
from aerobee_wire import topics as names
from aerobee_wire.record import decode
from aerobee_wire.status import MqError

if TYPE_CHECKING:
    from aerobee_broker.traces import BrokerTraces


class DeadLetterRequest(NamedTuple):
    lease: LeaseName
    failure: policy.Failure


class MessagePlace(NamedTuple):
    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int


class DyingMessage(NamedTuple):
    leased: LeasedMessage
    failure: policy.Failure


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetters:
    store: LeasableQueues
    table: LeaseTable
    acks: Acknowledgements
    topics: TopicRegistry
    groups: GroupRegistry
    metrics: BrokerMetrics
    traces: BrokerTraces | None = None

    async def dead_letter(self, requests: Sequence[DeadLetterRequest]) -> list[MqError | None]:
        """Dead-letter leased messages, and return for each request None or its error.

        Raises the errors of LeaseJournal.write and TopicRegistry.for_group.
        """
        consumer_groups = {lease.consumer_group for lease, _ in requests}
        await self._make_topics(group for group in consumer_groups if self._exists(group))
        outcomes: list[MqError | None] = []
        dying: dict[LeasedMessage, policy.Failure] = {}
        for lease, failure in requests:
            try:
                leased = self._leased(lease)
                if leased in dying:
                    raise invalid_lease(lease, lease.queue_offset)
            except MqError as error:
                outcomes.append(error)
                continue
            dying[leased] = failure
            stored = stored_record(self.store, leased.queue, lease.queue_offset)
            outcomes.append(None if stored else _not_stored(lease))
        await self._settle(DyingMessage(*entry) for entry in dying.items())
        return outcomes

    async def skip(self, place: MessagePlace, failure: policy.Failure) -> None:
        """Dead-letter a message that blocks its message group, whether it is on lease or not.

        Raises GroupNotExist, MessageNotFound, and the errors of `dead_letter`.
        """
        consumer_group, topic, queue_id, queue_offset = place
        self.groups.get(consumer_group)
        await self._make_topics([consumer_group])
        queue = self.table.find(consumer_group, topic, queue_id)
        message = queue.in_flight.get(queue_offset) if queue else None
        if queue is None or message is None or not queue.is_waited_for(message):
            raise MessageNotFound(
                f"no message group of {consumer_group} waits for message {queue_offset} of {topic} "
                f"queue {queue_id}: it may be consumed by now"
            )
        await self._settle([DyingMessage(LeasedMessage(queue, message), failure)])

    async def attempts_used_up(self, messages: Sequence[LeasedMessage]) -> None:
        """Dead-letter messages whose last lease has expired.

        Raises the errors of `dead_letter`. After an error, the caller must retry the messages that
        are still on lease.
        """
        await self._make_topics({queue.consumer_group for queue, _ in messages})
        dying = []
        for leased in messages:
            if not leased.message.is_leased:  # settled or reset while a topic was created
                continue
            if self._exists(leased.queue.consumer_group):
                message = leased.message
                if message.rejection is None:
                    failure = policy.Failure.of_expired(message.attempt, message.client_id)
                else:
                    failure = message.rejection.completed(message.attempt, message.client_id)
                dying.append(DyingMessage(leased, failure))
            else:  # the group was deleted in the meantime
                leased.queue.expire(leased.message)
        await self._settle(dying)

    def _exists(self, consumer_group: str) -> bool:
        return self.groups.table.get(consumer_group) is not None

    def _leased(self, lease: LeaseName) -> LeasedMessage:
        if not self._exists(lease.consumer_group):
            raise invalid_lease(lease, lease.queue_offset)
        return self.table.leased(lease)

    async def _make_topics(self, consumer_groups: Iterable[str]) -> None:
        letters = map(names.dead_letter_topic, consumer_groups)
        await self.topics.all_for_group(dict.fromkeys(letters, 1))

    async def _settle(self, dying: Iterable[DyingMessage]) -> None:
        """Store the dead letters of messages, and settle the messages.

        The dead-letter topics must exist. A message that cannot be read stays on lease, and its
        error is raised after all other messages are settled.
        """
        begin_ns = self.traces.now_ns() if self.traces is not None else 0
        settlement = Settlement()
        dead_letters: list[NewMessage] = []
        counts: Counter[str] = Counter()
        unreadable: MqError | None = None
        for (queue, message), failure in dying:
            try:
                raw = stored_record(self.store, queue, message.offset)
            except MqError as error:
                unreadable = error
                continue
            if raw:
                group = self.groups.get(queue.consumer_group)
                record = decode(raw, check_crc=False)
                dead_letters.append(
                    policy.dead_lettered(record, group, failure=failure, attempt=message.attempt)
                )
                counts[queue.consumer_group] += 1
                settlement.add_dead_letter(queue, message.offset)
            settlement.add(queue, [message], queue.drop(message))
        if settlement:
            await self.acks.settle(settlement, dead_letters)
        if self.traces is not None:
            for letter in dead_letters:
                consumer_group = names.group_of(letter.topic) or ""
                self.traces.stored_again(
                    "dead_letter", letter.topic, consumer_group, letter.properties, begin_ns
                )
        for consumer_group, count in counts.items():
            self.metrics.dead_lettered(consumer_group, count)
        if unreadable is not None:
            raise unreadable


def _not_stored(lease: LeaseName) -> MqError:
    return MessageNotFound(
        f"message {lease.queue_offset} of {lease.topic} queue {lease.queue_id} is no longer "
        "stored: there is nothing to dead-letter",
    )
