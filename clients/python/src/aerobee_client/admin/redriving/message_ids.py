"""The message ids of a redrive: which were sent, and from which dead letter.

They lie in a temporary file that SQLite removes when it is closed, so that a million of them take
no more memory than a thousand.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable
from enum import IntEnum

# Of the temporary file, in memory.
CACHE_KIB = 8 * 1024


class Claim(IntEnum):
    """What is known of a message id when a dead letter has it."""

    NEW = 0  # nothing: it is to be sent
    UNKNOWN = 1  # a broken-off run may have sent it: it is to be sent again
    SENT = 2  # this dead letter was sent in an earlier run
    TAKEN = 3  # another dead letter with this message id was sent, or is


class MessageIds:
    def __init__(self) -> None:
        self._table = sqlite3.connect("", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            f"PRAGMA cache_size = -{CACHE_KIB}",
            "CREATE TABLE ids (message_id TEXT PRIMARY KEY, letter TEXT, claim INT) WITHOUT ROWID",
            "BEGIN",
        ):
            self._table.execute(statement)
        self._inserting = self._table.cursor()  # a new one for each claim costs more than the claim

    def close(self) -> None:
        self._table.close()

    def load(self, rows: Iterable[tuple[str, str, Claim]]) -> None:
        """Message ids of earlier runs, with the offset message ids of their dead letters: SENT or
        UNKNOWN. A later row replaces an earlier one. Raises OSError as `claim`."""
        try:
            self._table.executemany("INSERT OR REPLACE INTO ids VALUES (?, ?, ?)", rows)
        except sqlite3.OperationalError as error:
            raise _disk_error(error) from None

    def count(self, claim: Claim) -> int:
        """How many have this claim."""
        found: tuple[int] = self._table.execute(
            "SELECT COUNT(*) FROM ids WHERE claim = ?", (claim,)
        ).fetchone()
        return found[0]

    def claim(self, message_id: str, letter: str) -> Claim:
        """Takes a message id for the dead letter with this offset message id, which is to be sent
        if the answer is NEW or UNKNOWN. Raises OSError when the temporary file cannot be
        written."""
        try:
            added = self._inserting.execute(_INSERT, (message_id, letter))
            if added.rowcount == 1:
                return Claim.NEW
            return self._claim_again(message_id, letter)
        except sqlite3.OperationalError as error:
            raise _disk_error(error) from None

    def _claim_again(self, message_id: str, letter: str) -> Claim:
        taken_by, claim = self._table.execute(
            "SELECT letter, claim FROM ids WHERE message_id = ?", (message_id,)
        ).fetchone()
        if claim == Claim.UNKNOWN:
            self._table.execute(
                "UPDATE ids SET letter = ?, claim = ? WHERE message_id = ?",
                (letter, Claim.TAKEN, message_id),
            )
            return Claim.UNKNOWN
        return Claim.SENT if claim == Claim.SENT and taken_by == letter else Claim.TAKEN


# The claim is written into the statement: sqlite3 binds an enum by way of its adapters.
_INSERT = f"INSERT OR IGNORE INTO ids VALUES (?, ?, {Claim.TAKEN:d})"


def _disk_error(error: sqlite3.OperationalError) -> OSError:
    return OSError(
        errno.EIO,
        f"the temporary file of message ids cannot be written ({error}): make room, "
        "or choose another folder by TMPDIR",
    )
