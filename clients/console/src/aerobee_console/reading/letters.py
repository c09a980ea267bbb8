"""Dead letters: their number by group, and the letters of one group by reason and tag."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from aerobee_client.admin.descriptions import QueueStatus
from aerobee_client.admin.letters import LetterJobDescription
from aerobee_console.reading.brokers import waiting
from aerobee_console.reading.messages import MessageRow, searched
from aerobee_console.reading.source import Answer, Listing, Source, page_of
from aerobee_wire import properties
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_group, dead_letter_topic

# The newest letters that a page looks at.
LOOKED_AT = 1_000
SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class LettersOfGroup:
    """The number of dead letters of a group."""

    consumer_group: str
    dead_letters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterGroups(Listing):
    """A page of the groups with dead letters, the most letters first.

    `dead_letters` is the sum of all pages; None if no broker answered.
    """

    rows: tuple[LettersOfGroup, ...]
    dead_letters: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Letters(Answer):
    """The dead letters of one group.

    `stored` counts all letters; None if no broker answered. The counts by reason, tag and origin
    topic are over the `looked_at` newest letters. `rows` are the newest of the selected ones, and
    `selected` is their number. `corrupted` records could not be read.
    """

    consumer_group: str
    stored: int | None
    looked_at: int
    corrupted: int
    selected: int
    rows: tuple[MessageRow, ...]
    by_reason: tuple[tuple[str, int], ...]
    by_tag: tuple[tuple[str, int], ...]
    by_origin: tuple[tuple[str, int], ...]
    oldest_ms: int | None
    jobs: tuple[LetterJobDescription, ...]

    @property
    def truncated(self) -> bool:
        """True if older letters are stored that the counts do not include."""
        return self.stored is not None and self.looked_at + self.corrupted < self.stored


async def letter_groups(source: Source, *, name: str = "", page: int = 1) -> LetterGroups:
    """Return the groups that have dead letters, with one call to each broker."""
    asking = await source.ask()
    sums = await waiting(source.admin, asking)
    rows = [
        LettersOfGroup(consumer_group=group, dead_letters=letters)
        for group, letters in (sums.dead_letters_by_group.most_common() if sums else ())
        if letters and name.lower() in group.lower()
    ]
    shown, page, pages = page_of(rows, page)
    return LetterGroups(
        rows=tuple(shown),
        dead_letters=sum(sums.dead_letters_by_group.values()) if sums else None,
        page=page,
        pages=pages,
        total=len(rows),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


async def letters(
    source: Source, group: str, *, reason: str | None = None, tag: str | None = None
) -> Letters:
    """Return the dead letters of a group: two calls and one search at each broker.

    Args:
        source: The cluster.
        group: The consumer group.
        reason: Only letters with this reason; "" for those without one.
        tag: Only letters with this tag; "" for those without one.
    """
    check_group(group)
    topic = dead_letter_topic(group)
    asking = await source.ask()
    queues = await asking.of(lambda silent: _queues(source, topic, silent))
    jobs = await asking.of(lambda silent: source.admin.letter_jobs(group, silent=silent))
    newest = await searched(source, asking, topic, max_messages=LOOKED_AT) if queues else None
    found = newest.messages if newest else ()
    selected = [
        letter
        for letter in found
        if (reason is None or letter.failure_reason == reason)
        and (tag is None or letter.tag == tag)
    ]
    selected.sort(key=lambda each: (each.store_timestamp_ms, each.queue_offset), reverse=True)
    stored = None if queues is None else sum(q.max_offset - q.min_offset for q in queues)
    return Letters(
        consumer_group=group,
        stored=stored,
        looked_at=len(found),
        corrupted=newest.unreadable if newest else 0,
        selected=len(selected),
        rows=tuple(MessageRow.of(letter, source.mask) for letter in selected[:SHOWN]),
        by_reason=_counted(letter.failure_reason for letter in found),
        by_tag=_counted(source.mask.text(properties.TAGS, letter.tag) for letter in found),
        by_origin=_counted(letter.origin_topic for letter in found),
        oldest_ms=min(
            (q.earliest_timestamp_ms for q in queues or () if q.max_offset > q.min_offset),
            default=None,
        ),
        jobs=tuple((jobs or ())[:SHOWN]),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )


def _counted(values: Any) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(values).most_common(12))


async def _queues(source: Source, topic: str, silent: list[MqError]) -> list[QueueStatus]:
    """Return the queues of a dead-letter topic; none if the group has no dead letters yet."""
    try:
        return await source.admin.topic_status(topic, silent=silent)
    except MqError as error:
        if error.code is not Code.TOPIC_NOT_EXIST or error in silent:
            raise
        return []
