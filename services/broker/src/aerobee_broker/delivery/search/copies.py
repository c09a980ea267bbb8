"""Find all stored copies of a message by its unique message id.

The index has a separate entry for each topic, so all topics of the broker are looked up. Retries,
dead letters, and messages that wait for their time are in topics of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from aerobee_broker.delivery.search.pace import Pace
from aerobee_broker.errors import MessageCorrupted
from aerobee_broker.metadata.topics import Topics
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire.record import Record
from aerobee_wire.status import Code, MqError, invalid_parameter

MAX_COPIES = 1_000
_TOPICS_AT_ONCE = 16  # each costs a read of each index file: about 1 ms
_FOREVER_MS = (1 << 63) - 1


@dataclass(slots=True)
class FoundCopies:
    """The copies in the order of their storage.

    `damaged` has an error for each record that may be a copy and cannot be read.
    """

    records: list[Record] = field(default_factory=list)
    damaged: list[MessageCorrupted] = field(default_factory=list)
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    store: MessageStore
    topics: Topics
    pace: Pace

    async def find(self, unique_id: str) -> FoundCopies:
        """Return the copies in all topics.

        Raises InvalidParameter, MqError with the code ILLEGAL_OPERATION if there is no index, or
        FLOW_CONTROL if too many searches run, and errors of the store.
        """
        if not unique_id:
            raise invalid_parameter("unique_message_id is empty: give the id of a message")
        if not self.store.is_indexed:
            raise MqError(
                Code.ILLEGAL_OPERATION,
                "this broker has no index of message ids (messageIndexEnable is off): search for "
                "the message by time or text",
            )
        found = FoundCopies()
        with self.pace.search():
            steps = self._steps(unique_id, [config.topic for config in self.topics.all()], found)
            while await self.pace.next(steps):
                pass
        found.records.sort(key=lambda record: record.physical_offset)
        return found

    def _steps(self, unique_id: str, topics: Iterable[str], found: FoundCopies) -> Iterator[bool]:
        names = iter(topics)
        while part := list(islice(names, _TOPICS_AT_ONCE)):
            for topic in part:
                for physical_offset in self.store.indexed(topic, unique_id, 0, _FOREVER_MS):
                    record = self.store.indexed_record(physical_offset, found.damaged)
                    if record is None or record.topic != topic:
                        continue
                    if record.unique_message_id != unique_id:
                        continue
                    if len(found.records) >= MAX_COPIES:
                        found.truncated = True
                        return
                    found.records.append(record)
            yield True
