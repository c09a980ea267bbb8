"""Count the messages that a broker of Apache RocketMQ stores, by its files.

Its public protocol has no call for it. Standard library only.
"""

from __future__ import annotations

import mmap
from pathlib import Path

# An entry of a consume queue: offset in the log (8 bytes), size (4), tags (8). A file that is not
# full ends with zeros.
ENTRY_BYTES, SIZE_AT = 20, slice(8, 12)


def stored(store: Path, topic: str) -> int:
    """Return the number of messages of a topic, by its consume queues."""
    return sum(_entries(path) for path in (store / "consumequeue" / topic).glob("*/*"))


def _entries(path: Path) -> int:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
        low, high = 0, len(content) // ENTRY_BYTES
        while low < high:  # the first entry without a size
            middle = (low + high) // 2
            entry = content[middle * ENTRY_BYTES : (middle + 1) * ENTRY_BYTES]
            if any(entry[SIZE_AT]):
                low = middle + 1
            else:
                high = middle
        return low
