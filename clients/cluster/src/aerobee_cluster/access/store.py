"""Keep an access table in memory and in its file, and notify watchers of changes.

A change is durable before it is visible. Changes are applied one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aerobee_wire.access import table_file
from aerobee_wire.access.table import HORIZON_MS, AccessTable, Key, Record, Version, tombstone
from aerobee_wire.access.users import User
from aerobee_wire.files import outcome_of
from aerobee_wire.status import Code, MqError

# Makes the content of the file durable. The argument returns the content, which takes a while.
# Raises OSError.
Save = Callable[[Callable[[], bytes]], Awaitable[None]]

FIRST_MS = 1  # the time of the first user's record
KEEP_CURRENT_S = 12 * 3_600.0  # between two times that a running process writes into its file


class Changes:
    """The records that changed since they were last read. A record is kept once, the newest."""

    def __init__(self) -> None:
        self._changed: dict[Key, Record] = {}
        self._closed = False
        self._news = asyncio.Event()

    def add(self, records: Iterable[Record]) -> None:
        self._changed.update((record.key, record) for record in records)
        self._news.set()

    def close(self) -> None:
        self._closed = True
        self._news.set()

    def wake(self) -> None:
        """Let the reader continue without a changed record."""
        self._news.set()

    def __aiter__(self) -> Changes:
        return self

    async def __anext__(self) -> list[Record]:
        """Wait for changes and return them. The iteration ends after `close`."""
        await self._news.wait()
        self._news.clear()
        if self._closed:
            raise StopAsyncIteration
        changed, self._changed = self._changed, {}
        return list(changed.values())


class AccessStore:
    """The access table of this process.

    Args:
        node: The name of this process in versions. No other process may have it.
        now_ms: The clock, in milliseconds since the epoch.
        save: Writes the file. None keeps the table in memory only.
    """

    def __init__(self, node: str, now_ms: Callable[[], int], save: Save | None = None) -> None:
        self.table = AccessTable()
        self._node = node
        self._now_ms = now_ms
        self._save = save
        self._saved_ms = 0  # the last time at which the file was written
        # The records as they are in the file. Encoding 10,000 users takes 100 ms.
        self._encoded: dict[Key, str] | None = None
        self._was_away = False  # for HORIZON_MS before the start
        # Set when another process had a whole table, and sent what this one lacked.
        self.exchanged = asyncio.Event()
        self._changing = asyncio.Lock()
        self._running: set[asyncio.Task[list[Record]]] = set()
        self._watchers: set[Changes] = set()
        self._closed = False

    def restore(self, data: bytes) -> None:
        """Take the content of the file, before the process serves. Raises ValueError."""
        found = table_file.decode(data)
        self._saved_ms = found.current_ms
        self.table.merge(found.records)
        self._was_away = self._now_ms() - found.current_ms > HORIZON_MS

    def restore_file(self, path: Path) -> None:
        """Take the content of a file if it exists. Raises OSError, or the errors of `restore`."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return
        self.restore(data)

    @property
    def is_stale(self) -> bool:
        """Return whether this table may contain records that were deleted long ago.

        It is stale if the process did not run for HORIZON_MS, because other tables have forgotten
        tombstones meanwhile, until it has merged a table that is not stale. An empty table, or one
        with only a first user, counts as stale too: it proves nothing.
        """
        return self._was_away or all(
            record.version.time_ms == FIRST_MS for record in self.table.records()
        )

    # ---- changes ----

    async def change(self, make: Callable[[AccessTable, int, str], list[Record]]) -> list[Record]:
        """Apply a change, and return its records when they are durable.

        `make(table, now_ms, node)` returns the records. Raises its errors, or MqError with the code
        SYSTEM_ERROR if the file cannot be written. Then this table does not change, and the error
        says whether the file did.
        """

        async def apply() -> list[Record]:
            return await self._take(make(self.table, self._now_ms(), self._node))

        return await self._one_by_one(apply())

    async def create_first(self, user: User) -> bool:
        """Create a user if there is none, and return whether it was created.

        Each other record of the name is newer, also one that arrives later: this process may have
        lost its file, and the cluster may have changed or deleted the user. So tombstones of users
        remain. Raises MqError with the code SYSTEM_ERROR as `change` does.
        """

        async def apply() -> list[Record]:
            if any(self.table.users()):
                return []
            return await self._take([Record(user, Version(FIRST_MS, self._node))])

        return bool(await self._one_by_one(apply()))

    async def merge(
        self, records: Collection[Record], *, complete: bool = False, stale: bool = False
    ) -> list[Record]:
        """Take the newer ones of the records of another table. Return the records that changed.

        If they are `complete`, and that table is not `stale` but this one is, then old records that
        the other table lacks are deleted: it has forgotten their tombstones. Raises MqError with
        the code SYSTEM_ERROR as `change` does.
        """

        async def apply() -> list[Record]:
            if not complete or stale or not self._was_away:
                return await self._take(records)
            lost = self._lost({record.key for record in records})
            taken = await self._take([*records, *lost])
            self._was_away = False
            return taken

        return await self._one_by_one(apply())

    def _lost(self, keys: Collection[Key]) -> list[Record]:
        oldest_ms = self._now_ms() - HORIZON_MS
        return [
            tombstone(each.item, each.version._replace(time_ms=each.version.time_ms + 1))
            for each in self.table.records()
            if not each.deleted and each.key not in keys and each.version.time_ms < oldest_ms
        ]

    async def _take(self, records: Collection[Record]) -> list[Record]:
        newer = AccessTable(self.table.newer(records)).records()  # each key once
        if newer:
            await self._write(newer)
            self.table.merge(newer)
            for watcher in self._watchers:
                watcher.add(newer)
        return newer

    async def _write(self, newer: Iterable[Record] = ()) -> None:
        """Write the table and `newer` records into the file."""
        if self._save is None:
            return
        current_ms = self._saved_ms if self._was_away else self._now_ms()
        former = self.table.records() if self._encoded is None else []
        encoded: dict[Key, str] = {}

        def content() -> bytes:  # in a thread; no other change runs meanwhile
            encoded.update(self._encoded or {})
            encoded.update((each.key, table_file.encode_record(each)) for each in (*former, *newer))
            return table_file.joined(encoded.values(), current_ms)

        try:
            await self._save(content)
        except OSError as error:
            raise MqError(
                Code.SYSTEM_ERROR,
                f"cannot write the access table: {error.strerror}; {outcome_of(error)}: retry",
                retryable=True,
            ) from error
        self._saved_ms = current_ms
        self._encoded = encoded

    async def keep_current(self) -> None:
        """Forget old tombstones, and write into the file that this process runs.

        Call it every KEEP_CURRENT_S. Raises MqError with the code SYSTEM_ERROR.
        """

        async def apply() -> list[Record]:
            if not self._was_away and len(self.table):
                if self.table.purge(self._now_ms()):
                    self._encoded = None
                await self._write()
            return []

        await self._one_by_one(apply())

    async def note_exchange(self) -> None:
        """Note that this table and that of another process are merged.

        Also write into the file that this process runs: it may stop before `keep_current` does.
        Raises MqError with the code SYSTEM_ERROR.
        """
        if not self.exchanged.is_set():
            self.exchanged.set()
            for watcher in self._watchers:
                watcher.wake()
        if self._now_ms() - self._saved_ms > KEEP_CURRENT_S * 1_000:
            await self.keep_current()

    async def _one_by_one(self, change: Coroutine[Any, Any, list[Record]]) -> list[Record]:
        """Run a change after the ones before it.

        A caller that is cancelled does not end the change, because its thread would still write.
        """

        async def run() -> list[Record]:
            async with self._changing:
                return await change

        task = asyncio.create_task(run())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    def user(self, name: str) -> User | None:
        """Return a user with all policies, or None if there is no such user."""
        return self.table.user(name)

    # ---- watchers ----

    async def notify(self, on_change: Callable[[set[str]], None]) -> None:
        """Call `on_change` with the names of users that have changed, until `close`."""
        with self.watch() as changes:
            async for changed in changes:
                on_change({record.username for record in changed})

    @contextmanager
    def watch(self) -> Iterator[Changes]:
        """Collect changes while the block runs."""
        changes = Changes()
        if self._closed:
            changes.close()
        self._watchers.add(changes)
        try:
            yield changes
        finally:
            self._watchers.discard(changes)

    def close(self) -> None:
        """End all watches, because the process stops."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()


def save_in(path: Path) -> Save:
    """Return a function that replaces a file in a thread. Only its owner may read the file."""

    def replace(content: Callable[[], bytes]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        table_file.replace_private(path, content())

    async def save(content: Callable[[], bytes]) -> None:
        await asyncio.to_thread(replace, content)

    return save
