"""A finding of the doctor."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    # What was looked at: name server, broker, replica, clock, disk, memory, version, route, topic,
    # group.
    check: str
    # Which one.
    subject: str
    problem: str
    advice: str

    @property
    def text(self) -> str:
        return f"{self.check} {self.subject}: {self.problem}; {self.advice}"
