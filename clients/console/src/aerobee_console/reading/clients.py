"""The connected clients: classic clients, and official SDKs through a proxy."""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_client.admin.descriptions import ClientDescription
from aerobee_console.reading.source import Listing, Source, page_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientList(Listing):
    """A page of clients."""

    rows: tuple[ClientDescription, ...]


async def client_list(
    source: Source, *, text: str = "", group: str = "", topic: str = "", page: int = 1
) -> ClientList:
    """Return a page of clients, with one call to each broker.

    Args:
        source: The cluster.
        text: Only clients whose id, address, proxy or language contains this text.
        group: Only clients of this consumer group.
        topic: Only clients that subscribe or publish to this topic.
        page: The number of the page, from 1 on.
    """
    asking = await source.ask()
    found = await asking.of(lambda silent: source.admin.list_clients(group, topic, silent=silent))
    wanted = text.lower()
    rows = [
        client
        for client in found or ()
        if wanted in f"{client.client_id} {client.address} {client.proxy} {client.language}".lower()
    ]
    shown, page, pages = page_of(rows, page)
    return ClientList(
        rows=tuple(shown),
        page=page,
        pages=pages,
        total=len(rows),
        silent=asking.silent,
        asked_at_ms=asking.at_ms,
    )
