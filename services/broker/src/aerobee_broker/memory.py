"""The memory of this process, and how much of it there is."""

from __future__ import annotations

import os
from pathlib import Path

_STATM = Path("/proc/self/statm")
_MEMORY_MAX = Path("/sys/fs/cgroup/memory.max")


def memory_limit() -> int:
    """Bytes that this process may hold: of its control group as a container sees it, or all of the
    machine's."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        given = _MEMORY_MAX.read_text(encoding="ascii").strip()
    except OSError:
        return limit
    return min(limit, int(given)) if given.isdecimal() else limit


def resident_memory() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
