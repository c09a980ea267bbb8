"""Users of the access table, which name servers send to this proxy and keep current."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Sequence

import structlog

from aerobee_cluster.access.exchange import TableExchange
from aerobee_cluster.access.store import AccessStore
from aerobee_cluster.transport import Transport
from aerobee_wire.access.table import AccessTable
from aerobee_wire.access.users import User
from aerobee_wire.status import MqError


class TableUsers:
    """The users of the table. There are none until name servers have sent the table once.

    The table is kept in memory only. If no name server answers, the proxy continues with what it
    has.
    """

    def __init__(
        self, transport: Transport, namesrvs: Sequence[str], now_ms: Callable[[], int]
    ) -> None:
        self._store = AccessStore(f"proxy-{secrets.token_hex(4)}", now_ms)
        self._exchange = TableExchange(
            transport, namesrvs, self._store, sends=False, on_lost=_log_lost
        )

    @property
    def complete(self) -> bool:
        """Return whether name servers have sent the whole table since the start."""
        return self._exchange.complete.is_set()

    @property
    def table(self) -> AccessTable:
        return self._store.table

    def get(self, name: str) -> User | None:
        return self._store.table.user(name)

    async def run(self) -> None:
        """Keep the table current until cancelled."""
        await self._exchange.run()

    async def wait_until_complete(self) -> None:
        await self._exchange.complete.wait()

    async def changes(self) -> AsyncIterator[set[str]]:
        """Yield the names of users who have changed, with their policies."""
        with self._store.watch() as changes:
            async for changed in changes:
                yield {record.username for record in changed}


def _log_lost(namesrv: str, failure: Exception | None) -> None:
    log = structlog.get_logger()
    if failure is None or isinstance(failure, MqError):
        reason = "it ended the stream" if failure is None else failure.message
        log.warning("access_table_lost", namesrv=namesrv, reason=reason)
    else:
        log.error("access_table_failed", namesrv=namesrv, exc_info=failure)
