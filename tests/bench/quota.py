"""A share of a core for each process of a benchmark, so that the load always has room beside it.

On a machine with as many cores as servers, the load takes what the servers would use, and a second
server gains nothing. With a quota of the kernel (cgroup `cpu`), each server stands for a whole
core: it stops for the rest of each period when it has used its share. The high weight lets it have
its share also on a machine with other work.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import CannotMeasure
from support.processes.command import children

V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
PERIOD_US = 20_000
WEIGHT = 10_000  # the highest of cgroup v2, where 100 is usual
_numbers = itertools.count()


class Group:
    """Processes that share a quota. Make it with `quota`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pids: list[int] = []

    def add(self, pid: int) -> None:
        """Holds a process, its threads and the children that it has to the quota."""
        for each in (pid, *children(pid)):
            (self._path / "cgroup.procs").write_text(str(each))
            self._pids.append(each)

    def used_s(self) -> float:
        """The processor seconds of the processes since their starts."""
        tasks = itertools.chain.from_iterable(
            Path(f"/proc/{pid}/task").iterdir() for pid in self._pids
        )
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def quota(share: float) -> Iterator[Group]:
    """A group that has this share of a core (0.2: a fifth). Its processes must end inside.

    Raises CannotMeasure if this user may not make groups.
    """
    is_v1 = (V1 / "cpu.shares").exists()
    path = (V1 if is_v1 else V2) / f"aerobee-bench-{os.getpid()}-{next(_numbers)}"
    limit_us = round(share * PERIOD_US)
    settings = (
        {
            "cpu.cfs_period_us": PERIOD_US,
            "cpu.cfs_quota_us": limit_us,
            "cpu.shares": WEIGHT * 1024 // 100,
        }
        if is_v1
        else {"cpu.max": f"{limit_us} {PERIOD_US}", "cpu.weight": WEIGHT}
    )
    try:
        path.mkdir()
        for name, value in settings.items():
            (path / name).write_text(str(value))
    except OSError as error:
        raise CannotMeasure(
            f"cannot limit processes: {error}; run as root where /sys/fs/cgroup is writable"
        ) from error
    try:
        yield Group(path)
    finally:
        path.rmdir()
