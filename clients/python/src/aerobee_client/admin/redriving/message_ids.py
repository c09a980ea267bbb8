"""Keep the message ids of a redrive: which were sent, and from which dead letter.

The message ids are in a temporary file of SQLite, which is deleted when it is closed. A million
message ids therefore use no more memory than a thousand.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import cache

# memory for the temporary file
CACHE_KIB = 8 * 1024
# claims per statement
AT_ONCE = 64


class Claim(IntEnum):
    """The state of a message id when a dead letter claims it."""

    NEW = 0  # unknown so far: send it
    UNKNOWN = 1  # an interrupted run may have sent it: send it again
    SENT = 2  # an earlier run has sent this dead letter
    TAKEN = 3  # another dead letter with this message id was or will be sent


class MessageIds:
    def __init__(self) -> None:
        self._table = sqlite3.connect("", isolation_level=None)
        # `letter` is the offset message id for message ids of earlier runs, and "" for claims.
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            f"PRAGMA cache_size = -{CACHE_KIB}",
            "CREATE TABLE ids (message_id TEXT PRIMARY KEY, letter TEXT, claim INT, number INT) "
            "WITHOUT ROWID",
            "BEGIN",
        ):
            self._table.execute(statement)
        self._claimed = 0

    def close(self) -> None:
        self._table.close()

    def load(self, rows: Iterable[tuple[str, str, Claim]]) -> None:
        """Load message ids of earlier runs (SENT or UNKNOWN), with their offset message ids.

        A later row replaces an earlier row with the same message id. Raises OSError like `claim`.
        """
        try:
            self._table.executemany("INSERT OR REPLACE INTO ids VALUES (?, ?, ?, -1)", rows)
        except sqlite3.OperationalError as error:
            raise _disk_error(error) from None

    def count(self, claim: Claim) -> int:
        """Return the number of message ids with the state `claim`."""
        found: tuple[int] = self._table.execute(
            "SELECT COUNT(*) FROM ids WHERE claim = ?", (claim,)
        ).fetchone()
        return found[0]

    def claim(self, letters: Sequence[tuple[str, str]]) -> list[Claim]:
        """Claim the message ids of dead letters, in this order. Return the state of each claim.

        `letters` are pairs of message id and offset message id. The caller sends the dead letters
        whose result is NEW or UNKNOWN. Raises OSError if the temporary file cannot be written.
        """
        claims: list[Claim] = []
        for start in range(0, len(letters), AT_ONCE):
            claims += self._claim_some(letters[start : start + AT_ONCE])
        return claims

    def _claim_some(self, letters: Sequence[tuple[str, str]]) -> list[Claim]:
        first = self._claimed  # each claim has its own number
        self._claimed += len(letters)
        values = [first, *(message_id for message_id, _ in letters)]
        try:
            if self._table.execute(_insertion(len(letters)), values).rowcount == len(letters):
                return [Claim.NEW] * len(letters)
            return [self._claim(*letter, number) for number, letter in enumerate(letters, first)]
        except sqlite3.OperationalError as error:
            raise _disk_error(error) from None

    def _claim(self, message_id: str, letter: str, number: int) -> Claim:
        """Return the state of one claim after an insertion was attempted for all claims."""
        taken_by, claim, by_number = self._table.execute(
            "SELECT letter, claim, number FROM ids WHERE message_id = ?", (message_id,)
        ).fetchone()
        if by_number == number:
            return Claim.NEW
        if claim == Claim.UNKNOWN:
            self._table.execute(
                "UPDATE ids SET claim = ? WHERE message_id = ?", (Claim.TAKEN, message_id)
            )
            return Claim.UNKNOWN
        return Claim.SENT if claim == Claim.SENT and taken_by == letter else Claim.TAKEN


@cache
def _insertion(count: int) -> str:
    """Return a statement that inserts `count` message ids and ignores existing ones.

    The first parameter is the number of the first claim, and the message ids follow. One statement
    takes a third of the time of `executemany`.
    """
    rows = [f"(?{index + 2}, '', {Claim.TAKEN:d}, ?1 + {index})" for index in range(count)]
    return "INSERT OR IGNORE INTO ids VALUES " + ", ".join(rows)


def _disk_error(error: sqlite3.OperationalError) -> OSError:
    return OSError(
        errno.EIO,
        f"the temporary file of message ids cannot be written ({error}): make room, "
        "or choose another folder by TMPDIR",
    )
