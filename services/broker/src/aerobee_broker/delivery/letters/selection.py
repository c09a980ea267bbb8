"""Select dead letters by id, tag, reason, store time or queue offset.

This module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aerobee_wire import properties as props
from aerobee_wire import redrive as rules
from aerobee_wire.record import Record

Run = tuple[int, int]  # queue offsets: the first one, and the one behind the last one


def runs_of(offsets: Iterable[int]) -> list[Run]:
    """Return the runs of ascending queue offsets."""
    runs: list[Run] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = runs[-1][0], offset + 1
        else:
            runs.append((offset, offset + 1))
    return runs


def offsets_of(runs: Iterable[Run]) -> Iterator[int]:
    for start, end in runs:
        yield from range(start, end)


_MESSAGE_ID = props.UNIQUE_KEY.encode()


class OpenedLetter:
    """A dead letter with its ids and its properties.

    `names` and `values` are those of `props.fields`; they are empty if it returns None. `handled`
    are the properties that the rules of a redrive use; `others` is the encoded text of all others.
    """

    __slots__ = ("_split", "message_id", "names", "record", "values")

    def __init__(self, record: Record) -> None:
        self.record = record
        self._split: tuple[dict[str, str], str] | None = None
        self.names, self.values = props.fields(record.raw_properties) or ((), [])
        message_id = ""
        if not self.names:
            message_id = self.handled.get(props.UNIQUE_KEY, "")
        elif _MESSAGE_ID in self.names:
            message_id = self.values[self.names.index(_MESSAGE_ID)].decode("utf-8", "replace")
        self.message_id = message_id or record.offset_message_id

    @property
    def handled(self) -> dict[str, str]:
        return self._opened()[0]

    @property
    def others(self) -> str:
        return self._opened()[1]

    def _opened(self) -> tuple[dict[str, str], str]:
        if self._split is None:
            self._split = props.split(self.record.raw_properties, rules.LOOKED_AT)
        return self._split


@dataclass(frozen=True, slots=True)
class Selection:
    """A selection of dead letters. An empty field does not restrict it.

    The `tag` or `reason` `rules.WITHOUT` selects letters that have none. `ids` are message ids or
    offset message ids. `since_ms` (inclusive) and `until_ms` (exclusive) limit the store time; 0
    means no limit. `listed` has the selected runs of each queue.
    """

    ids: frozenset[str] = frozenset()
    tag: str = ""
    reason: str = ""
    since_ms: int = 0
    until_ms: int = 0
    listed: Mapping[int, Sequence[Run]] = field(default_factory=dict)

    @property
    def is_everything(self) -> bool:
        return self == EVERYTHING

    def selects(self, letter: OpenedLetter) -> bool:
        stored_ms = letter.record.store_timestamp_ms
        return (
            stored_ms >= self.since_ms
            and (not self.until_ms or stored_ms < self.until_ms)
            and (not self.tag or rules.fits(self.tag, letter.handled.get(props.TAGS)))
            and (not self.reason or rules.fits(self.reason, letter.handled.get(props.DLQ_REASON)))
            and (
                not self.ids
                or letter.message_id in self.ids
                or letter.record.offset_message_id in self.ids
            )
        )

    def next_offset(self, queue_id: int, offset: int) -> int | None:
        """Return the first queue offset at or after `offset` that may be selected.

        Return None if there is none.
        """
        if not self.listed:
            return offset
        runs = self.listed.get(queue_id, ())
        at = bisect_right(runs, (offset, 1 << 62)) - 1
        if at >= 0 and offset < runs[at][1]:
            return offset
        return runs[at + 1][0] if at + 1 < len(runs) else None

    def to_json(self) -> dict[str, Any]:
        return {
            "ids": sorted(self.ids),
            "tag": self.tag,
            "reason": self.reason,
            "since": self.since_ms,
            "until": self.until_ms,
            "listed": {str(queue_id): list(runs) for queue_id, runs in self.listed.items()},
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Decode a selection. Raises KeyError, TypeError or ValueError if it is invalid."""
        return cls(
            frozenset(found["ids"]),
            found["tag"],
            found["reason"],
            found["since"],
            found["until"],
            {
                int(queue_id): [(start, end) for start, end in runs]
                for queue_id, runs in found["listed"].items()
            },
        )


EVERYTHING = Selection()
