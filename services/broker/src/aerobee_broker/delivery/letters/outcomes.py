"""Find out what became of a message that was sent again.

The index finds the copies of the message by its message id. The newest copy decides: in the
dead-letter topic, the message is dead again; where a retry waits for its delay, it is not consumed;
elsewhere, the group has consumed it if its position is behind the copy. Without an index, the state
of a redriven letter stays "redriven".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aerobee_broker.delivery.letters.states import LetterState
from aerobee_broker.delivery.pop.in_flight import InFlightQueue
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire import redrive as rules
from aerobee_wire import topics as names
from aerobee_wire.record import Record
from aerobee_wire.redrive import Target
from aerobee_wire.status import MqError

MAX_COPIES = 64  # of one message in one topic


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Finds the outcomes of redrives.

    `in_flight` returns the messages of a queue in flight for a group, by group, topic and queue id.
    """

    store: MessageStore
    offsets: ConsumerOffsets
    in_flight: Callable[[str, str, int], InFlightQueue | None]

    def of(self, consumer_group: str, letter: Record, target: Target, sent_ms: int) -> LetterState:
        """Return the state of a letter whose message was sent at `sent_ms`.

        Raises StoreReadError.
        """
        message_id = letter.unique_message_id or letter.offset_message_id
        try:
            destination = rules.topic_for(target, consumer_group, letter.properties)
        except MqError:
            return LetterState.REDRIVEN
        newest: Record | None = None
        dead_letters = names.dead_letter_topic(consumer_group)
        for topic in {
            destination,
            names.retry_topic(consumer_group),
            dead_letters,
            names.SCHEDULE_TOPIC,
            names.TIMER_TOPIC,
        }:
            if not self._has_messages(topic):
                continue
            for copy in self.store.query(
                topic, message_id, unique=True, begin_ms=sent_ms, max_messages=MAX_COPIES
            ):
                is_later = copy.physical_offset > letter.physical_offset
                if is_later and (newest is None or copy.physical_offset > newest.physical_offset):
                    newest = copy
        if newest is None:
            return LetterState.REDRIVEN
        if newest.topic == dead_letters:
            return LetterState.DEAD_AGAIN
        if newest.topic in (names.SCHEDULE_TOPIC, names.TIMER_TOPIC):
            return LetterState.REDRIVEN
        consumed = self._is_consumed(consumer_group, newest)
        return LetterState.CONSUMED if consumed else LetterState.REDRIVEN

    def _has_messages(self, topic: str) -> bool:
        """Return whether a topic has messages. A lookup in the index takes ten times as long."""
        store = self.store
        return any(
            store.max_offset(topic, queue_id) > store.min_offset(topic, queue_id)
            for queue_id in store.queues(topic)
        )

    def _is_consumed(self, consumer_group: str, copy: Record) -> bool:
        queue = self.in_flight(consumer_group, copy.topic, copy.queue_id)
        if queue is not None and copy.queue_offset in queue.in_flight:
            return False
        position = self.offsets.get(consumer_group, copy.topic, copy.queue_id) or 0
        if queue is not None:
            position = max(position, queue.cursor)
        return copy.queue_offset < position
