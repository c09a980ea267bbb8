"""The processor time of the threads of a process, as the scheduler of Linux counts it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """Seconds that a thread ran, and seconds that it could run but had no processor."""

    cpu_s: float
    delay_s: float
    waits: int
    preemptions: int

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.cpu_s - other.cpu_s,
            self.delay_s - other.delay_s,
            self.waits - other.waits,
            self.preemptions - other.preemptions,
        )

    @property
    def late(self) -> tuple[float, float]:
        """Return the shares of the time without a processor: after waits, and after preemptions.

        Their base is the time in which a sampler finds the thread able to run.
        """
        share = self.delay_s / max(self.cpu_s + self.delay_s, 1e-9)
        after_waits = self.waits / max(1, self.waits + self.preemptions)
        return share * after_waits, share * (1 - after_waits)


NEVER = Usage(0, 0, 0, 0)


def usage(pid: int) -> Mapping[int, Usage]:
    """Return what each thread of a process has used since its start."""
    found = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        lines = (thread / "status").read_text().splitlines()
        switches = [int(line.split()[1]) for line in lines if "ctxt_switches" in line]
        cpu_ns, delay_ns, _ = map(int, (thread / "schedstat").read_text().split())
        found[int(thread.name)] = Usage(cpu_ns / 1e9, delay_ns / 1e9, *switches)
    return found


def between(before: Mapping[int, Usage], after: Mapping[int, Usage]) -> Mapping[int, Usage]:
    """Return what each thread used between two looks."""
    return {thread: used - before.get(thread, NEVER) for thread, used in after.items()}
