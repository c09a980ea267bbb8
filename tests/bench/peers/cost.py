"""Processor time and wall clock of a piece of work: of the servers, and of the client that does it.

The clients of other products import this in an environment of their own: standard library only.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Cpu:
    user_s: float
    system_s: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.user_s - other.user_s, self.system_s - other.system_s)

    @property
    def whole_s(self) -> float:
        return self.user_s + self.system_s


def cpu_of(pids: Iterable[int]) -> Cpu:
    """Return the time that these processes have used, with that of their threads that ended."""
    user = system = 0
    for pid in pids:
        # The name of a process, in brackets, may hold blanks; user and system time are 14 and 15.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user += int(fields[11])
        system += int(fields[12])
    return Cpu(user / TICKS_PER_S, system / TICKS_PER_S)


def own_cpu() -> Cpu:
    """Return the time that this process has used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Cpu(usage.ru_utime, usage.ru_stime)


class Window:
    """The time from `start` to `stop`, on the clock and of the processors; each counts once."""

    def __init__(self, servers: Iterable[int]) -> None:
        self._pids = list(servers)
        self._is_open = self.is_closed = False
        self.seconds = 0.0
        self.servers = self.client = Cpu(0, 0)

    def start(self) -> None:
        if not self._is_open:
            self._is_open = True
            self.servers, self.client = cpu_of(self._pids), own_cpu()
            self.seconds = time.perf_counter()

    def stop(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.seconds = time.perf_counter() - self.seconds
            self.servers = cpu_of(self._pids) - self.servers
            self.client = own_cpu() - self.client

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
