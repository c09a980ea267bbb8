"""Read dead letters that a file lists: `redrive.jsonl` of a report, or the output of `dlq export`.

Each line is a JSON object with "topic", "broker_name", "queue_id", "queue_offset" and "message_id".
Other fields are ignored. Dead letters with close queue offsets are read together, in pages.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aerobee_client.admin.dead_letters import PAGE_MESSAGES, DeadLetterSource, Selection, page_of
from aerobee_wire.status import Code, MqError, invalid_parameter

if TYPE_CHECKING:
    from aerobee_client.admin.client import AsyncAdminClient
    from aerobee_client.message import ReceivedMessage


# The number of lines that are in memory at a time, sorted by broker, queue and offset.
LINES_AT_ONCE = 8_192
# The maximum number of unlisted records that are read between two listed ones, to save a call.
GAP = 64
_MAX_OFFSET = (1 << 63) - 1


class Place(NamedTuple):
    broker_name: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str  # "" if the line does not contain it


class Missing(NamedTuple):
    """A listed dead letter that is missing. `why` is the reason in one sentence."""

    message_id: str
    offset_message_id: str
    why: str


class ListedDeadLetters(DeadLetterSource):
    """Reads the dead letters of one group that the file `path` lists.

    `total` and `scanned` count lines of the file. A message that is not found at its queue offset
    is returned as Missing.
    """

    def __init__(
        self,
        admin: AsyncAdminClient,
        consumer_group: str,
        path: Path,
        selection: Selection,
    ) -> None:
        """Prepare to read dead letters.

        Raises MqError with the code INVALID_PARAMETER for an invalid group name.
        """
        super().__init__(admin, consumer_group, selection)
        self._path = path

    async def places(self) -> tuple[dict[str, dict[int, list[int]]], list[Missing]]:
        """Return the queue offsets of the listed dead letters, and those that are missing.

        The offsets are by broker name and queue id. Raises the errors of `pages`.
        """
        found: dict[str, dict[int, list[int]]] = {}
        missing: list[Missing] = []
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for letter in page:
                    if isinstance(letter, Missing):
                        missing.append(letter)
                        continue
                    queues = found.setdefault(letter.broker_name, {})
                    queues.setdefault(letter.queue_id, []).append(letter.queue_offset)
        return found, missing

    async def pages(self) -> AsyncGenerator[list[ReceivedMessage | Missing]]:
        """Yield the dead letters of the selection, one list per read.

        They are in the order of the file, except that each LINES_AT_ONCE lines are sorted. The
        whole file is checked first.

        Raises MqError with the code INVALID_PARAMETER for a pipe, and for an invalid line or a line
        of another group, which the text names. Raises MqError with the code BROKER_NOT_EXIST or
        TOPIC_NOT_EXIST if no name server knows a broker of the list or the dead-letter topic.
        Raises OSError if the file cannot be read.
        """
        await self._check_brokers(await asyncio.to_thread(self._count))
        places = self._places()
        while chunk := await asyncio.to_thread(_first, places):
            for run in runs(sorted(chunk)):
                async for found in self._read_run(run):
                    yield found
                self.scanned += len(run)

    def _count(self) -> frozenset[str]:
        """Count the lines of the file, and return the names of the brokers in them."""
        if self._path.is_fifo():  # a second reading would find no data
            raise invalid_parameter(
                f"{self._path} is a pipe, and a list is read twice: write it to a file",
                about="list",
            )
        per_broker = Counter(place.broker_name for place in self._places())
        self.total = per_broker.total()
        return frozenset(per_broker)

    async def _check_brokers(self, named: frozenset[str]) -> None:
        if not named:
            return
        route = await self._admin.topic_route(self.topic)
        if unknown := named.difference(queue.broker_name for queue in route.queues):
            raise MqError(
                Code.BROKER_NOT_EXIST,
                f"no name server knows {', '.join(sorted(unknown))} as a broker of {self.topic}, "
                f"which {self._path} names: wait for it, or leave its lines out",
                about="list",
            )

    def _places(self) -> Iterator[Place]:
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield self._place(number, line)

    def _place(self, number: int, line: bytes) -> Place:
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            raise self._wrong(number, "is not JSON") from None
        match item:
            case {
                "topic": str(topic),
                "broker_name": str(broker_name),
                "queue_id": int(queue_id),
                "queue_offset": int(queue_offset),
                "message_id": str(message_id),
            } if 0 <= queue_id < 1 << 31 and 0 <= queue_offset <= _MAX_OFFSET:
                pass
            case _:
                raise self._wrong(
                    number, "lacks topic, broker_name, queue_id, queue_offset or message_id"
                )
        if topic != self.topic:
            raise self._wrong(number, f"is of the topic {topic}, and this redrive of {self.topic}")
        return Place(broker_name, queue_id, queue_offset, message_id, _text(item))

    def _wrong(self, number: int, why: str) -> MqError:
        return invalid_parameter(
            f"line {number} of {self._path} {why}: give the redrive.jsonl of a report of this "
            "group, or what dlq export wrote",
            about="list",
        )

    async def _read_run(
        self, run: Sequence[Place]
    ) -> AsyncIterator[list[ReceivedMessage | Missing]]:
        """Yield the dead letters of one run of places, by ascending queue offset."""
        broker_name, queue_id = run[0].broker_name, run[0].queue_id
        waiting = {place.queue_offset: place for place in run}
        next_offset, last = run[0].queue_offset, run[-1].queue_offset
        while next_offset <= last:
            most = min(PAGE_MESSAGES, last - next_offset + 1)
            page = await page_of(self._admin, self.topic, broker_name, queue_id, next_offset, most)
            self.corrupted += page.corrupted_count
            found: list[ReceivedMessage | Missing] = []
            for message in page.messages():
                place = waiting.pop(message.queue_offset, None)
                if place is None:
                    continue
                if message.message_id != place.message_id:
                    found.append(_missing(place, "another dead letter is stored at its place now"))
                elif self._selection.selects(message):
                    found.append(message)
            yield found
            if page.status == "NO_NEW_MESSAGE" or page.next_begin_offset <= next_offset:
                break
            next_offset = page.next_begin_offset
        why = "it is no longer in the dead-letter topic, or cannot be read"
        yield [_missing(place, why) for place in waiting.values()]


def runs(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Split sorted places into runs that are read together.

    All places of a run are in one queue, and each place is at most GAP records after the previous
    one. A place that is listed twice is used once.
    """
    run: list[Place] = []
    for place in places:
        if run and place[:3] == run[-1][:3]:
            continue
        if run and (place[:2] != run[-1][:2] or place.queue_offset - run[-1].queue_offset > GAP):
            yield run
            run = []
        run.append(place)
    if run:
        yield run


def _first(places: Iterator[Place]) -> tuple[Place, ...]:
    """Return the next LINES_AT_ONCE places, or () at the end."""
    return tuple(islice(places, LINES_AT_ONCE))


def _text(item: dict[str, Any]) -> str:
    found = item.get("offset_message_id")
    return found if isinstance(found, str) else ""


def _missing(place: Place, why: str) -> Missing:
    return Missing(place.message_id, place.offset_message_id, why)
