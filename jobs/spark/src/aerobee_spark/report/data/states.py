"""Ask the brokers for the states of dead letters: open, redriven, consumed, dead again, dismissed.

A page of states is fetched when the first of its letters is looked up, so the memory does not grow
with the number of dead letters. If a broker does not know states or does not answer, the states of
its letters are unknown, and the reason is a problem of the report.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from aerobee_spark.errors import MqError
from aerobee_wire.topics import DLQ_PREFIX

if TYPE_CHECKING:
    from aerobee_client import AdminClient
    from aerobee_client.admin.letters import LetterStatus

PAGE = 4_096  # letters of one request
MOST_PAGES = 64  # in memory
UNKNOWN = "unknown"

_Page = dict[int, "LetterStatus"]


class LetterStates:
    """The states of the dead letters of a report.

    `counts` counts the letters that were looked up, by state. `problems` has the error of each
    broker that did not answer.
    """

    def __init__(self, admin: AdminClient | None) -> None:
        """Create an object that asks `admin`; None if no broker can be asked."""
        self.counts: Counter[str] = Counter()
        self.problems: dict[str, str] = {}
        self._admin = admin
        self._pages: dict[tuple[str, str, int, int], _Page | None] = {}

    def look_up(
        self, topic: str, broker_name: str, queue_id: int, queue_offset: int
    ) -> LetterStatus | None:
        """Return the state of a letter, or None if it is unknown."""
        from aerobee_client.admin.letters import OPEN

        number = queue_offset // PAGE
        key = topic, broker_name, queue_id, number
        if key not in self._pages:
            if len(self._pages) >= MOST_PAGES:
                del self._pages[next(iter(self._pages))]
            self._pages[key] = self._fetch(*key)
        page = self._pages[key]
        status = None if page is None else page.get(queue_offset, OPEN)
        self.counts[UNKNOWN if status is None else status.state.value] += 1
        return status

    def _fetch(self, topic: str, broker_name: str, queue_id: int, number: int) -> _Page | None:
        if self._admin is None or broker_name in self.problems:
            return None
        begin, group = number * PAGE, topic.removeprefix(DLQ_PREFIX)
        try:
            return self._admin.letter_states(group, broker_name, queue_id, begin, begin + PAGE)
        except MqError as error:
            self.problems[broker_name] = error.message
            return None
