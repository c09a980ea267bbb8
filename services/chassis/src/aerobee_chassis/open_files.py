"""Raise the limit of open files of this process."""

from __future__ import annotations

import resource

# macOS accepts no higher soft limit (OPEN_MAX), even if the hard limit is higher.
OPEN_MAX = 10_240


def allow_many_files() -> None:
    """Raise the soft limit to the hard limit, or to 10,240 where the system rejects that.

    The soft limit is 1,024 on many systems, and 256 on macOS.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (hard, max(soft, OPEN_MAX)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            continue
        return
