"""Record the outcome of each dead letter of a redrive, and count outcomes. Does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    SENT = "sent"
    FAILED = "failed"
    WOULD_SEND = "would send"  # a dry run
    SKIPPED = "skipped"  # an earlier dead letter has the same message id
    SENT_BEFORE = "sent before"  # according to the journal
    MISSING = "missing"  # it was listed, and is not (or no longer) in the dead-letter topic


class Outcome(NamedTuple):
    """The result for one dead letter.

    `perhaps_twice` is true if the message was in flight when an earlier run was interrupted, and
    was sent again under the same message id. `outcome_unknown` is true if the send failed, but the
    message may have been stored.
    """

    message_id: str
    offset_message_id: str
    tag: str
    topic: str
    status: Status
    error: str = ""
    perhaps_twice: bool = False
    outcome_unknown: bool = False


@dataclass(slots=True)
class Tally:
    """Counts outcomes."""

    by_status: Counter[Status] = field(default_factory=Counter)
    perhaps_twice: int = 0
    topics: set[str] = field(default_factory=set)

    def add(self, outcomes: Iterable[Outcome]) -> None:
        sent = 0
        for _, _, _, topic, status, _, perhaps_twice, _ in outcomes:
            if status is Status.SENT:
                sent += 1  # an enum is slow to hash
            else:
                self.by_status[status] += 1
            if perhaps_twice:
                self.perhaps_twice += 1
            if topic not in self.topics and topic:
                self.topics.add(topic)
        if sent:
            self.by_status[Status.SENT] += sent

    @property
    def total(self) -> int:
        return self.by_status.total()
