"""A finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    # The kind of the checked part: name server, broker, replica, clock, disk, memory, version,
    # route, topic, group.
    check: str
    # The name of the checked part.
    subject: str
    problem: str
    advice: str

    @property
    def text(self) -> str:
        return f"{self.check} {self.subject}: {self.problem}; {self.advice}"
