"""Exchange the access table with every name server.

Name servers do not call each other. A broker watches each of them, merges their tables into its
own, and sends each one the records that it lacks. So a change at any process reaches all others. A
proxy only watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing

from aerobee.access.v1 import access_pb2 as pb

from aerobee_cluster.access.handlers import parts_of
from aerobee_cluster.access.store import AccessStore, Changes
from aerobee_cluster.name_servers import hold_each
from aerobee_cluster.transport import Transport
from aerobee_wire.access.messages import record_of, to_record
from aerobee_wire.access.table import Key, Record
from aerobee_wire.backoff import Backoff
from aerobee_wire.rpcs import NAMESRV_ACCESS
from aerobee_wire.status import Code, MqError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0  # a change is visible everywhere after 2 s
# The pause after a refusal that only another configuration ends.
REFUSED_PAUSE_S = 30.0
REFUSALS = (Code.NO_PERMISSION, Code.REQUEST_CODE_NOT_SUPPORTED)
MERGE_TIMEOUT_S = 3.0

# Arguments: the address of the name server, the failure. The failure is None if the name server
# ended the stream.
OnLost = Callable[[str, Exception | None], None]


class _Ended(Exception):
    """The name server ended the stream, because it stops."""


class TableExchange:
    """Keeps the table of this process and those of name servers equal.

    Args:
        transport: The network.
        namesrvs: The addresses of the name servers.
        store: The table of this process.
        sends: Whether this process sends its records to name servers.
        on_lost: Called when an exchange ends. If the same name server fails repeatedly, only the
            first MqError is reported; other exceptions are always reported.
    """

    def __init__(
        self,
        transport: Transport,
        namesrvs: Sequence[str],
        store: AccessStore,
        *,
        sends: bool,
        on_lost: OnLost,
    ) -> None:
        self._transport = transport
        self._namesrvs = namesrvs
        self._store = store
        self._sends = sends
        self._on_lost = on_lost
        self._answered: set[str] = set()
        # Set when this process had a whole table: from a name server whose table is not stale, or,
        # at a broker, from all name servers. A proxy, which cannot replace what an empty name
        # server lacks, waits until a broker has.
        self.complete = asyncio.Event()

    async def run(self) -> None:
        """Exchange records with all name servers until cancelled."""
        await hold_each(self._namesrvs, self._keep, self._transport.drop)

    async def _keep(self, namesrv: str) -> None:
        backoff, is_lost = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), False
        while True:
            link = _Link(self._transport, namesrv, self._store, sends=self._sends)
            failure = await link.run(self._completed)
            if link.is_complete:
                backoff.reset()
                is_lost = False
            if not is_lost or not isinstance(failure, MqError | None):
                self._on_lost(namesrv, failure)
            is_lost = True
            refused = isinstance(failure, MqError) and failure.code in REFUSALS
            await asyncio.sleep(REFUSED_PAUSE_S if refused else backoff.next_s())

    def _completed(self, namesrv: str, stale: bool) -> None:
        self._answered.add(namesrv)
        if not stale or (self._sends and self._answered.issuperset(self._namesrvs)):
            self.complete.set()


class _Link:
    """One exchange with one name server, until it fails."""

    def __init__(
        self, transport: Transport, namesrv: str, store: AccessStore, *, sends: bool
    ) -> None:
        self.is_complete = False
        self._transport = transport
        self._namesrv = namesrv
        self._store = store
        self._sends = sends
        self._known: dict[Key, Record] = {}  # records that the name server has

    async def run(self, on_complete: Callable[[str, bool], None]) -> Exception | None:
        """Exchange records. Return the failure, or None if the name server ended the stream."""
        try:
            # Changes count from before the table of the name server is read.
            with self._store.watch() as changes:
                async with asyncio.TaskGroup() as group:
                    await self._read(group, changes, on_complete)
        except ExceptionGroup as failures:
            # Before Python 3.13, a task group that fails drops a cancellation that comes meanwhile.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from None
            failure = _first(failures)
            return None if isinstance(failure, _Ended) else failure
        return None

    async def _read(
        self,
        group: asyncio.TaskGroup,
        changes: Changes,
        on_complete: Callable[[str, bool], None],
    ) -> None:
        first: list[Record] = []
        stream = self._transport.stream(self._namesrv, NAMESRV_ACCESS.watch, pb.WatchRequest())
        async with aclosing(stream) as parts:
            async for part in parts:
                records = [record_of(each) for each in part.records]
                self._learn(records)
                if self.is_complete:
                    await self._store.merge(records)
                    if part.is_exchanged:
                        on_complete(self._namesrv, False)
                    continue
                first += records
                if part.complete:
                    await self._store.merge(first, complete=True, stale=part.is_stale)
                    self.is_complete = True
                    on_complete(self._namesrv, part.is_stale and not part.is_exchanged)
                    if self._sends:
                        group.create_task(self._send(changes, to_stale=part.is_stale))
        raise _Ended

    def _learn(self, records: Iterable[Record]) -> None:
        for record in records:
            if record.wins_over(self._known.get(record.key)):
                self._known[record.key] = record

    async def _send(self, changes: Changes, *, to_stale: bool) -> None:
        """Send the records that the name server lacks, now and after each change."""
        if to_stale and not self._store.is_stale:
            await self._merge_there(self._store.table.records(), complete=True)
        else:
            await self._merge_there(self._lacking(self._store.table.records()))
        await self._note_there()
        await self._store.note_exchange()
        async for changed in changes:
            await self._merge_there(self._lacking(changed))

    async def _note_there(self) -> None:
        request = pb.MergeTableRequest(is_last=True)
        await self._transport.call(
            self._namesrv, NAMESRV_ACCESS.merge_table, request, timeout_s=MERGE_TIMEOUT_S
        )

    def _lacking(self, records: Iterable[Record]) -> list[Record]:
        return [each for each in records if each.wins_over(self._known.get(each.key))]

    async def _merge_there(self, records: Sequence[Record], *, complete: bool = False) -> None:
        """Send records. A complete table is one message, because what it lacks is deleted."""
        for part in [records] if complete else parts_of(records):
            request = pb.MergeTableRequest(records=map(to_record, part), complete=complete)
            await self._transport.call(
                self._namesrv, NAMESRV_ACCESS.merge_table, request, timeout_s=MERGE_TIMEOUT_S
            )
            self._learn(part)


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
