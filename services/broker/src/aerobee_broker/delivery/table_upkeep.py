"""Saves the journalled tables of a replica, whatever its role."""

from __future__ import annotations

from aerobee_broker.metadata.table_journal import SavedTables
from aerobee_broker.store.message_store import MessageStore
from aerobee_chassis.clock import Clock

REWRITE_MS = 3_600_000  # a file is written once in this time, or a start would read a long journal


class TableUpkeep:
    """Retention keeps the log from where a file has the journal; made once for each store."""

    def __init__(self, store: MessageStore, saved: SavedTables, clock: Clock) -> None:
        self._store = store
        self._saved = saved
        self._clock = clock
        self._rewritten_ms = clock.monotonic_ms()
        store.cleaning.protect(saved.needed_from)

    async def save(self) -> None:
        """What has changed; files that keep files of the log, and those that are old, anew. A
        failure is logged."""
        now_ms = self._clock.monotonic_ms()
        below = self._store.cleaning.wanted_below
        if now_ms - self._rewritten_ms >= REWRITE_MS:
            self._rewritten_ms = now_ms
            below = self._store.end_offset
        self._saved.refresh(below)
        await self._saved.save()
