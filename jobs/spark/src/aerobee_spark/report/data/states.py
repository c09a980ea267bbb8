"""Look up the states of dead letters: open, redriven, consumed, dead again, dismissed.

A page of states is fetched when the first of its letters is looked up, so the memory does not grow
with the number of dead letters. If a broker does not know states or does not answer, the states of
its letters are unknown, and the reason is a problem of the report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Protocol

from aerobee_spark.errors import MqError
from aerobee_spark.reading.offsets import Queue
from aerobee_spark.report.formats import iso
from aerobee_spark.table import letter_states
from aerobee_wire.topics import DLQ_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

    from aerobee_client import AdminClient
    from aerobee_client.admin.letters import LetterStatus

PAGE = 4_096  # letters of one request
MOST_PAGES = 64  # in memory
UNKNOWN = "unknown"
# The columns of a listing that have the state of a letter.
STATE_COLUMNS = ("state", "state_at", "job_id", "requested_by", "target")

Page = dict[int, "LetterStatus"]


def as_columns(status: LetterStatus | None) -> dict[str, str]:
    """Return the state of a letter by the names of `STATE_COLUMNS`. None is an unknown state."""
    if status is None:
        return dict.fromkeys(STATE_COLUMNS, "") | {"state": UNKNOWN}
    at = (iso(status.at_ms) or "") if status.at_ms else ""
    values = (status.state.value, at, status.job_id, status.requested_by, status.target)
    return dict(zip(STATE_COLUMNS, values, strict=True))


class StateSource(Protocol):
    def page(self, queue: Queue, begin: int, end: int) -> Page:
        """Return the states of letters by queue offset, from `begin` up to `end`.

        The state of a letter that is missing is unknown. Raises MqError.
        """


class BrokerStates:
    """The states that the brokers have now."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def page(self, queue: Queue, begin: int, end: int) -> Page:
        from aerobee_client.admin.letters import OPEN

        topic, broker_name, queue_id = queue
        group = topic.removeprefix(DLQ_PREFIX)
        found = self._admin.letter_states(group, broker_name, queue_id, begin, end)
        return {**dict.fromkeys(range(begin, end), OPEN), **found}


class TableStates:
    """The states that a facts table has; see `letter_states.SCHEMA`."""

    def __init__(self, states: pa.Table) -> None:
        self._states = states
        self._queues: dict[Queue, pa.Table] = {}

    def page(self, queue: Queue, begin: int, end: int) -> Page:
        import pyarrow.compute as pc

        from aerobee_client.admin.letters import LetterState, LetterStatus

        if queue not in self._queues:
            self._queues[queue] = self._states.filter(letter_states.of_queue(self._states, queue))
        rows = self._queues[queue]
        offset = rows.column("queueOffset")
        chosen = rows.filter(pc.and_(pc.greater_equal(offset, begin), pc.less(offset, end)))
        return {
            row["queueOffset"]: LetterStatus(
                LetterState(row["state"]),
                round(at.timestamp() * 1000) if (at := row["stateTimestamp"]) else 0,
                row["jobId"],
                row["requestedBy"],
                row["target"],
            )
            for row in chosen.to_pylist()
        }


class LetterStates:
    """The states of the dead letters of a report.

    `counts` counts the letters that were looked up, by state. `problems` has the error of each
    broker that did not answer.
    """

    def __init__(self, source: StateSource | None) -> None:
        """Create an object that asks `source`; None if no states are known."""
        self.counts: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        self._source = source
        self._pages: dict[tuple[Queue, int], Page | None] = {}

    def look_up(
        self, topic: str, broker_name: str, queue_id: int, queue_offset: int
    ) -> LetterStatus | None:
        """Return the state of a letter, and count it. None is an unknown state."""
        status = self.of(topic, broker_name, queue_id, queue_offset)
        self.counts[UNKNOWN if status is None else status.state.value] += 1
        return status

    def of(
        self, topic: str, broker_name: str, queue_id: int, queue_offset: int
    ) -> LetterStatus | None:
        """Return the state of a letter, or None if it is unknown."""
        number = queue_offset // PAGE
        key = Queue(topic, broker_name, queue_id), number
        if key not in self._pages:
            if len(self._pages) >= MOST_PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[key] = self._fetch(*key)
        page = self._pages[key]
        return None if page is None else page.get(queue_offset)

    def _fetch(self, queue: Queue, number: int) -> Page | None:
        if self._source is None or queue.broker_name in self.problems:
            return None
        begin = number * PAGE
        try:
            return self._source.page(queue, begin, begin + PAGE)
        except MqError as error:
            self.problems[queue.broker_name] = error.message
            return None
