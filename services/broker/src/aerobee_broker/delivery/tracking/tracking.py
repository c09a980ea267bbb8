"""Find out what became of a message in each consumer group of its topic.

Nothing must be switched on. The evidence is what the broker keeps anyway: copies of the message,
leases and the lease journal, the groups' offsets, and the history of committed offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from aerobee_broker.delivery.pop.in_flight import ACKED, INVISIBLE, InFlightMessage, InFlightQueue
from aerobee_broker.delivery.pop.lease_table import LeaseTable
from aerobee_broker.delivery.retry.policy import Failure
from aerobee_broker.delivery.search.copies import Copies
from aerobee_broker.delivery.tracking.lease_trail import End, Reading, read_trail
from aerobee_broker.delivery.tracking.state import GroupState, Place, State
from aerobee_broker.errors import MessageNotFound
from aerobee_broker.filter.filter import filter_of_text
from aerobee_broker.metadata.consumer_offsets import ConsumerOffsets
from aerobee_broker.metadata.offset_history import BEGIN, RESET, Passage
from aerobee_broker.registry.clients import Clients
from aerobee_broker.registry.topics import TopicRegistry
from aerobee_broker.store.message_store import MessageStore
from aerobee_wire import properties as props
from aerobee_wire import topics as names
from aerobee_wire.queues.lite import LITE
from aerobee_wire.record import Record, iter_records

_WAITING = (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)


@dataclass(frozen=True, slots=True)
class Tracked:
    """A message and its states.

    `record` is None if retention has deleted the message. `due_ms` is the delivery time of a
    message that waits for it, or 0. `is_half` is True for a message of an open transaction.
    """

    place: Place
    record: Record | None
    groups: list[GroupState]
    due_ms: int = 0
    is_half: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracking:
    store: MessageStore
    topics: TopicRegistry
    clients: Clients
    offsets: ConsumerOffsets
    table: LeaseTable
    copies: Copies
    journal_topic: str

    async def by_id(self, unique_id: str, groups: Sequence[str] = ()) -> list[Tracked]:
        """Return the states of all messages with a message id; usually of one or none.

        If `groups` is empty, all groups of the topic are included. Raises the errors of
        Copies.find, and errors of the store.
        """
        copies = (await self.copies.find(unique_id)).records
        sent = [each for each in copies if _is_sent(each)]
        if not sent:
            return [self._waiting(each) for each in copies if _waits(each)][-1:]
        return [await self._tracked(_place(each), each, copies, groups) for each in sent]

    async def by_place(self, place: Place, groups: Sequence[str] = ()) -> Tracked:
        """Return the states of the message at a place, also if retention has deleted it.

        Raises TopicNotExist, InvalidParameter, MessageNotFound if there was no message yet, and
        errors of the store.
        """
        self.topics.get(place.topic)
        low = self.store.min_offset(place.topic, place.queue_id)
        if not 0 <= place.queue_offset < self.store.max_offset(place.topic, place.queue_id):
            raise MessageNotFound(
                f"{place.topic} queue {place.queue_id} has no message {place.queue_offset} here"
            )
        if place.queue_offset < low:
            return await self._tracked(place, None, [], groups)
        found = self.store.read(
            place.topic, place.queue_id, place.queue_offset, max_messages=1, max_bytes=1
        )
        record = next(iter_records(found.records, check_crc=False), None)
        if record is None or record.queue_offset != place.queue_offset:
            return await self._tracked(place, None, [], groups)
        has_id = record.unique_message_id and self.store.is_indexed
        copies = (await self.copies.find(record.unique_message_id)).records if has_id else [record]
        return await self._tracked(place, record, copies, groups)

    def groups_of(self, topic: str) -> list[str]:
        """Return the groups that consume a topic, or have an offset or a lease in it."""
        subscribed = {
            group
            for client in self.clients.all()
            for group, consumer in client.consumers.items()
            if topic in consumer.subscriptions
        }
        leased = {leases.consumer_group for leases in self.table if leases.topic == topic}
        offsets = self.offsets.groups_of(topic)
        return sorted(
            group for group in {*subscribed, *leased, *offsets} if not names.is_system_group(group)
        )

    # ---- steps ----

    async def _tracked(
        self, place: Place, record: Record | None, copies: Sequence[Record], groups: Sequence[str]
    ) -> Tracked:
        states: dict[str, GroupState] = {}
        unsettled: dict[str, tuple[Place, Record | None]] = {}
        for group in groups or self.groups_of(place.topic):
            state, at = self._state(group, place, record, copies)
            states[group] = state
            if state.state is State.UNKNOWN and at is not None:
                unsettled[group] = at
        for group, (at_place, at_record) in unsettled.items():
            states[group] = await self._by_journal(group, at_place, at_record)
        return Tracked(place, record, list(states.values()))

    def _state(
        self, group: str, place: Place, record: Record | None, copies: Sequence[Record]
    ) -> tuple[GroupState, tuple[Place, Record | None] | None]:
        """Return the state as far as it is known without the lease journal.

        If the journal must be read, also returns the place and the record to look for in it.
        """
        if self.topics.get(place.topic).message_type == LITE:
            return _unknown(group, "messages of lite topics are not tracked"), None
        if self.clients.broadcasts(group):
            return _unknown(group, "the group broadcasts: each member keeps its own offsets"), None
        own = [] if record is None else [each for each in copies if _is_retry(each, record, group)]
        if own and own[-1].topic == names.dead_letter_topic(group):
            return _dead(group, own[-1]), None
        if own:
            return self._retry_state(group, own[-1])
        return self._state_at(group, place, record)

    def _retry_state(
        self, group: str, retry: Record
    ) -> tuple[GroupState, tuple[Place, Record | None] | None]:
        failure, attempt = _failure(retry), retry.reconsume_times + 1
        due_ms = self._due_ms(retry) if retry.topic in _WAITING else retry.store_timestamp_ms
        retrying = GroupState(
            consumer_group=group,
            state=State.RETRYING,
            reason="it was sent back, and waits for its next delivery",
            attempt=attempt,
            until_ms=due_ms,
            place=_place(retry),
            failure=failure,
        )
        if retry.topic in _WAITING:
            return retrying, None
        state, at = self._state_at(group, _place(retry), retry)
        if state.state in (State.READY, State.NOT_YET):
            return replace(retrying, ahead=state.ahead, client_id=state.client_id), None
        return replace(state, attempt=state.attempt or attempt, place=_place(retry)), at

    def _state_at(
        self, group: str, place: Place, record: Record | None
    ) -> tuple[GroupState, tuple[Place, Record | None] | None]:
        queue = self.table.find(group, place.topic, place.queue_id)
        offset = place.queue_offset
        if queue is None:
            return self._by_offset(group, place, record), None
        message = queue.in_flight.get(offset)
        if message is not None:
            return _in_flight(group, queue, message), None
        if offset >= queue.cursor:
            return self._next(group, offset - queue.cursor, record, "no pop has reached it"), None
        return _unknown(group, ""), (place, record)

    def _next(
        self, group: str, ahead: int, record: Record | None, reason: str, client_id: str = ""
    ) -> GroupState:
        state = State.NOT_YET if ahead else State.READY
        if record is None:
            state, reason = State.EXPIRED, "retention deleted it before the group consumed it"
        return GroupState(
            consumer_group=group, state=state, reason=reason, ahead=ahead, client_id=client_id
        )

    # ---- groups that pop ----

    async def _by_journal(self, group: str, place: Place, record: Record | None) -> GroupState:
        from_ms = 0 if record is None else record.store_timestamp_ms
        reading, steps = read_trail(self.store, self.journal_topic, place, group, from_ms)
        with self.copies.pace.search():
            while await self.copies.pace.next(steps):
                pass
        trail = reading.trail
        never_leased = trail.end is End.BEFORE_FIRST_POP or not (trail.end or trail.has_started)
        if never_leased and reading.is_known:
            # Members that pull may have committed an offset above it before.
            return self._by_history(group, place, record)
        return _settled(group, reading, record)

    # ---- groups that commit offsets ----

    def _by_offset(self, group: str, place: Place, record: Record | None) -> GroupState:
        committed = self.offsets.get(group, place.topic, place.queue_id)
        offset = place.queue_offset
        owner = self.clients.owners(group).get((place.topic, place.queue_id), "")
        if committed is None:
            if record is None:
                return _unknown(group, "the group has no offset in the queue")
            return GroupState(
                consumer_group=group,
                state=State.NOT_YET,
                reason="the group has no offset in the queue yet",
                client_id=owner,
            )
        if committed <= offset:
            reason = f"the group has committed the offset {committed}"
            return self._next(group, offset - committed, record, reason, owner)
        return self._by_history(group, place, record)

    def _by_history(self, group: str, place: Place, record: Record | None) -> GroupState:
        """Return the state of a message below the group's committed offset."""
        offset = place.queue_offset
        history = self.offsets.history
        passage = history.passage((group, place.topic, place.queue_id), offset)
        if passage is None or (record and passage.end_ms < record.store_timestamp_ms):
            return _unknown(
                group,
                "the group's offset is above it, and the history of offsets, which begins at "
                f"{_utc(history.since_ms)}, does not have the move",
            )
        return _passed(group, passage, record)

    # ---- waiting messages ----

    def _waiting(self, record: Record) -> Tracked:
        is_half = record.topic == names.HALF_TOPIC
        due_ms = 0 if is_half else self._due_ms(record)
        return Tracked(_place(record), record, [], due_ms, is_half)

    def _due_ms(self, record: Record) -> int:
        """Return the delivery time in the unit of a waiting message; 0 if it is not known."""
        units = self.store.units(record.topic, record.queue_id, record.queue_offset, 1)
        return max(0, units[0][2]) if units else 0


def _place(record: Record) -> Place:
    return Place(record.topic, record.queue_id, record.queue_offset)


def _waits(record: Record) -> bool:
    """Return whether a message waits for its delivery time or the end of its transaction."""
    if record.topic == names.HALF_TOPIC:
        return True
    target = record.properties.get(props.REAL_TOPIC, "")
    return record.topic in _WAITING and bool(target) and names.group_of(target) is None


def _is_sent(record: Record) -> bool:
    return not names.is_system(record.topic) and names.group_of(record.topic) is None


def _is_retry(copy: Record, record: Record, group: str) -> bool:
    """Return whether a copy is a retry or dead letter of a message in a group."""
    topic = copy.topic
    if topic in _WAITING:
        topic = copy.properties.get(props.REAL_TOPIC, "")
    if topic not in (names.retry_topic(group), names.dead_letter_topic(group)):
        return False
    origin = copy.properties.get(props.ORIGIN_MESSAGE_ID, "")
    return origin in (record.offset_message_id, record.unique_message_id)


def _failure(record: Record) -> Failure:
    properties = record.properties
    return Failure(
        properties.get(props.DLQ_REASON, ""), properties.get(props.DLQ_REASON_DESCRIPTION, "")
    )


def _utc(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1_000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _unknown(group: str, reason: str) -> GroupState:
    return GroupState(consumer_group=group, state=State.UNKNOWN, reason=reason)


def _dead(group: str, letter: Record) -> GroupState:
    return GroupState(
        consumer_group=group,
        state=State.DEAD_LETTERED,
        reason="its dead letter is stored",
        since_ms=letter.store_timestamp_ms,
        at_ms=letter.store_timestamp_ms,
        attempt=letter.reconsume_times,
        place=_place(letter),
        failure=_failure(letter),
    )


def _in_flight(group: str, queue: InFlightQueue, message: InFlightMessage) -> GroupState:
    state = GroupState(
        consumer_group=group,
        state=State.READY,
        reason="it waits for an earlier message of its message group",
        client_id=message.client_id,
        attempt=message.attempt,
    )
    if message.state is INVISIBLE:
        return replace(
            state,
            state=State.ON_LEASE,
            reason="a client has it on lease",
            since_ms=message.pop_time_ms,
            at_ms=message.pop_time_ms,
            until_ms=message.expires_ms,
        )
    if message.state is ACKED:
        return replace(
            state,
            state=State.CONSUMED,
            reason="it is acknowledged; it is delivered again if an earlier message of its message "
            "group fails",
        )
    if message.attempt:
        return replace(
            state,
            state=State.RETRYING,
            reason="its last lease ended without an acknowledgement; the next receive gets it",
            attempt=message.attempt + 1,
            until_ms=message.expires_ms,
        )
    return state


def _settled(group: str, reading: Reading, record: Record | None) -> GroupState:
    """Return the state of a message that pops have passed, by its lease journal."""
    trail = reading.trail
    if trail.end is None:
        return _unsettled(group, reading, record)
    state, reason = _ENDS[trail.end]
    if trail.end is End.SETTLED and not trail.leased_ms:
        state, reason = State.UNKNOWN, "it was settled, and its lease is not known"
    has_client = trail.end in (End.SETTLED, End.DEAD)
    return GroupState(
        consumer_group=group,
        state=state,
        reason=reason,
        client_id=trail.client_id if has_client else trail.reset_by,
        since_ms=trail.at_ms,
        at_ms=trail.at_ms,
        attempt=trail.attempt,
    )


_MOVED = "the offset of the group was set to a later message"
_BEGAN = "the group began after it"
_ENDS = {
    End.SETTLED: (State.CONSUMED, "the lease journal has its acknowledgement"),
    End.DEAD: (State.DEAD_LETTERED, "its dead letter is not stored any more"),
    End.PASSED: (State.FILTERED, "a pop passed it without a lease"),
    End.BEHIND_START: (State.SKIPPED, _BEGAN),
    End.BEFORE_FIRST_POP: (State.SKIPPED, _BEGAN),
    End.RESET: (State.SKIPPED, _MOVED),
}


def _unsettled(group: str, reading: Reading, record: Record | None) -> GroupState:
    """Return the state of a message that pops have passed, if no record settles it."""
    if not reading.is_whole:
        reason = f"the next {reading.records} records of the lease journal do not settle it"
    elif record is None:
        reason = f"the lease journal begins at {_utc(reading.begin_ms)}"
    elif reading.trail.leased_ms:
        reason = "the lease journal has a lease and no settlement"
    else:
        reason = "pops passed it, and the lease journal has no lease of it"
        return GroupState(consumer_group=group, state=State.FILTERED, reason=reason)
    return _unknown(group, reason)


def _passed(group: str, passage: Passage, record: Record | None) -> GroupState:
    """Return the state of a message that a commit or a reset moved the group's offset over."""
    mover = passage.mover
    state = GroupState(
        consumer_group=group,
        state=State.CONSUMED,
        reason="the group committed an offset above it",
        client_id=mover.client_id,
        since_ms=passage.begin_ms,
        at_ms=passage.end_ms,
    )
    expression = mover.expression
    kind, reason = State.UNKNOWN, ""
    if mover.kind == RESET:
        kind, reason = State.SKIPPED, _MOVED
    elif mover.kind == BEGIN:
        kind, reason = State.SKIPPED, _BEGAN
        state = replace(state, client_id="")
    elif passage.before < 0:
        reason = "the first offset that the group committed is above it: it consumed or skipped it"
    elif not expression:
        reason = "the group's offset passed it, and its subscription at that time is not known"
    elif (wanted := filter_of_text(expression)).everything:
        return state
    elif record is None:
        reason = f"the group's offset passed it; whether {expression} let it through is not known"
    elif wanted.matches(record.properties):
        return state
    else:
        kind, reason = State.FILTERED, f"the subscription {expression} does not let it through"
    return replace(state, state=kind, reason=reason)
