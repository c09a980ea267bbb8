"""The connected clients: classic clients, and official SDKs through a proxy."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_client.admin.descriptions import AwayProxy, ClientDescription
from aerobee_console.reading.source import PAGE_ROWS, Listing, Source, pages_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientList(Listing):
    """A page of clients. `away_proxies` are missing, and so may be their clients."""

    rows: tuple[ClientDescription, ...]
    away_proxies: tuple[AwayProxy, ...]


async def client_list(
    source: Source,
    *,
    text: str = "",
    group: str = "",
    topic: str = "",
    user: str = "",
    page: int = 1,
) -> ClientList:
    """Return a page of clients, with one call to each broker.

    Args:
        source: The cluster.
        text: Only clients whose id, address, proxy, user or software contains this text.
        group: Only producers and consumers of this group.
        topic: Only clients that subscribe or publish to this topic.
        user: Only clients whose calls this user signs.
        page: The number of the page, from 1 on.
    """
    asking = await source.ask()
    found = await asking.merged(
        lambda: source.admin.client_page(
            text=text,
            group=group,
            topic=topic,
            user=user,
            offset=(page - 1) * PAGE_ROWS,
            limit=PAGE_ROWS,
        )
    )
    rows = found.rows if found else ()
    total = found.total if found else None
    return ClientList(
        rows=rows,
        away_proxies=asking.cluster.away_proxies,
        page=page,
        pages=pages_of(total, page, len(rows)),
        total=total,
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )
