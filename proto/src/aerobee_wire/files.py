"""Make files durable, replace and lock them, on Linux, macOS and Windows.

Servers and clients use this module. It is the only one that knows how these systems differ here.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

# For os.open: Windows then does not change the ends of lines.
BINARY: int = getattr(os, "O_BINARY", 0)

if sys.platform == "win32":
    import msvcrt

    # A lock of Windows keeps other processes from its bytes, so it is behind the content.
    _LOCKED_AT = 0x7FFF_FFFE

    def lock(descriptor: int) -> bool:
        """Lock an open file until `unlock`, or until the process ends.

        Return False if another process holds the lock. Raises OSError.
        """
        return _at_lock(descriptor, msvcrt.LK_NBLCK)

    def unlock(descriptor: int) -> None:
        """Release a lock. Raises OSError."""
        _at_lock(descriptor, msvcrt.LK_UNLCK)

    def _at_lock(descriptor: int, mode: int) -> bool:
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        os.lseek(descriptor, _LOCKED_AT, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, mode, 1)
        except PermissionError:
            return False
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
        return True

    def sync_directory(directory: Path) -> None:
        """Do nothing: Windows cannot open a directory to sync it, and keeps a journal of names."""

else:
    import fcntl

    def lock(descriptor: int) -> bool:
        """Lock an open file until `unlock`, or until the process ends.

        Return False if another process holds the lock. Raises OSError.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(descriptor: int) -> None:
        """Release a lock, also for child processes that have inherited it. Raises OSError."""
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def sync_directory(directory: Path) -> None:
        """Make the names in a directory durable. Raises OSError."""
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            sync(descriptor)
        finally:
            os.close(descriptor)


# Make an open file or directory durable: content, size and attributes. Raises OSError.
sync: Callable[[int], None]
# Make the content and size of an open file durable, which is faster. Raises OSError.
sync_data: Callable[[int], None]

if sys.platform != "win32" and hasattr(fcntl, "F_FULLFSYNC"):
    # fsync of macOS leaves the bytes in the cache of the disk, which loses them in a power cut.
    _FULL_SYNC: int = fcntl.F_FULLFSYNC
    _UNSUPPORTED = (errno.ENOTSUP, errno.ENOTTY, errno.EINVAL)  # network drives

    def _sync_to_the_disk(descriptor: int) -> None:
        try:
            fcntl.fcntl(descriptor, _FULL_SYNC)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            os.fsync(descriptor)

    sync = sync_data = _sync_to_the_disk
else:
    sync, sync_data = os.fsync, getattr(os, "fdatasync", os.fsync)


class NotSynced(OSError):
    """The file was replaced, but its directory was not synced.

    A power cut may restore the former content.
    """


def sync_replaced(path: Path) -> None:
    """Make the new name of a replaced file durable. Raises NotSynced."""
    try:
        sync_directory(path.parent)
    except OSError as error:
        raise NotSynced(error.errno, error.strerror) from error


def outcome_of(error: OSError) -> str:
    """Return what became of a change whose file could not be replaced, for the text of an error."""
    if isinstance(error, NotSynced):
        return "a restart may apply the change"
    return "nothing was changed"


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file so that a crash leaves either the old or the new content.

    Raises NotSynced if the file was replaced, and another OSError if it was not.
    """
    new = path.with_name(path.name + ".tmp")
    with new.open("wb") as file:
        file.write(content)
        file.flush()
        sync(file.fileno())
    new.replace(path)
    sync_replaced(path)
