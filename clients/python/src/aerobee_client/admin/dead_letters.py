"""Read, count and purge the dead letters of a consumer group.

Dead letters are read by queue offset, which does not consume them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aerobee_wire.backoff import Backoff
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_group, dead_letter_topic

if TYPE_CHECKING:  # slow to import, and only the caller needs them
    from aerobee_client.admin.client import AsyncAdminClient
    from aerobee_client.admin.descriptions import Browsed, QueueStatus
    from aerobee_client.admin.letters import LetterStatus
    from aerobee_client.message import ReceivedMessage

# Limits of one read in messages and bytes; the first one that is reached ends the read.
PAGE_MESSAGES = 1_024
PAGE_BYTES = 4 * 1024 * 1024
# If a broker becomes unavailable during a read, wait for it. Name servers drop the route of a
# broker that has died.
PATIENCE_S = 30.0
# The maximum wait for the route of a new topic, in seconds. A broker registers it in milliseconds.
ROUTE_S = 2.0
AWAY = frozenset({Code.TOPIC_NOT_EXIST, Code.BROKER_NOT_EXIST})


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of dead letters. An empty field does not restrict the selection.

    `ids` are message ids or offset message ids. `reason` is the failure reason, such as the class
    of an exception. `no_tag` and `no_reason` select letters that have none. `since_ms` (inclusive)
    and `until_ms` (exclusive) limit the store time, in milliseconds since the epoch.
    """

    ids: frozenset[str] = frozenset()
    tag: str = ""
    reason: str = ""
    no_tag: bool = False
    no_reason: bool = False
    since_ms: int | None = None
    until_ms: int | None = None

    def selects(self, message: ReceivedMessage) -> bool:
        return (
            (not self.ids or bool(self.ids & {message.message_id, message.offset_message_id}))
            and (not self.tag or message.tag == self.tag)
            and (not self.reason or message.failure_reason == self.reason)
            and not (self.no_tag and message.tag)
            and not (self.no_reason and message.failure_reason)
            and (self.since_ms is None or message.store_timestamp_ms >= self.since_ms)
            and (self.until_ms is None or message.store_timestamp_ms < self.until_ms)
        )


class DeadLetterSource:
    """Base class of readers of the dead letters of one group.

    `corrupted` counts records that failed their check so far. `expired` counts records that
    retention deleted before they were read. `total` is the number of records of the current read,
    and `scanned` is the number of records that the read has passed. `away` has the brokers that are
    not registered any more, and may have further dead letters. `silent` has the errors of other
    brokers, which do not answer.
    """

    def __init__(
        self, admin: AsyncAdminClient, consumer_group: str, selection: Selection = Selection()
    ) -> None:
        """Prepare to read dead letters.

        Raises MqError with the code INVALID_PARAMETER for an invalid group name.
        """
        check_group(consumer_group)
        self.consumer_group = consumer_group
        self.topic = dead_letter_topic(consumer_group)
        self.corrupted = 0
        self.expired = 0
        self.scanned = 0
        self.total = 0
        self.away: tuple[str, ...] = ()
        self.silent: tuple[MqError, ...] = ()
        self._admin = admin
        self._selection = selection

    @property
    def complete(self) -> bool:
        """True if every record could be read so far."""
        return not (self.corrupted or self.expired or self.away or self.silent)


class DeadLetters(DeadLetterSource):
    """Reads the dead letters of one group, broker by broker and queue by queue, oldest first.

    With `with_states`, `status_of` returns the state of a letter that `read` has just yielded, and
    `unknown_states` counts letters whose broker did not answer. The reason is in `states_error`.
    """

    def __init__(
        self,
        admin: AsyncAdminClient,
        consumer_group: str,
        selection: Selection = Selection(),
        *,
        with_states: bool = False,
    ) -> None:
        super().__init__(admin, consumer_group, selection)
        self.unknown_states = 0
        self.states_error = ""
        self._with_states = with_states
        self._states: dict[int, LetterStatus] | None = None  # of the present page, by queue offset
        # the queue offset to read next, by broker name and queue id
        self._next_offsets: dict[tuple[str, int], int] = {}

    async def queues(self) -> list[QueueStatus]:
        """Return the bounds of the dead-letter topic's queues; [] if the topic does not exist.

        If a broker has the topic but no name server knows it, this call waits for up to ROUTE_S.
        Queues of brokers in `away` and `silent` are left out.

        Raises MqError with the code SUBSCRIPTION_GROUP_NOT_EXIST if the group does not exist
        either. Raises MqError with the code TOPIC_NOT_EXIST if no name server learns of the topic.
        """
        loop = asyncio.get_running_loop()
        deadline, backoff = loop.time() + ROUTE_S, Backoff(0.01, 0.5)
        self.away = (await self._admin.cluster()).away
        while True:
            silent: list[MqError] = []
            try:
                found = await self._admin.topic_status(self.topic, silent=silent)
            except MqError as error:
                if error.code is not Code.TOPIC_NOT_EXIST:
                    raise
            else:
                self.silent = self._without_away(silent)
                return found
            names = await self._brokers_with_topic(silent)
            if not names:
                self.silent = self._without_away(silent)
                await self._admin.get_group(self.consumer_group, silent=silent)
                return []
            # Either the first dead letter creates the topic now, and the broker registers it. Or an
            # interrupted purge has deleted the route, which the next registration restores.
            if loop.time() >= deadline:
                raise MqError(
                    Code.TOPIC_NOT_EXIST,
                    f"no name server knows {self.topic} now, although broker {', '.join(names)} "
                    "has it: retry in half a minute",
                    retryable=True,
                )
            await asyncio.sleep(backoff.next_s())

    def _without_away(self, silent: Iterable[MqError]) -> tuple[MqError, ...]:
        return tuple(error for error in silent if error.broker_name not in self.away)

    async def _brokers_with_topic(self, silent: list[MqError]) -> list[str]:
        """Return the names of the brokers that have the dead-letter topic and answer."""
        return [
            broker.broker_name
            for topic in await self._admin.list_topics(include_derived=True, silent=silent)
            if topic.topic == self.topic
            for broker in topic.brokers
        ]

    async def count(self) -> int:
        """Return the number of all dead letters, without regard to the selection.

        Raises MqError like `queues`.
        """
        return sum(queue.max_offset - queue.min_offset for queue in await self.queues())

    async def purge(self, *, silent: list[MqError] | None = None) -> bool:
        """Delete all dead letters on every broker, without regard to the selection.

        `silent` is as in `AsyncAdminClient.delete_topic`. Return False if the dead-letter topic did
        not exist.
        """
        return await self._admin.delete_topic(self.topic, silent=silent)

    async def read(self) -> AsyncGenerator[ReceivedMessage]:
        """Yield the stored dead letters of the selection.

        A later call yields only dead letters that were added since the previous call. Raises
        MqError like `queues`.
        """
        async with aclosing(self._pages()) as pages:
            async for page in pages:
                if self._with_states:
                    self._states = await self._states_of(page)
                for message in page.messages:
                    self._pass(page.wanted, message.queue_offset + 1)
                    if self._selection.selects(message):
                        yield message
                self._pass(page.wanted, page.next_offset)

    def status_of(self, message: ReceivedMessage) -> LetterStatus | None:
        """Return the state of the letter that was yielded last, or None if it is unknown."""
        from aerobee_client.admin.letters import OPEN

        if self._states is None:
            return None
        return self._states.get(message.queue_offset, OPEN)

    async def _states_of(self, page: _Page) -> dict[int, LetterStatus] | None:
        """Return the states of a page by queue offset, or None if its broker does not answer.

        A slave has the letters, but only the master knows their states.
        """
        if not page.messages:
            return {}
        begin, end = page.messages[0].queue_offset, page.messages[-1].queue_offset + 1
        wanted = page.wanted
        try:
            return await self._admin.letter_states(
                self.consumer_group, wanted.broker_name, wanted.queue_id, begin, end
            )
        except MqError as error:
            self.unknown_states += len(page.messages)
            self.states_error = str(error)
            return None

    def _pass(self, wanted: _Range, next_offset: int) -> None:
        self._next_offsets[wanted.broker_name, wanted.queue_id] = next_offset
        self.scanned = wanted.before + min(next_offset, wanted.end) - wanted.start

    async def _pages(self) -> AsyncGenerator[_Page]:
        self.scanned = self.total = 0
        ranges = []
        for queue in await self.queues():
            ranges.append(await self._range(queue))
            self.total += max(0, ranges[-1].end - ranges[-1].start)
        for wanted in ranges:
            async with aclosing(self._pages_of(wanted)) as pages:
                async for page in pages:
                    yield page

    async def _range(self, queue: QueueStatus) -> _Range:
        """Return the range of offsets to read from a queue.

        Store times do not decrease in a queue, unless a clock was set back. The selection therefore
        also checks the store time of each message in the range.
        """
        key = (queue.broker_name, queue.queue_id)
        start = self._next_offsets.get(key, queue.min_offset)
        end = queue.max_offset
        if self._selection.since_ms is not None:
            since = self._selection.since_ms
            start = max(start, await self._admin.search_offset(self.topic, *key, since))
        if self._selection.until_ms is not None:
            until = self._selection.until_ms
            end = min(end, await self._admin.search_offset(self.topic, *key, until))
        return _Range(*key, start, end, self.total)

    async def _pages_of(self, wanted: _Range) -> AsyncGenerator[_Page]:
        """Yield the pages of one queue. Request each page before the previous one is yielded."""
        where = (wanted.broker_name, wanted.queue_id)

        def ask(offset: int) -> asyncio.Task[Browsed]:
            return asyncio.create_task(page_of(self._admin, self.topic, *where, offset))

        asked = wanted.start
        asking = ask(asked) if asked < wanted.end else None
        try:
            while asking is not None:
                page = await asking
                self.corrupted += page.corrupted_count
                messages = page.messages()
                if messages and messages[-1].queue_offset >= wanted.end:
                    # Some messages were added since this call began.
                    asking, next_offset = None, wanted.end
                    messages = [each for each in messages if each.queue_offset < wanted.end]
                else:
                    next_offset = messages[-1].queue_offset + 1 if messages else asked
                    self.expired += max(0, page.min_offset - next_offset)
                    next_offset = max(next_offset, page.next_begin_offset)
                    # If the offset does not advance, the topic was deleted and created again. Its
                    # records were then added after this call began.
                    ends = page.status == "NO_NEW_MESSAGE" or next_offset == asked
                    asking = None if ends or next_offset >= wanted.end else ask(next_offset)
                    asked = next_offset
                yield _Page(wanted, messages, next_offset)
        finally:
            if asking is not None:
                asking.cancel()  # also if it has failed: its error is not logged then


async def page_of(  # noqa: PLR0917
    admin: AsyncAdminClient,
    topic: str,
    broker_name: str,
    queue_id: int,
    queue_offset: int,
    most: int = PAGE_MESSAGES,
) -> Browsed:
    """Return up to `most` records of a queue, starting at `queue_offset`. Raises MqError.

    If the broker does not answer, the request is retried for PATIENCE_S.
    """
    loop = asyncio.get_running_loop()
    deadline, backoff = loop.time() + PATIENCE_S, Backoff(0.1, 2.0)
    while True:
        try:
            return await admin.browse(
                topic, broker_name, queue_id, queue_offset, max_messages=most, max_bytes=PAGE_BYTES
            )
        except MqError as error:
            delay_s = backoff.next_s()
            may_come_back = error.retryable or error.code in AWAY
            if not may_come_back or loop.time() + delay_s > deadline:
                raise
        await asyncio.sleep(delay_s)


class _Range(NamedTuple):
    """The queue offsets of one queue from `start` to before `end`.

    `before` is the number of records in the ranges that are read before this range.
    """

    broker_name: str
    queue_id: int
    start: int
    end: int
    before: int


class _Page(NamedTuple):
    """Records of a range. `next_offset` is the offset after these records."""

    wanted: _Range
    messages: list[ReceivedMessage]
    next_offset: int
