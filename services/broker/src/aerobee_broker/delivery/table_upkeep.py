"""Saves the journalled tables of a replica in any role."""

from __future__ import annotations

from aerobee_broker.metadata.table_journal import SavedTables
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock

# Each file is rewritten once in this time; otherwise a start would read a long journal.
REWRITE_MS = 3_600_000


class TableUpkeep:
    """Saves tables; create one per store.

    Retention keeps the log from the oldest journal position of the files on.
    """

    def __init__(self, store: MessageStore, saved: SavedTables, clock: Clock) -> None:
        self._store = store
        self._saved = saved
        self._clock = clock
        self._rewritten_ms = clock.monotonic_ms()
        store.cleaning.protect(saved.needed_from)

    async def save(self) -> None:
        """Save changed tables, and rewrite files that are old or keep files of the log.

        A failure is logged.
        """
        now_ms = self._clock.monotonic_ms()
        below = self._store.cleaning.wanted_below
        if now_ms - self._rewritten_ms >= REWRITE_MS:
            self._rewritten_ms = now_ms
            below = self._store.end_offset
        self._saved.refresh(below)
        await self._saved.save()
